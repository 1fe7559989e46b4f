"""The inputs of every table: outcomes, the items' clusters, checkpoints, and their comparisons with their bases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd

from evaluator.core.records import FORMATS, METADATA, PRUNING, SERVING, Origin
from evaluator.metrics.columns import Row
from evaluator.metrics.comparability import difference
from evaluator.metrics.intervals import ItemNumbers
from evaluator.probes import PROBES
from evaluator.store.outcomes import KEY, MEASURED, Outcomes, Recent, outcome_types
from evaluator.store.screening import screened_of

ALL = "all"  # the row that pools the languages
MEAN = "mean"  # the row that is the unweighted mean over languages
SIDES = ("dense", "pruned")
ITEM = ("language", "item_id", "item")
_HELD_ROWS = 20_000  # of outcomes, kept in memory after their first use
_HELD_PAIRS = 10_000  # rows of comparisons, kept likewise


@dataclass(frozen=True)
class Subject(Origin):
    """One checkpoint on one task, and how it was pruned (all None for a dense one)."""

    task: str
    re_run: bool = False  # its weights are those of its base

    @property
    def key(self) -> tuple[str, str]:
        return self.task, self.checkpoint

    @property
    def requested(self) -> float | None:
        """The sparsity of its setting. Checkpoints of one setting may have achieved a little more or less."""
        return self.sparsity if self.requested_sparsity is None else self.requested_sparsity

    @property
    def row(self) -> Row:
        """The first columns of a table's row: `columns.SUBJECT`."""
        return {name: getattr(self, name) for name in ("task", "checkpoint", "base", *PRUNING)}

    @property
    def display_order(self) -> tuple[Any, ...]:
        """Dense checkpoints first, then by base and setting."""
        setting = (self.method or "", self.pattern or "", self.requested or 0.0, self.calibration or "")
        return (self.task, self.base is not None, self.base or "", *setting, self.checkpoint)


@dataclass(frozen=True, eq=False)
class Inputs:
    """Outcomes of any number of checkpoints and tasks, in one frame or by checkpoint.

    The rest is optional. `items` has the columns of `Item`; intervals need task, language, item_id and cluster.
    `verdicts` are those of matcher models (the record's key, then the columns of `VerdictRow`). `run` is run.json, with
    the settings of the evaluation. `controls` are matchers' verdicts on control pairs (`ControlRow`). `fit_only`:
    matchers that are unfit by their control pairs have no vote in the panel.
    """

    outcomes: pd.DataFrame | Outcomes
    items: pd.DataFrame | None = None
    verdicts: pd.DataFrame | None = None
    run: Mapping[str, Any] = field(default_factory=dict)
    controls: pd.DataFrame | None = None
    fit_only: bool = False

    @cached_property
    def checkpoints(self) -> list[Subject]:
        """Every checkpoint on every task with questions, in display order."""
        return [each for each in self._subjects if each.task not in self._text_tasks]

    @cached_property
    def readers(self) -> list[Subject]:
        """The same for tasks of text, which have only probes of texts."""
        return [each for each in self._subjects if each.task in self._text_tasks]

    @cached_property
    def _outcomes(self) -> Outcomes:
        return Outcomes(self.outcomes) if isinstance(self.outcomes, pd.DataFrame) else self.outcomes

    @cached_property
    def _text_tasks(self) -> frozenset[str]:
        return self._outcomes.text_tasks

    @cached_property
    def _subjects(self) -> list[Subject]:
        columns = ["task", "checkpoint", "base", "weights_digest", *PRUNING]
        rows: list[Row] = []
        for first in self._outcomes.first:
            row = {name: None if pd.isna(first[name]) else first[name] for name in columns}
            if row["base"] == row["checkpoint"]:
                row["base"] = None
            rows.append(row)
        digests = {row["checkpoint"]: row["weights_digest"] for row in rows}
        subjects = [
            Subject(**row, re_run=row["base"] is not None and digests.get(row["base"]) == row["weights_digest"])
            for row in rows
        ]
        return sorted(subjects, key=lambda each: each.display_order)

    def all_outcomes_of(self, checkpoint: str, task: str) -> pd.DataFrame:
        """One checkpoint's outcomes on one task in every format and under every seed; `item` is an item's number within
        its task."""
        piece, numbers = self._outcomes[checkpoint, task], self._numbers[task]
        items = [numbers[key] for key in zip(piece["language"], piece["item_id"], strict=True)]
        return piece.assign(item=np.asarray(items, dtype=np.int64))

    @cached_property
    def _numbered(self) -> Mapping[str, pd.DataFrame]:
        """The items of each task."""
        return {str(task): items for task, items in self._outcomes.asked.groupby("task")}

    @cached_property
    def _numbers(self) -> Mapping[str, Mapping[tuple[str, str], int]]:
        """Each item's number within its task, by language and item id."""
        return {
            task: dict(zip(zip(items["language"], items["item_id"], strict=True), items["item"], strict=True))
            for task, items in self._numbered.items()
        }

    @cached_property
    def _in_format(self) -> Recent[tuple[str, str, str]]:
        return Recent(self._read, _HELD_ROWS)

    def _read(self, key: tuple[str, str, str]) -> pd.DataFrame:
        checkpoint, task, format = key
        every = self.all_outcomes_of(checkpoint, task)
        return _first_seeds(every[every["format"] == format])[_outcome_columns()].reset_index(drop=True)

    def outcomes_of(self, checkpoint: str, task: str, format: str = "open") -> pd.DataFrame:
        """One checkpoint's outcomes on one task in one format, one row per item (empty without an evaluation in that
        format).

        If a probe ran under several seeds, these are its outcomes under the run's own.
        """
        asked = format in self._outcomes.formats_of((checkpoint, task))
        return self._in_format[checkpoint, task, format] if asked else self._no_outcomes

    @cached_property
    def _no_outcomes(self) -> pd.DataFrame:
        return self._outcomes["", ""].assign(item=pd.Series(dtype="int64"))[_outcome_columns()]

    def run_seed(self, checkpoint: str, task: str) -> float:
        """The lowest seed of the greedy probe: a run's own (NaN if greedy did not run)."""
        every = self._outcomes[checkpoint, task]
        return float(every.loc[every["greedy_status"].notna(), "seed"].min())

    @cached_property
    def _contexts(self) -> Mapping[str, ItemNumbers]:
        """The number of each item's context, by the item's number, of each task."""
        return {
            task: pd.factorize(np.array(self._clusters_of(task, asked)))[0] for task, asked in self._numbered.items()
        }

    def _clusters_of(self, task: str, asked: pd.DataFrame) -> list[str]:
        """Each item's cluster; an item that is not in `items` is its own cluster."""
        keys = list(zip(asked["language"], asked["item_id"], strict=True))
        if self.items is None or self.items.empty:
            return [f"item {item_id}" for _, item_id in keys]
        described = self.items[self.items["task"] == task]
        names = zip(described["language"], described["item_id"], strict=True)
        cluster = dict(zip(names, described["cluster"], strict=True))
        return [f"cluster {cluster[key]}" if key in cluster else f"item {key[1]}" for key in keys]

    def contexts(self, task: str, items: ItemNumbers) -> ItemNumbers:
        """The number of each item's context within the task. Items of one context depend on each other, also across
        languages."""
        return self._contexts[task][items]

    def asked(self, task: str) -> pd.DataFrame:
        """Every item of a task that any checkpoint has a record for: `language`, `item_id` and its number, `item`."""
        return self._numbered[task]

    def contexts_of(self, task: str, items: pd.DataFrame) -> ItemNumbers:
        """The context numbers of a frame's rows."""
        return self.contexts(task, np.asarray(items["item"], dtype=np.intp))

    @cached_property
    def _languages(self) -> Mapping[str, list[str]]:
        return {task: sorted(items["language"].unique()) for task, items in self._numbered.items()}

    def languages(self, task: str) -> list[str]:
        return self._languages[task]

    @cached_property
    def formats(self) -> list[str]:
        """The evaluated formats, in the protocol's order."""
        return sorted(self._outcomes.formats, key=lambda format: [*FORMATS, format].index(format))

    def comparisons(self, format: str = "open") -> dict[tuple[str, str], Comparison]:
        """Every checkpoint that names a base, compared with it in one format; by task and checkpoint, in display
        order."""
        if format not in self._comparisons:
            self._comparisons[format] = {each.subject.key: each for each in self._compared(format)}
        return self._comparisons[format]

    @cached_property
    def _comparisons(self) -> dict[str, dict[tuple[str, str], Comparison]]:
        return {}

    @cached_property
    def decided_early(self) -> Mapping[tuple[str, str], str]:
        """The note on each checkpoint that has records of some items only, by task and checkpoint."""
        return {
            (each.task, each.checkpoint): f"decided early: evaluated on {each.asked} of {each.items} items"
            for each in screened_of(self.run)
            if each.early
        }

    def could_differ(self, task: str, one: str, other: str | None) -> bool:
        """Whether the models can cause a difference of two checkpoints on a task: not if the weights are the same and
        the evaluations alike. Holm's families leave out comparisons that could not differ."""
        if other is None or self._weights.get((task, one)) != self._weights.get((task, other)):
            return True
        return self.incomparable.get((task, one)) != self.incomparable.get((task, other))

    @cached_property
    def _weights(self) -> Mapping[tuple[str, str], str]:
        return {each.key: each.weights_digest for each in self._subjects}

    @cached_property
    def incomparable(self) -> Mapping[tuple[str, str], str]:
        """Why checkpoints cannot be compared with their bases, by task and checkpoint; comparable ones are left out."""
        return self._incomparable(drawn=False)

    @cached_property
    def incomparable_drawn(self) -> Mapping[tuple[str, str], str]:
        """The same, for comparisons of beams and samples."""
        return self._incomparable(drawn=True)

    def _incomparable(self, *, drawn: bool) -> dict[tuple[str, str], str]:
        found = {
            key: difference(each.outcomes, self.run, each.subject.base or "", key, drawn=drawn)
            for key, each in self.comparisons().items()
        }
        return {key: why for key, why in found.items() if why}

    @cached_property
    def _joined(self) -> Recent[tuple[str, str, str, str]]:
        return Recent(self._join, _HELD_PAIRS)

    def _join(self, key: tuple[str, str, str, str]) -> pd.DataFrame:
        """A checkpoint's outcomes beside its base's."""
        name, base, task, format = key
        pruned, dense = self.outcomes_of(name, task, format), self.outcomes_of(base, task, format)
        _, here, there = np.intersect1d(pruned["item"], dense["item"], assume_unique=True, return_indices=True)
        own, beside = pruned.take(here), dense.take(there).iloc[:, len(ITEM) :]
        own.columns = pd.Index([*ITEM, *(f"{name}_pruned" for name in pruned.columns[len(ITEM) :])])
        beside.columns = pd.Index([f"{name}_dense" for name in beside.columns])
        own.index = beside.index = pd.RangeIndex(len(own))
        return pd.concat([own, beside], axis=1)

    def _compared(self, format: str) -> Iterator[Comparison]:
        present = {subject.key for subject in self.checkpoints}
        for subject in self.checkpoints:
            base, task, name = subject.base, subject.task, subject.checkpoint
            if base is None:
                continue
            load = partial(self._joined.__getitem__, (name, base, task, format))
            reason = None
            if (task, base) not in present:
                reason = f"base {base!r} has no records of task {task!r}: evaluate it into the same run"
            elif load().empty:
                reason = f"no item in format {format!r} is common to {name!r} and its base {base!r}"
            dense, pruned = self.outcomes_of(base, task, format), self.outcomes_of(name, task, format)
            both = load()["language"].value_counts()
            alone = dense["language"].value_counts().add(pruned["language"].value_counts(), fill_value=0)
            left = alone.sub(2 * both, fill_value=0) if len(dense) and len(pruned) else both
            unpaired = {str(language): int(count) for language, count in left.items()}
            yield Comparison(subject, unpaired, [] if reason else self.languages(task), reason, load)


def _outcome_columns() -> list[str]:
    """The columns of `Inputs.outcomes_of`."""
    return [*ITEM, *(name for name in outcome_types() if name not in (*KEY, *METADATA))]


def _first_seeds(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per item of one checkpoint, task and format. Every probe is read under the run's own seed (greedy's
    lowest). A probe without outcomes under that seed is read under its own lowest seed."""
    if frame["seed"].nunique() <= 1:
        return frame
    own = frame.loc[frame["greedy_status"].notna(), "seed"].min()
    chosen = frame.groupby(list(ITEM)).agg({"truncated": "max", **dict.fromkeys(SERVING, "first")}).reset_index()
    for probe in PROBES:
        asked = frame[frame[f"{probe.name}_status"].notna()]
        seed = own if (asked["seed"] == own).any() else asked["seed"].min()
        first = asked[asked["seed"] == seed]
        columns = [*ITEM, f"{probe.name}_status", f"{probe.name}_why", *probe.columns]
        chosen = chosen.merge(first[columns], on=list(ITEM), how="left")
    return chosen


@dataclass(frozen=True, eq=False)
class Comparison:
    """A checkpoint beside its base: a row for each item evaluated on both, with columns `<name>_dense` and
    `<name>_pruned`. If there are no rows, `reason` is the cause."""

    subject: Subject
    unpaired: Mapping[str, int]  # per language: the items with outcomes of only one of the two
    languages: Sequence[str]  # with rows of their own in tables; none if there is a reason
    reason: str | None
    load: Callable[[], pd.DataFrame]

    @property
    def outcomes(self) -> pd.DataFrame:
        return self.load()

    def of_language(self, language: str) -> pd.DataFrame:
        """The outcomes of one language, or of all."""
        return in_language(self.outcomes, language)

    def measured(self, *probes: str, language: str = ALL) -> pd.DataFrame:
        """The outcomes of the items on which these probes were measured in both checkpoints."""
        return in_language(measured_in_both(self.outcomes, *probes), language)

    def tells_of(self, probe: str) -> bool:
        """Whether the checkpoint ran the probe, or a reason prevents every comparison."""
        return self.reason is not None or bool(self.outcomes[f"{probe}_status_pruned"].notna().any())

    def counts(self, language: str, *probes: str) -> Row:
        """How many items of a language (or of all) have only one side, and how many were excluded or failed on either
        side."""
        items = self.of_language(language)
        status = [items[f"{probe}_status_{side}"] for probe in probes for side in SIDES]
        excluded = np.logical_or.reduce([(each == "excluded").to_numpy() for each in status])
        failed = np.logical_or.reduce([(each == "engine_error").to_numpy() for each in status]) & ~excluded
        unpaired = sum(self.unpaired.values()) if language == ALL else self.unpaired.get(language, 0)
        return {"excluded": int(excluded.sum()), "engine_error": int(failed.sum()), "unpaired": unpaired}


def measured_in_both(outcomes: pd.DataFrame, *probes: str) -> pd.DataFrame:
    """The rows of a comparison's outcomes with all these probes measured in both checkpoints."""
    keep = np.ones(len(outcomes), dtype=bool)
    for probe in probes:
        for side in SIDES:
            keep &= outcomes[f"{probe}_status_{side}"].isin(MEASURED).to_numpy()
    return outcomes if keep.all() else outcomes[keep]


def in_language(frame: pd.DataFrame, language: str) -> pd.DataFrame:
    """The rows of one language, or with ALL every row."""
    if language == ALL:
        return frame
    rows = np.flatnonzero((frame["language"] == language).to_numpy(bool))
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:  # contiguous, as in outcomes: a view of a hundred columns
        return frame.iloc[rows[0] : rows[-1] + 1]
    return frame.iloc[rows]


def rows_where(frame: pd.DataFrame, equal: Mapping[str, object]) -> pd.DataFrame:
    """The rows that equal `equal` in every column that it names."""
    for name, value in equal.items():
        frame = frame[frame[name] == value]
    return frame


def grouped(frame: pd.DataFrame, *names: str) -> Callable[..., pd.DataFrame]:
    """A lookup of the rows with these values in these columns (two or more); empty for unknown values."""
    rows = frame.groupby(list(names), sort=False).indices
    nothing = np.empty(0, dtype=np.intp)
    return lambda *values: frame.iloc[rows.get(values, nothing)]


def slices(frame: pd.DataFrame, languages: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """The pooled rows first, then each language's (may be empty)."""
    for language in (ALL, *languages):
        yield language, in_language(frame, language)
