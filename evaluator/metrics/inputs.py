"""What every table starts from: the outcomes, the items' clusters, and pairs of a pruned checkpoint and its base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from evaluator.metrics.intervals import (
    UNDEFINED,
    Floats,
    Resampler,
    Rows,
    holm,
    mcnemar_exact,
    nan_mean,
    percentile_interval,
    wilson,
)
from evaluator.metrics.outcomes import KEY, MEASURED, METADATA, outcome_types
from evaluator.probes import PROBES
from evaluator.records import FORMATS

ALL = "all"  # the row that pools the languages
MEAN = "mean"  # the row that is the unweighted mean over languages
ITEM = ("language", "item_id", "item")
SETTING = ("method", "pattern", "sparsity", "calibration")

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Outcomes of any number of checkpoints and tasks; optionally the items (task, language, item_id, cluster), and the
    verdicts of matcher models (the columns of `evaluator.store.verdicts`)."""

    outcomes: pd.DataFrame
    items: pd.DataFrame | None = None
    verdicts: pd.DataFrame | None = None

    @cached_property
    def checkpoints(self) -> list[Row]:
        """One row per checkpoint and task of questions: dense ones first, then by setting.

        Keys: checkpoint, base, task, SETTING, and `re_run`: it has the very weights of its base.
        """
        return [row for row in self._settings if row["task"] not in self._text_tasks]

    @cached_property
    def readers(self) -> list[Row]:
        """The same for tasks of text, of which only perplexity was asked."""
        return [row for row in self._settings if row["task"] in self._text_tasks]

    @cached_property
    def _text_tasks(self) -> frozenset[str]:
        of_text, of_items = (
            self.outcomes[[f"{probe.name}_status" for probe in PROBES if probe.reads == what]].notna().any(axis=1)
            for what in ("text", "items")
        )
        return frozenset(self.outcomes.loc[of_text, "task"]) - frozenset(self.outcomes.loc[of_items, "task"])

    @cached_property
    def _settings(self) -> list[Row]:
        columns = ["task", "checkpoint", "base", "weights_digest", *SETTING]
        rows: list[Row] = []
        for values in self.outcomes[columns].drop_duplicates(["task", "checkpoint"]).itertuples(index=False, name=None):
            row = {name: None if pd.isna(value) else value for name, value in zip(columns, values, strict=True)}
            if row["base"] == row["checkpoint"]:
                row["base"] = None
            rows.append(row)
        digests = {row["checkpoint"]: row["weights_digest"] for row in rows}
        for row in rows:
            row["re_run"] = row["base"] is not None and digests.get(row["base"]) == row["weights_digest"]
        return sorted(rows, key=_display_order)

    @cached_property
    def compact(self) -> pd.DataFrame:
        """The outcomes in a fixed order as plain columns: numbers and booleans as floats with NaN for null (many small
        selections of nullable columns are slow), and `item`, the number of the item within its task."""
        frame = self.outcomes.sort_values(list(KEY), ignore_index=True)
        columns: dict[str, Any] = {}
        for name, dtype in outcome_types().items():
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
        groups = self.compact.groupby(["checkpoint", "task", "format"], sort=False)
        return {
            (str(checkpoint), str(task), str(form)): _first_seeds(frame)[_part_columns()].reset_index(drop=True)
            for (checkpoint, task, form), frame in groups
        }

    def part(self, checkpoint: str, task: str, form: str) -> pd.DataFrame:
        """One checkpoint's outcomes on one task in one format, one row per item (empty when it was not asked).

        Where a probe was asked under several seeds, these are its outcomes under the run's own.
        """
        return self._by_part.get((checkpoint, task, form), self._no_part)

    def run_seed(self, checkpoint: str, task: str) -> float:
        """The lowest seed that greedy was asked with: a run's own (NaN where greedy was not asked)."""
        return self._run_seeds.get((checkpoint, task), np.nan)

    @cached_property
    def _run_seeds(self) -> Mapping[tuple[str, str], float]:
        greedy = self.compact[self.compact["greedy_status"].notna()]
        groups = greedy.groupby(["checkpoint", "task"], sort=False)["seed"]
        return {(str(checkpoint), str(task)): float(seeds.min()) for (checkpoint, task), seeds in groups}

    @cached_property
    def _no_part(self) -> pd.DataFrame:
        return self.compact.iloc[:0][_part_columns()]

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
        return {}

    @cached_property
    def _languages(self) -> Mapping[str, list[str]]:
        known = self.outcomes[["task", "language"]].drop_duplicates().sort_values("language")
        return {str(task): rows["language"].tolist() for task, rows in known.groupby("task")}

    def languages(self, task: str) -> list[str]:
        return self._languages[task]

    @cached_property
    def formats(self) -> list[str]:
        """The formats that were asked, in the protocol's order."""
        return sorted(self.outcomes["format"].unique().tolist(), key=lambda form: [*FORMATS, form].index(form))


def _part_columns() -> list[str]:
    """The columns of `Inputs.part`."""
    return [*ITEM, *(name for name in outcome_types() if name not in (*KEY, *METADATA))]


def _first_seeds(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per item of one checkpoint, task and format: every probe under the run's own seed, which is the lowest
    that greedy was asked with, or else under the lowest that the probe was asked with."""
    if frame["seed"].nunique() == 1:
        return frame
    own = frame.loc[frame["greedy_status"].notna(), "seed"].min()
    chosen = frame.groupby(list(ITEM))["truncated"].max().reset_index()
    for probe in PROBES:
        asked = frame[frame[f"{probe.name}_status"].notna()]
        seed = own if (asked["seed"] == own).any() else asked["seed"].min()
        first = asked[asked["seed"] == seed]
        columns = [*ITEM, f"{probe.name}_status", f"{probe.name}_why", *probe.columns]
        chosen = chosen.merge(first[columns], on=list(ITEM), how="left")
    return chosen


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

    setting: Row  # as in `Inputs.checkpoints`
    items: pd.DataFrame
    unpaired: Mapping[str, int]  # per language: the items that only one of the two was asked
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

    def counts(self, language: str, *probes: str) -> Row:
        """How many items of a language (or of all) were asked of one side only, or excluded or failed on either."""
        items = self.items if language == ALL else self.items[self.items["language"] == language]
        status = [items[f"{p}_status_{side}"] for p in probes for side in ("dense", "pruned")]
        excluded = np.logical_or.reduce([(each == "excluded").to_numpy() for each in status])
        failed = np.logical_or.reduce([(each == "engine_error").to_numpy() for each in status]) & ~excluded
        unpaired = sum(self.unpaired.values()) if language == ALL else self.unpaired.get(language, 0)
        return {"excluded": int(excluded.sum()), "engine_error": int(failed.sum()), "unpaired": unpaired}


def measured_in_both(items: pd.DataFrame, *probes: str) -> pd.Series:
    """Which rows of a pair's items have all these probes measured in both checkpoints."""
    keep = pd.Series(True, index=items.index)
    for probe in probes:
        for side in ("dense", "pruned"):
            keep &= items[f"{probe}_status_{side}"].isin(MEASURED)
    return keep


def paired(inputs: Inputs, form: str = "open") -> dict[tuple[str, str], Pair]:
    """`pairs` by task and checkpoint."""
    return {(pair.task, pair.checkpoint): pair for pair in pairs(inputs, form)}


def pairs(inputs: Inputs, form: str = "open") -> list[Pair]:
    """Every checkpoint that names a base, joined with it on the items of one format, in display order."""
    if form not in inputs._pairs:
        inputs._pairs[form] = list(_pairs_of(inputs, form))
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
        both = joined["language"].value_counts()
        alone = dense["language"].value_counts().add(pruned["language"].value_counts(), fill_value=0)
        left = alone.sub(2 * both, fill_value=0) if len(dense) and len(pruned) else both
        yield Pair(setting, joined, {str(language): int(count) for language, count in left.items()}, reason)


def slices(frame: pd.DataFrame, languages: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """The pooled rows first, then each language's (empty where it has none)."""
    yield ALL, frame
    for language in languages:
        yield language, frame[frame["language"] == language]


def rate(name: str, count: int, n: int) -> Row:
    """A rate with its Wilson interval; all null when there is nothing to count."""
    low, high = wilson(count, n)
    return {name: count / n if n else None, f"{name}_low": low, f"{name}_high": high}


def difference(inputs: Inputs, task: str, items: pd.DataFrame, values: Floats, name: str) -> Row:
    """The mean of a paired difference (one value per row of `items`) with its bootstrap interval; null without rows."""
    if len(values) == 0:
        return {}
    low, high = inputs.resampler(task).mean_interval(numbers(items), values)
    return {name: float(values.mean()), f"{name}_low": low, f"{name}_high": high}


def language_mean(inputs: Inputs, task: str, items: pd.DataFrame, **values: Floats) -> Row:
    """The unweighted mean over languages of each of `values` (one number per row of `items`), with its bootstrap
    interval: undefined where a language has fewer than two clusters. Null without rows."""
    if items.empty:
        return {}
    resampler, names, languages = inputs.resampler(task), numbers(items), items["language"].to_numpy()
    rows = [np.flatnonzero(languages == language) for language in sorted(set(languages))]
    drawn = [resampler.means(names[here], *(each[here] for each in values.values())) for here in rows]
    known = all(resampler.clusters(names[here]) >= 2 for here in rows)
    row: Row = {}
    for place, (name, each) in enumerate(values.items()):
        row[name] = float(np.mean([each[here].mean() for here in rows]))
        low, high = percentile_interval(nan_mean([draws[place] for draws in drawn])) if known else UNDEFINED
        row |= {f"{name}_low": low, f"{name}_high": high}
    return row


def paired_p(first: Floats, second: Floats) -> float | None:
    """Exact McNemar p of two outcomes (0.0 or 1.0) of the same items; null without items."""
    if len(first) == 0:
        return None
    return mcnemar_exact(int((first > second).sum()), int((second > first).sum()))


def correct_for_many(
    rows: Sequence[Row], family: Sequence[str], p: str = "mcnemar_p", adjusted: str = "holm_p"
) -> None:
    """Fill `adjusted` with Holm's correction of `p` over the checkpoints: the rows that agree in all of `family`."""
    families: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.get(p) is not None:
            families.setdefault(tuple(row[name] for name in family), []).append(row)
    for members in families.values():
        for row, value in zip(members, holm([row[p] for row in members]), strict=True):
            row[adjusted] = value


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
