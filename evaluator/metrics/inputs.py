"""What every table starts from: the outcomes, the items' clusters, and pairs of a pruned checkpoint and its base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from evaluator.metrics.intervals import Floats, Resampler, wilson
from evaluator.metrics.outcomes import MEASURED

ALL = "all"  # the row that pools the languages
MEAN = "mean"  # the row that is the unweighted mean over languages
SETTING = ("method", "pattern", "sparsity", "calibration")

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Outcomes of any number of checkpoints and tasks; optionally the items (task, language, item_id, cluster)."""

    outcomes: pd.DataFrame
    items: pd.DataFrame | None = None

    @cached_property
    def tasks(self) -> list[str]:
        return sorted(self.outcomes["task"].unique().tolist())

    @cached_property
    def checkpoints(self) -> list[Row]:
        """One row per checkpoint and task: dense ones first, then by setting; keys checkpoint, base, task, SETTING."""
        columns = ["task", "checkpoint", "base", *SETTING]
        rows: list[Row] = []
        for values in self.outcomes[columns].drop_duplicates(["task", "checkpoint"]).itertuples(index=False, name=None):
            row = {name: None if pd.isna(value) else value for name, value in zip(columns, values, strict=True)}
            if row["base"] == row["checkpoint"]:
                row["base"] = None
            rows.append(row)
        return sorted(rows, key=_display_order)

    @cached_property
    def primary(self) -> pd.DataFrame:
        """The outcomes of the lowest seed of each checkpoint, task and format: what all tables but the stability of
        sampling are computed from."""
        lowest = self.outcomes.groupby(["checkpoint", "task", "format"])["seed"].transform("min")
        return self.outcomes[self.outcomes["seed"] == lowest]

    @cached_property
    def _by_part(self) -> Mapping[tuple[str, str, str], pd.DataFrame]:
        groups = self.primary.groupby(["checkpoint", "task", "format"], sort=False)
        return {tuple(map(str, key)): frame for key, frame in groups}  # type: ignore[misc]

    def part(self, checkpoint: str, task: str, form: str) -> pd.DataFrame:
        """One checkpoint's outcomes on one task in one format, one row per item (empty when it was not asked)."""
        return self._by_part.get((checkpoint, task, form), self.outcomes.iloc[:0])

    @cached_property
    def _resamplers(self) -> dict[str, Resampler]:
        made = {}
        for task in self.tasks:
            asked = self.outcomes[self.outcomes["task"] == task][["language", "item_id"]].drop_duplicates()
            asked = asked.sort_values(["language", "item_id"])
            keys = ids(asked)
            made[task] = Resampler(task, keys, asked["language"].tolist(), self._clusters_of(task, keys))
        return made

    def _clusters_of(self, task: str, keys: Sequence[str]) -> list[str]:
        """Each item's cluster; an item that `items` does not know is its own."""
        if self.items is None or self.items.empty:
            return list(keys)
        known = self.items[self.items["task"] == task]
        cluster = dict(zip(ids(known), known["cluster"].astype(str), strict=True))
        return [cluster.get(key, f"item {key}") for key in keys]

    def resampler(self, task: str) -> Resampler:
        return self._resamplers[task]

    def languages(self, task: str) -> list[str]:
        return sorted(self.outcomes.loc[self.outcomes["task"] == task, "language"].unique().tolist())


def _display_order(row: Row) -> tuple[Any, ...]:
    return (
        row["task"],
        row["base"] is not None,
        row["base"] or "",
        *(row[name] or "" for name in ("method", "pattern")),
        row["sparsity"] or 0.0,
        row["calibration"] or "",
        row["checkpoint"],
    )


@dataclass(frozen=True, eq=False)
class Pair:
    """A checkpoint with a base, and the items asked of both: columns `*_dense` and `*_pruned`; empty with a reason."""

    setting: Row  # checkpoint, base, task and SETTING
    items: pd.DataFrame
    reason: str | None

    @property
    def checkpoint(self) -> str:
        return str(self.setting["checkpoint"])

    @property
    def task(self) -> str:
        return str(self.setting["task"])

    def measured(self, *probes: str) -> pd.DataFrame:
        """The items on which these probes were measured in both checkpoints."""
        return self.items[measured_in_both(self.items, *probes)]

    def counts(self, items: pd.DataFrame, *probes: str) -> Row:
        """How many of `items` either checkpoint excluded or failed on, for these probes."""
        status = pd.concat([items[f"{p}_status_{side}"] for p in probes for side in ("dense", "pruned")], axis=1)
        excluded = (status == "excluded").fillna(False).any(axis=1)
        failed = (status == "engine_error").fillna(False).any(axis=1) & ~excluded
        return {"excluded": int(excluded.sum()), "engine_error": int(failed.sum())}


def measured_in_both(items: pd.DataFrame, *probes: str) -> pd.Series:
    """Which rows of a pair's items have all these probes measured in both checkpoints."""
    keep = pd.Series(True, index=items.index)
    for probe in probes:
        for side in ("dense", "pruned"):
            keep &= items[f"{probe}_status_{side}"].isin(MEASURED)
    return keep


def pairs(inputs: Inputs, form: str = "open") -> Iterator[Pair]:
    """Every checkpoint that names a base, joined with it on the items of one format, in display order."""
    present = {(row["task"], row["checkpoint"]) for row in inputs.checkpoints}
    for setting in inputs.checkpoints:
        base, task, name = setting["base"], setting["task"], setting["checkpoint"]
        if base is None:
            continue
        dense, pruned = inputs.part(base, task, form), inputs.part(name, task, form)
        joined = pruned.merge(dense, on=["language", "item_id"], suffixes=("_pruned", "_dense"), validate="one_to_one")
        reason = None
        if (task, base) not in present:
            reason = f"base {base!r} has no records of task {task!r}: evaluate it into the same run"
        elif joined.empty:
            reason = f"no item in format {form!r} is common to {name!r} and its base {base!r}"
        yield Pair(setting, joined, reason)


def slices(frame: pd.DataFrame, languages: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """The pooled rows first, then each language's (empty where it has none)."""
    yield ALL, frame
    for language in languages:
        yield language, frame[frame["language"] == language]


def rate(name: str, count: int, n: int) -> Row:
    """A rate with its Wilson interval; all null when there is nothing to count."""
    low, high = wilson(count, n)
    return {name: count / n if n else None, f"{name}_low": low, f"{name}_high": high}


def truth(column: pd.Series) -> Floats:
    """A fully measured boolean column as 0.0 and 1.0."""
    return np.asarray(column.to_numpy(dtype="float64", na_value=np.nan))


def ids(frame: pd.DataFrame) -> list[str]:
    """What identifies each row's item within its task: translations of one item share their id across languages."""
    return [f"{language}\x1f{item}" for language, item in zip(frame["language"], frame["item_id"], strict=True)]


def table_frame(rows: Sequence[Row], columns: Sequence[str], counts: Sequence[str]) -> pd.DataFrame:
    """Rows as a frame with exactly these columns; counts are nullable integers, missing numbers are null."""
    frame = pd.DataFrame(list(rows), columns=list(columns))
    return frame.astype(dict.fromkeys(counts, "Int64"))


def joined_reasons(*reasons: str | None) -> str | None:
    told = [reason for reason in dict.fromkeys(reasons) if reason]
    return "; ".join(told) if told else None
