"""The decision: each criterion of each checkpoint, on all items and in each language, against its threshold.

    crossed        the whole interval is beyond the threshold, and of few items an exact test  -> BLOCK
    over           the value is, its interval is not: it may be chance                         -> WARN
    failed         nothing is beyond, but the engine failed on so many items that it might be -> WARN
    underpowered   nothing is beyond, but so few items would not have shown it; or the base
                   has no right answer that could have been lost                               -> WARN
    unmeasured     the run does not have the number
    ok             none of these

A checkpoint is PASS only where nothing is crossed, over, failed or underpowered, and where open accuracy was measured.
In a language, intervals are widened for the number of languages, and only the drop warns: when it is merely over, or of
too few items. A checkpoint that was asked otherwise than its base is BLOCK: nothing was measured. Tasks of text have no
answers, and no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pandas as pd

from evaluator.metrics.columns import rows_of
from evaluator.metrics.gate.criteria import CRITERIA, Criterion
from evaluator.metrics.gate.power import detectable, enough_for_share, enough_items, may_be_chance, widened
from evaluator.metrics.inputs import ALL, MEAN, grouped, rows_where
from evaluator.metrics.intervals import Interval
from evaluator.thresholds import Thresholds

Outcome = Literal["PASS", "WARN", "BLOCK"]
State = Literal["crossed", "over", "failed", "underpowered", "unmeasured", "ok"]
OUTCOMES: tuple[Outcome, ...] = ("PASS", "WARN", "BLOCK")  # from best to worst
Key = tuple[str, str]  # task, checkpoint
Rows = Callable[..., pd.DataFrame]  # of a task and checkpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One criterion on all items or in one language. `low` and `high` are the bounds that were decided by."""

    criterion: Criterion
    language: str
    threshold: float
    state: State
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    failed: int = 0  # items on which the checkpoint's engine failed, of a drop
    detectable: float | None = None  # the MDE, in the column's units
    enough: int | None = None  # items with which it would not be underpowered

    @property
    def pooled(self) -> bool:
        return self.language == ALL


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One checkpoint on one task."""

    task: str
    checkpoint: str
    base: str
    checks: tuple[Check, ...]
    incomparable: str | None = None
    screened_out: str | None = None  # it was asked a few items only, which is what it is judged by

    @property
    def outcome(self) -> Outcome:
        if self.incomparable or self.having("crossed"):
            return "BLOCK"
        said = any(check.pooled and check.state != "unmeasured" for check in self.of("open_drop"))
        doubts = any(self.having(state) for state in ("over", "failed", "underpowered"))
        return "PASS" if said and not doubts else "WARN"

    @property
    def underpowered(self) -> bool:
        """Whether a number of items is too small for a verdict that nothing is wrong."""
        return bool(self.having("underpowered"))

    def having(self, state: State) -> list[Check]:
        return [check for check in self.checks if check.state == state]

    def of(self, name: str) -> list[Check]:
        """The checks of one criterion, by its name."""
        return [check for check in self.checks if check.criterion.name == name]


def decide(
    tables: Mapping[str, pd.DataFrame],
    thresholds: Thresholds,
    incomparable: Mapping[Key, str],
    screened_out: Mapping[Key, str] = MappingProxyType({}),
) -> list[Verdict]:
    """A verdict for each checkpoint and task that has a base, in the order of the tables.

    `tables` are frames by name; one that is missing is unmeasured. `incomparable` says why a checkpoint cannot be
    compared with its base, `screened_out` which were asked a few items only.
    """
    criteria = [each for each in CRITERIA if each.threshold(thresholds) is not None]
    bases: dict[Key, str] = {}
    rows: dict[str, Rows] = {}
    for each in criteria:
        frame = tables.get(each.table)
        if frame is not None:
            seen = rows_where(frame, each.where)
            rows[each.name] = grouped(seen, "task", "checkpoint")
            for row in rows_of(seen[seen["base"].notna()][["task", "checkpoint", "base"]].drop_duplicates()):
                bases.setdefault((row["task"], row["checkpoint"]), row["base"])
    discordant = _discordant(tables.get("flips"))
    return [
        Verdict(
            task=task,
            checkpoint=checkpoint,
            base=base,
            checks=tuple(
                check
                for criterion in criteria
                for check in _checks(criterion, rows.get(criterion.name), discordant, (task, checkpoint), thresholds)
            ),
            incomparable=incomparable.get((task, checkpoint)),
            screened_out=screened_out.get((task, checkpoint)),
        )
        for (task, checkpoint), base in bases.items()
    ]


def looked_at(table: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows and columns of a table that `decide` looks at."""
    own = [each for each in CRITERIA if each.table == table]
    rows = np.logical_or.reduce([frame.index.isin(rows_where(frame, each.where).index) for each in own])
    columns = {"task", "checkpoint", "base", "language", "engine_error", "margin", "flips", "probe"}
    for each in own:
        columns |= {each.column, f"{each.column}_low", f"{each.column}_high", each.counts, each.asked, *each.where}
    kept: pd.DataFrame = frame.loc[rows, [name for name in frame if name in columns]]
    return kept


def _checks(
    criterion: Criterion,
    own: Rows | None,
    discordant: Mapping[tuple[str, ...], int],
    key: Key,
    thresholds: Thresholds,
) -> Iterator[Check]:
    """`own` gives the rows of a task and checkpoint that the criterion looks at; None: there is no table."""
    rows = [] if own is None else rows_of(own(*key))
    whole = [row for row in rows if row["language"] == ALL]
    rows = [row for row in rows if row["language"] != MEAN and pd.notna(row.get(criterion.column))]
    pooled = [row for row in rows if row["language"] == ALL]
    apart = [row for row in rows if row["language"] != ALL]
    bound = criterion.threshold(thresholds)
    assert bound is not None
    if not pooled:
        yield _without_value(criterion, whole, bound)
    place = (*key, criterion.where.get("probe", ""))
    for row in pooled:
        yield _check(criterion, row, bound, 1, discordant.get((*place, ALL), 0), thresholds.power)
    bound = criterion.threshold(thresholds, language=True)
    if thresholds.languages and bound is not None and len(apart) > 1:
        for row in apart:
            differ = discordant.get((*place, row["language"]), 0)
            yield _check(criterion, row, bound, len(apart), differ, thresholds.power)


def _without_value(criterion: Criterion, rows: Sequence[Mapping[str, Any]], bound: float) -> Check:
    """Unmeasured; or measured on items of which the base has none right, so that none could be lost."""
    asked = max(
        (int(row[criterion.asked]) for row in rows if criterion.asked and pd.notna(row[criterion.asked])), default=0
    )
    enough = enough_for_share(bound) if asked and criterion.power == "share" else None
    state: State = "underpowered" if asked else "unmeasured"
    return Check(criterion=criterion, language=ALL, threshold=bound, state=state, enough=enough)


def _check(
    criterion: Criterion, row: Mapping[str, Any], bound: float, tests: int, discordant: int, power: float
) -> Check:
    value, n, language = float(row[criterion.column]), int(row[criterion.counts]), str(row["language"])
    low, high = (row.get(f"{criterion.column}_{end}") for end in ("low", "high"))
    known: Interval = (None, None) if pd.isna(low) or pd.isna(high) else (float(low), float(high))
    low, high = widened(value, known, tests)
    beyond = value < bound if criterion.least else value > bound
    crossed = (high is not None and high < bound) if criterion.least else (low is not None and low > bound)
    if crossed and criterion.counted:
        crossed = not may_be_chance(round(value * n), n, bound, tests)
    mde, enough, failed = None, None, 0
    if criterion.power == "difference" and language == ALL and pd.notna(row.get("engine_error")):
        failed = int(row["engine_error"])
    if criterion.power == "difference" and n:
        mde = detectable(discordant, n, known, power)
        enough = enough_items(mde, n, bound)
    elif criterion.power == "share" and language == ALL:
        enough = enough_for_share(bound)
    state: State = "ok"
    if crossed:
        state = "crossed"
    elif beyond and (language == ALL or criterion.power == "difference"):
        state = "over"
    elif failed > bound * (n + failed):
        state = "failed"
    elif (mde is not None and mde > bound) or (mde is None and enough is not None and n < enough):
        state = "underpowered"
    return Check(
        criterion=criterion,
        language=language,
        threshold=bound,
        state=state,
        value=value,
        low=low,
        high=high,
        n=n,
        failed=failed,
        detectable=mde,
        enough=enough if state in ("underpowered", "over") else None,
    )


def _discordant(flips: pd.DataFrame | None) -> dict[tuple[str, ...], int]:
    """On how many items checkpoint and base differ, as table `flips` counts them: by task, checkpoint, probe and
    language."""
    if flips is None:
        return {}
    counted = flips[(flips["margin"] == ALL) & flips["flips"].notna()]
    places = zip(*(counted[name] for name in ("task", "checkpoint", "probe", "language")), strict=True)
    return dict(zip(places, counted["flips"].astype(int), strict=True))
