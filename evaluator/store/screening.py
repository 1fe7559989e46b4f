"""What screening decided of each checkpoint, kept in run.json (`screening`): which are asked no more, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from evaluator.errors import rows_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """One checkpoint on one task, beside what it is worse than or, if it stays, comes nearest to being worse than."""

    task: str
    checkpoint: str
    base: str
    out: bool
    measure: str
    anchors: int  # items that decided
    asked: int  # items in all
    items: int  # that it would be asked without screening
    n: int  # anchors that both were measured on
    accuracy: float | None
    reference: str  # another checkpoint, or the base
    reference_accuracy: float | None
    difference: float | None  # by how much the reference is right more often, of 1
    low: float | None  # bounds of that, each at the level
    high: float | None
    margin: float  # how much worse it may be
    confidence: float  # of all that is decided of the task together
    level: float  # of this comparison: the probability with which it may say "surely" by mistake


_ROW = TypeAdapter(Screened)


def screened_of(run: Mapping[str, Any]) -> list[Screened]:
    """What a run.json says; rows that are none are left out."""
    found = []
    for row in rows_at(run, "screening"):
        try:
            found.append(_ROW.validate_python(dict(row)))
        except ValidationError:
            continue
    return found
