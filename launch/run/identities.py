"""What the records of a run depend on, where some of its checkpoints are unknown to one of two calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

_BY_NAME = ("models", "bases", "tasks", "task_settings")  # sections of an identity, by a checkpoint's name

Identity = Mapping[str, Any]


def known_to_one(one: Identity, other: Identity, among: Collection[str]) -> set[str]:
    """Which of the checkpoints `among` are in `one` and not in `other`."""
    return {name for name in among if name in _section(one, "tasks") and name not in _section(other, "tasks")}


def without(identity: Identity, names: Collection[str]) -> dict[str, Any]:
    """An identity that does not know some checkpoints; those that are made are sorted by name."""
    left = dict(identity)
    for section in _BY_NAME:
        if isinstance(left.get(section), Mapping):
            left[section] = {name: told for name, told in left[section].items() if name not in names}
    made = _made(identity)
    if made:
        left["checkpoints"] = [made[name] for name in sorted(made) if name not in names]
    return left


def joined(one: Identity, other: Identity) -> dict[str, Any]:
    """An identity that knows the checkpoints of both; where both know one, as `other` does."""
    both: dict[str, Any] = {
        section: {**_section(one, section), **_section(other, section)}
        for section in _BY_NAME
        if section in {*one, *other}
    }
    made = {**_made(one), **_made(other)}
    return {**other, **both} | ({"checkpoints": [made[name] for name in sorted(made)]} if made else {})


def _section(identity: Identity, name: str) -> Mapping[str, Any]:
    section = identity.get(name)
    return section if isinstance(section, Mapping) else {}


def _made(identity: Identity) -> dict[str, Any]:
    rows = identity.get("checkpoints")
    return {str(row.get("name")): row for row in rows if isinstance(row, dict)} if isinstance(rows, list) else {}
