"""llm-compressor's recipes as text: what its environment applies, and what a checkpoint that was rounded here says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from quantising.methods.base import Wanted


@dataclass(frozen=True, slots=True)
class Modifier:
    """One of llm-compressor's modifiers."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    quantises: bool = False  # it takes the scheme and what is ignored


def recipe_of(modifiers: Sequence[Modifier], wanted: Wanted) -> str:
    """The recipe that applies modifiers in their order."""
    stated = {each.name: _settings(each, wanted) for each in modifiers}
    return yaml.safe_dump({"quant_stage": {"quant_modifiers": stated}}, sort_keys=False)


def _settings(modifier: Modifier, wanted: Wanted) -> dict[str, Any]:
    if not modifier.quantises:
        return dict(modifier.settings)
    scheme: dict[str, Any] = {"targets": ["Linear"], "scheme": wanted.scheme}
    if wanted.group_size is not None:
        from quantising.schemes import arguments, preset

        scheme = {"config_groups": {"group_0": arguments(preset(wanted.scheme, wanted.group_size))}}
    return {**scheme, "ignore": list(wanted.ignore), **modifier.settings}
