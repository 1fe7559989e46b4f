"""What a run could not do, kept in run.json (`failures`) and written as tables/failures.csv.

A failure is of a checkpoint, of one of its tasks, or of one item. What failed is not silently missing: it is named here
until the same command has done it after all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

Stage = Literal["prune", "load", "evaluate", "item"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One row of tables/failures.csv. What a failure has not is empty: one of a whole checkpoint has no task."""

    checkpoint: str
    stage: Stage  # at which it was given up
    task: str = ""
    language: str = ""  # of the item
    item: str = ""
    engine: str = ""  # numbers of the engines that failed, "0, 2"
    node: str = ""  # their hosts
    attempts: int = 1
    reason: str

    @property
    def lost(self) -> bool:
        """Whether a checkpoint, or a task of it, was set aside; otherwise it is one item."""
        return self.stage != "item"


COLUMNS = tuple(field.name for field in fields(Failure))


def failures_of(run: Mapping[str, Any]) -> list[Failure]:
    """The failures that a run.json names; rows that are none are left out."""
    rows = run.get("failures")
    found = []
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and {"checkpoint", "stage", "reason"} <= row.keys():
            texts = {name: str(row.get(name) or "") for name in COLUMNS if name != "attempts"}
            attempts = row.get("attempts")
            found.append(Failure(**texts, attempts=attempts if isinstance(attempts, int) else 1))  # type: ignore[arg-type]
    return found


def failure_frame(failures: Sequence[Failure]) -> pd.DataFrame:
    """The table, a row each."""
    import pandas as pd  # late: what is wrong with a sweep is said without it

    return pd.DataFrame([[getattr(each, name) for name in COLUMNS] for each in failures], columns=list(COLUMNS))
