"""What every table starts from: the outcomes, the items' clusters, and pairs of a pruned checkpoint and its base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from evaluator.metrics.intervals import Floats, Resampler, Rows, wilson
from evaluator.metrics.outcomes import DTYPES, KEY, MEASURED, METADATA
from evaluator.records import FORMATS

ALL = "all"  # the row that pools the languages
MEAN = "mean"  # the row that is the unweighted mean over languages
ITEM = ("language", "item_id", "item")
PART_COLUMNS = (*ITEM, *(name for name in DTYPES if name not in (*KEY, *METADATA)))
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
    def compact(self) -> pd.DataFrame:
        """The outcomes in a fixed order as plain columns: numbers and booleans as floats with NaN for null (many small
        selections of nullable columns are slow), and `item`, the number of the item within its task."""
        frame = self.outcomes.sort_values(list(KEY), ignore_index=True)
        columns: dict[str, Any] = {}
        for name, dtype in DTYPES.items():
            if dtype == "string":
                texts = frame[name].astype(object)
                columns[name] = texts.where(texts.notna(), None)
            else:
                columns[name] = frame[name].to_numpy(dtype="float64", na_value=np.nan)
        plain = pd.DataFrame(columns)
        return plain.merge(self._asked, on=["task", "language", "item_id"], validate="many_to_one").copy()

    @cached_property
    def _asked(self) -> pd.DataFrame:
        names = ["task", "language", "item_id"]
        asked = self.outcomes[names].astype(object).drop_duplicates().sort_values(names, ignore_index=True)
        return asked.assign(item=asked.groupby("task").cumcount())

    @cached_property
    def _by_part(self) -> Mapping[tuple[str, str, str], pd.DataFrame]:
        """The lowest seed of each checkpoint, task and format: what all tables but `recovery_seeds` look at."""
        lowest = self.compact.groupby(["checkpoint", "task", "format"])["seed"].transform("min")
        groups = self.compact[self.compact["seed"] == lowest].groupby(["checkpoint", "task", "format"], sort=False)
        return {
            (str(checkpoint), str(task), str(form)): frame[list(PART_COLUMNS)].reset_index(drop=True)
            for (checkpoint, task, form), frame in groups
        }

    def part(self, checkpoint: str, task: str, form: str) -> pd.DataFrame:
        """One checkpoint's outcomes on one task in one format, one row per item (empty when it was not asked)."""
        return self._by_part.get((checkpoint, task, form), self._no_part)

    @cached_property
    def _no_part(self) -> pd.DataFrame:
        return self.compact.iloc[:0][list(PART_COLUMNS)]

    @cached_property
    def _resamplers(self) -> dict[str, Resampler]:
        return {
            str(task): Resampler(str(task), asked["language"].tolist(), self._clusters_of(str(task), asked))
            for task, asked in self._asked.groupby("task")
        }

    def _clusters_of(self, task: str, asked: pd.DataFrame) -> list[str]:
        """Each item's cluster; an item that `items` does not know is its own."""
        keys = list(zip(asked["language"], asked["item_id"], strict=True))
        if self.items is None or self.items.empty:
            return [f"item {item_id}" for _, item_id in keys]
        known = self.items[self.items["task"] == task]
        cluster = dict(zip(zip(known["language"], known["item_id"], strict=True), known["cluster"], strict=True))
        return [f"cluster {cluster[key]}" if key in cluster else f"item {key[1]}" for key in keys]

    def resampler(self, task: str) -> Resampler:
        return self._resamplers[task]

    @cached_property
    def _pairs(self) -> dict[str, list[Pair]]:
        return {form: list(_pairs_of(self, form)) for form in FORMATS}

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
        excluded = (status == "excluded").any(axis=1)
        failed = (status == "engine_error").any(axis=1) & ~excluded
        return {"excluded": int(excluded.sum()), "engine_error": int(failed.sum())}


def measured_in_both(items: pd.DataFrame, *probes: str) -> pd.Series:
    """Which rows of a pair's items have all these probes measured in both checkpoints."""
    keep = pd.Series(True, index=items.index)
    for probe in probes:
        for side in ("dense", "pruned"):
            keep &= items[f"{probe}_status_{side}"].isin(MEASURED)
    return keep


def pairs(inputs: Inputs, form: str = "open") -> list[Pair]:
    """Every checkpoint that names a base, joined with it on the items of one format, in display order."""
    return inputs._pairs[form]


def _pairs_of(inputs: Inputs, form: str) -> Iterator[Pair]:
    present = {(row["task"], row["checkpoint"]) for row in inputs.checkpoints}
    for setting in inputs.checkpoints:
        base, task, name = setting["base"], setting["task"], setting["checkpoint"]
        if base is None:
            continue
        dense, pruned = inputs.part(base, task, form), inputs.part(name, task, form)
        joined = pruned.merge(dense, on=list(ITEM), suffixes=("_pruned", "_dense"), validate="one_to_one")
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
    return np.asarray(column, dtype=np.float64)


def numbers(frame: pd.DataFrame) -> Rows:
    """Each row's item, as its number within the task: what a `Resampler` knows it by."""
    return np.asarray(frame["item"], dtype=np.intp)


def table_frame(rows: Sequence[Row], columns: Sequence[str], counts: Sequence[str]) -> pd.DataFrame:
    """Rows as a frame with exactly these columns; counts are nullable integers, missing numbers are null."""
    frame = pd.DataFrame(list(rows), columns=list(columns))
    return frame.astype(dict.fromkeys(counts, "Int64"))


def joined_reasons(*reasons: str | None) -> str | None:
    told = [reason for reason in dict.fromkeys(reasons) if reason]
    return "; ".join(told) if told else None
