"""When the gate stopped evaluating each checkpoint of a screened sweep: `screening` in run.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from evaluator.core.errors import rows_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """One checkpoint on one task. Its evaluation is over."""

    task: str
    checkpoint: str
    base: str
    decision: str  # the gate's verdict at the last look
    asked: int  # items of that look
    items: int  # items of the task
    looks: tuple[int, ...]  # items of each planned look: they set the level of each
    passed: tuple[tuple[str, str], ...]  # criterion and language of each check that was within at an earlier look

    @property
    def early(self) -> bool:
        return self.asked < self.items


_ROW = TypeAdapter(Screened)


def screened_of(run: Mapping[str, Any]) -> list[Screened]:
    """The rows of a run.json; the function skips rows that it cannot read."""
    found = []
    for row in rows_at(run, "screening"):
        try:
            found.append(_ROW.validate_python(dict(row)))
        except ValidationError:
            continue
    return found
