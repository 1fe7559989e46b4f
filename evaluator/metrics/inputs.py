"""The inputs of every table: outcomes, the items' clusters, checkpoints, and their
comparisons with their bases.

The difference of a checkpoint and its base is damage only if nothing else differs.
These must be equal on both sides (`difference`):

- for each item: the engine, its version and dtype, and the length of the open prompt
  (another template or tokenizer);
- in run.json: the settings of the task, including the seed, and how each checkpoint's
  options were scored;
- for comparisons of beams or samples: how many there are, and how they were drawn.

Checkpoints with quantised activations are comparable, but have their own noise floor. A
note on their rows gives it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from evaluator.core.errors import mapping_at, rows_at
from evaluator.core.records import (
    CONTEXT,
    FORMATS,
    IDENTITY,
    METADATA,
    PRUNING,
    SERVING,
    Origin,
)
from evaluator.metrics.columns import Row
from evaluator.metrics.intervals import ItemNumbers
from evaluator.probes import PROBES
from evaluator.store.outcomes import (
    KEY,
    MEASURED,
    Outcomes,
    Recent,
    columns_of,
    outcome_types,
)
from evaluator.store.run_json import screened_of
from evaluator.tasks.loading import NO_LANGUAGES

# the row that pools the languages; the unweighted mean over them
ALL, MEAN = NO_LANGUAGES
SIDES = ("dense", "pruned")
ITEM = ("language", "item_id", "item")
_HELD_ROWS = 20_000  # of outcomes, kept in memory after their first use
_HELD_PAIRS = 10_000  # rows of comparisons, kept likewise


_IDENTITY_OF = attrgetter(*IDENTITY)


class Subject(Origin, frozen=True):
    """One checkpoint on one task, and how it was pruned (all None for a dense one)."""

    task: str
    # its weights, its configuration and its cache are those of its base
    re_run: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.task, self.checkpoint

    @property
    def requested(self) -> float | None:
        """The sparsity of its setting. Checkpoints of one setting may have achieved
        a little more or less."""
        return (
            self.sparsity
            if self.requested_sparsity is None
            else self.requested_sparsity
        )

    @property
    def row(self) -> Row:
        """The first columns of a table's row: `columns.SUBJECT`."""
        return {
            name: getattr(self, name)
            for name in ("task", "checkpoint", "base", *PRUNING)
        }


class Inputs:
    """Outcomes of any number of checkpoints and tasks, in one frame or by checkpoint.

    The rest is optional. `items` has the columns of `Item`; intervals need task,
    language, item_id and cluster. `verdicts` are those of matcher models (the record's
    key, then the columns of `VerdictRow`), `controls` theirs on control pairs
    (`ControlRow`). `run` is run.json. `fit_only`: unfit matchers have no vote in the
    panel.

    - `checkpoints`: every checkpoint on every task with questions, in display order.
      `readers`: the same for texts.
    - `formats`: the evaluated formats, in the protocol's order.
    - `decided_early`: the note on each checkpoint that has records of some items only,
      by task and checkpoint.
    """

    def __init__(
        self,
        outcomes: pd.DataFrame | Outcomes,
        items: pd.DataFrame | None = None,
        verdicts: pd.DataFrame | None = None,
        run: Mapping[str, Any] | None = None,
        controls: pd.DataFrame | None = None,
        fit_only: bool = False,
    ) -> None:
        self.items, self.verdicts, self.controls, self.fit_only = (
            items,
            verdicts,
            controls,
            fit_only,
        )
        self.run = run or {}
        self._outcomes = (
            Outcomes(outcomes) if isinstance(outcomes, pd.DataFrame) else outcomes
        )
        subjects = _subjects(self._outcomes.first)
        texts = self._outcomes.text_tasks
        self.checkpoints = [each for each in subjects if each.task not in texts]
        self.readers = [each for each in subjects if each.task in texts]
        formats = set().union(*self._outcomes.formats.values())
        self.formats = sorted(
            formats, key=lambda format: [*FORMATS, format].index(format)
        )
        self.decided_early = {
            (
                each.task,
                each.checkpoint,
            ): f"decided early: evaluated on {each.asked} of {each.items} items"
            for each in screened_of(self.run)
            if each.early
        }
        self._identity = {each.key: _IDENTITY_OF(each) for each in subjects}
        self._asked = {
            str(task): asked for task, asked in self._outcomes.asked.groupby("task")
        }
        # Each item's number within its task, and the number of its context by the
        # item's number.
        self._numbers: dict[str, dict[tuple[str, str], int]] = {}
        self._contexts: dict[str, ItemNumbers] = {}
        # by task: what each item asked, where it is known
        self.digests: dict[str, dict[tuple[str, str], str]] = {}
        for task, asked in self._asked.items():
            keys = list(zip(asked["language"], asked["item_id"], strict=True))
            self._numbers[task] = dict(zip(keys, asked["item"], strict=True))
            cluster: dict[tuple[str, str], object] = {}
            if items is not None and not items.empty:
                own = items[items["task"] == task]
                named = list(zip(own["language"], own["item_id"], strict=True))
                cluster = dict(zip(named, own["cluster"], strict=True))
                if "digest" in own:
                    self.digests[task] = {
                        key: each
                        for key, each in zip(named, own["digest"], strict=True)
                        if each
                    }
            # An item that is not in `items` is its own cluster.
            names = [
                f"cluster {cluster[key]}" if key in cluster else f"item {key[1]}"
                for key in keys
            ]
            self._contexts[task] = pd.factorize(np.array(names))[0]
        self._columns = [
            *ITEM,
            *(name for name in outcome_types() if name not in (*KEY, *METADATA)),
        ]
        self._no_outcomes = self._outcomes["", ""].assign(
            item=pd.Series(dtype="int64")
        )[self._columns]
        self._in_format = Recent(self._read, _HELD_ROWS)
        self._joined = Recent(self._join, _HELD_PAIRS)
        self._comparisons: dict[str, dict[tuple[str, str], Comparison]] = {}

    def all_outcomes_of(self, checkpoint: str, task: str) -> pd.DataFrame:
        """One checkpoint's outcomes on one task, all formats and seeds; `item`: an
        item's number within its task."""
        piece, numbers = self._outcomes[checkpoint, task], self._numbers[task]
        items = [
            numbers[key]
            for key in zip(piece["language"], piece["item_id"], strict=True)
        ]
        return piece.assign(item=np.asarray(items, dtype=np.int64))

    def outcomes_of(
        self, checkpoint: str, task: str, format: str = "open"
    ) -> pd.DataFrame:
        """A checkpoint's outcomes, of the run's own seed, on a task in a format: a
        row per item, or empty."""
        if format in self._outcomes.formats.get((checkpoint, task), ()):
            return self._in_format[checkpoint, task, format]
        return self._no_outcomes

    def _read(self, key: tuple[str, str, str]) -> pd.DataFrame:
        """A row per item. Each probe has the run's seed (greedy's lowest), or else
        its own lowest seed."""
        checkpoint, task, format = key
        every = self.all_outcomes_of(checkpoint, task)
        frame = every[every["format"] == format]
        if frame["seed"].nunique() <= 1:
            return frame[self._columns].reset_index(drop=True)
        own = frame.loc[frame["greedy_status"].notna(), "seed"].min()
        chosen = (
            frame.groupby(list(ITEM))
            .agg({"truncated": "max", **dict.fromkeys((*SERVING, *CONTEXT), "first")})
            .reset_index()
        )
        for probe in PROBES:
            asked = frame[frame[f"{probe.name}_status"].notna()]
            seed = own if (asked["seed"] == own).any() else asked["seed"].min()
            columns = [
                *ITEM,
                f"{probe.name}_status",
                f"{probe.name}_why",
                *columns_of(probe),
            ]
            chosen = chosen.merge(
                asked.loc[asked["seed"] == seed, columns], on=list(ITEM), how="left"
            )
        return chosen[self._columns].reset_index(drop=True)

    def run_seed(self, checkpoint: str, task: str) -> float:
        """The lowest seed of the greedy probe: a run's own (NaN if greedy did not
        run)."""
        every = self._outcomes[checkpoint, task]
        return float(every.loc[every["greedy_status"].notna(), "seed"].min())

    def asked(self, task: str) -> pd.DataFrame:
        """Every item of a task that any checkpoint has a record for: `language`,
        `item_id` and its number, `item`."""
        return self._asked[task]

    def languages(self, task: str) -> list[str]:
        return sorted(self._asked[task]["language"].unique())

    def contexts(self, task: str, items: ItemNumbers) -> ItemNumbers:
        """The number of each item's context within the task. Its items depend on
        each other, across languages too."""
        return self._contexts[task][items]

    def contexts_of(self, task: str, items: pd.DataFrame) -> ItemNumbers:
        return self.contexts(task, np.asarray(items["item"], dtype=np.intp))

    def comparisons(self, format: str = "open") -> "dict[tuple[str, str], Comparison]":
        """Every checkpoint with a base beside it, in one format; by task and
        checkpoint, in display order."""
        if format not in self._comparisons:
            self._comparisons[format] = {
                each.key: self._compared(each, each.base, format)
                for each in self.checkpoints
                if each.base is not None
            }
        return self._comparisons[format]

    def could_differ(self, task: str, one: str, other: str | None) -> bool:
        """Whether the models can cause a difference of two checkpoints on a task: not
        if the models are the same and the evaluations alike. Holm's families leave out
        comparisons that could not differ.
        """
        if other is None or self._identity.get((task, one)) != self._identity.get(
            (task, other)
        ):
            return True
        return self.incomparable.get((task, one)) != self.incomparable.get(
            (task, other)
        )

    @cached_property
    def incomparable(self) -> Mapping[tuple[str, str], str]:
        """Why checkpoints cannot be compared with their bases, by task and
        checkpoint; comparable ones are left out."""
        return self._incomparable(drawn=False)

    @cached_property
    def incomparable_drawn(self) -> Mapping[tuple[str, str], str]:
        """The same, for comparisons of beams and samples."""
        return self._incomparable(drawn=True)

    def _incomparable(self, *, drawn: bool) -> dict[tuple[str, str], str]:
        found = {
            key: difference(each, self.run, drawn=drawn)
            for key, each in self.comparisons().items()
        }
        return {key: why for key, why in found.items() if why}

    def _join(self, key: tuple[str, str, str, str]) -> pd.DataFrame:
        """A checkpoint's outcomes beside its base's."""
        name, base, task, format = key
        pruned, dense = (
            self.outcomes_of(name, task, format),
            self.outcomes_of(base, task, format),
        )
        _, here, there = np.intersect1d(
            pruned["item"], dense["item"], assume_unique=True, return_indices=True
        )
        own, beside = pruned.take(here), dense.take(there).iloc[:, len(ITEM) :]
        own.columns = pd.Index(
            [*ITEM, *(f"{name}_pruned" for name in pruned.columns[len(ITEM) :])]
        )
        beside.columns = pd.Index([f"{name}_dense" for name in beside.columns])
        own.index = beside.index = pd.RangeIndex(len(own))
        return pd.concat([own, beside], axis=1)

    def _compared(self, subject: Subject, base: str, format: str) -> "Comparison":
        task, name = subject.key
        load = partial(self._joined.__getitem__, (name, base, task, format))
        both = load()["language"].value_counts()
        reason = None
        if (task, base) not in self._identity:
            reason = (
                f"base {base!r} has no records of task {task!r}: evaluate it into the"
                " same run"
            )
        elif both.empty:
            reason = (
                f"no item in format {format!r} is common to {name!r} and its base"
                f" {base!r}"
            )
        dense, pruned = (
            self.outcomes_of(base, task, format),
            self.outcomes_of(name, task, format),
        )
        alone = (
            dense["language"]
            .value_counts()
            .add(pruned["language"].value_counts(), fill_value=0)
        )
        left = alone.sub(2 * both, fill_value=0) if len(dense) and len(pruned) else both
        unpaired = {str(language): int(count) for language, count in left.items()}
        return Comparison(
            subject, unpaired, [] if reason else self.languages(task), reason, load
        )


def _subjects(first: Sequence[Mapping[str, Any]]) -> list[Subject]:
    """In display order: dense ones, then by base and setting. `first`: a first row
    of each checkpoint and task."""
    columns = ["task", "checkpoint", *METADATA]
    rows: list[Row] = [
        {name: None if pd.isna(each[name]) else each[name] for name in columns}
        for each in first
    ]
    for row in rows:
        if row["base"] == row["checkpoint"]:
            row["base"] = None
        row["kv_cache"] = row["kv_cache"] or "auto"
    subjects = [Subject(**row) for row in rows]
    served: dict[str | None, Any] = {
        each.checkpoint: _IDENTITY_OF(each) for each in subjects
    }
    subjects = [
        msgspec.structs.replace(
            each, re_run=served.get(each.base) == _IDENTITY_OF(each)
        )
        for each in subjects
    ]

    def order(each: Subject) -> tuple[Any, ...]:
        setting = (
            each.method or "",
            each.pattern or "",
            each.requested or 0.0,
            each.calibration or "",
        )
        return (
            each.task,
            each.base is not None,
            each.base or "",
            *setting,
            each.checkpoint,
        )

    return sorted(subjects, key=order)


@dataclass(frozen=True, eq=False)
class Comparison:
    """A row for each item evaluated on both, with columns `<name>_dense` and
    `<name>_pruned`; or `reason` why none."""

    subject: Subject
    # per language: the items with outcomes of only one of the two
    unpaired: Mapping[str, int]
    # with rows of their own in tables; none if there is a reason
    languages: Sequence[str]
    reason: str | None
    load: Callable[[], pd.DataFrame]

    @property
    def outcomes(self) -> pd.DataFrame:
        return self.load()

    def measured(self, *probes: str, language: str = ALL) -> pd.DataFrame:
        """The outcomes of the items on which these probes were measured in both
        checkpoints."""
        items = in_language(self.load(), language)
        status = [items[f"{probe}_status_{side}"] for probe in probes for side in SIDES]
        keep = np.logical_and.reduce(
            [each.isin(MEASURED).to_numpy() for each in status]
        )
        return items if keep.all() else items[keep]

    def tells_of(self, probe: str) -> bool:
        """Whether the checkpoint ran the probe, or a reason prevents every
        comparison."""
        return self.reason is not None or bool(
            self.load()[f"{probe}_status_pruned"].notna().any()
        )

    def counts(self, language: str, *probes: str) -> Row:
        """How many items of a language (or of all) have one side only, or were
        excluded or failed on either."""
        items = in_language(self.load(), language)
        status = [items[f"{probe}_status_{side}"] for probe in probes for side in SIDES]
        excluded = np.logical_or.reduce(
            [(each == "excluded").to_numpy() for each in status]
        )
        failed = (
            np.logical_or.reduce(
                [(each == "engine_error").to_numpy() for each in status]
            )
            & ~excluded
        )
        unpaired = (
            sum(self.unpaired.values())
            if language == ALL
            else self.unpaired.get(language, 0)
        )
        return {
            "excluded": int(excluded.sum()),
            "engine_error": int(failed.sum()),
            "unpaired": unpaired,
        }


def in_language(frame: pd.DataFrame, language: str) -> pd.DataFrame:
    if language == ALL:
        return frame
    rows = np.flatnonzero((frame["language"] == language).to_numpy(bool))
    # contiguous, as in outcomes: a view of a hundred columns
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return frame.iloc[rows[0] : rows[-1] + 1]
    return frame.iloc[rows]


def rows_where(frame: pd.DataFrame, equal: Mapping[str, object]) -> pd.DataFrame:
    """The rows that equal `equal` in every column that it names."""
    for name, value in equal.items():
        frame = frame[frame[name] == value]
    return frame


def slices(
    frame: pd.DataFrame, languages: Sequence[str]
) -> Iterator[tuple[str, pd.DataFrame]]:
    """The pooled rows first, then each language's (may be empty)."""
    for language in (ALL, *languages):
        yield language, in_language(frame, language)


# Outcome columns that must be equal on both sides of an item, and the name of a
# difference for people.
_ALIKE = {
    **{name: name.replace("_", " ") for name in SERVING},
    "greedy_prompt_tokens": "prompt tokens (another template or tokenizer)",
    "greedy_prompt_digest": "prompts (another template, date or tokenizer)",
}
_ALIKE_DRAWN = {"beams": "beams", "samples": "samples"}
# These settings select probes, formats and items; they do not change an answer.
# `_DRAWN`: for drawn answers alone.
_WHAT = ("probes", "formats", "name", "languages", "items", "window")
_DRAWN = ("beam_width", "samples", "sample_seeds", "top_p", "temperature")
# Patterns of records whose scheme quantises activations: W8A8, W4A8, FP8; not FP8
# W8A16.
_ACTIVATIONS = re.compile(r"\bW\d+A[48]\b|\bFP8\b(?! W\d+A16)")
ROUNDED = (
    "quantised activations: rounding alone moves an option's log-likelihood, by .9 nats"
    " in a test"
)


def difference(compared: Comparison, run: Mapping[str, Any], *, drawn: bool) -> str:
    """How a checkpoint's evaluation differs from its base's; empty: it does not.
    `drawn`: also for drawn answers."""
    task, checkpoint = compared.subject.key
    base, items = compared.subject.base, compared.outcomes
    differing: list[tuple[str, Any, Any, str]] = []
    for name, what in (_ALIKE | (_ALIKE_DRAWN if drawn else {})).items():
        dense, pruned = items[f"{name}_dense"], items[f"{name}_pruned"]
        differ = dense.notna() & pruned.notna() & (dense != pruned)
        if differ.any():
            first = int(np.flatnonzero(differ)[0])
            some = (
                "" if differ.all() else f" on {int(differ.sum())} of {len(items)} items"
            )
            differing.append((what, dense.iloc[first], pruned.iloc[first], some))
    theirs, own = (settings_of(run, name, task) for name in (base, checkpoint))
    shared = sorted(theirs.keys() & own.keys() - {*_WHAT, *(() if drawn else _DRAWN)})
    differing += [
        (name, theirs[name], own[name], "")
        for name in shared
        if theirs[name] != own[name]
    ]
    found = []
    for what, *both, some in differing:
        one, other = (
            f"{value:g}" if isinstance(value, float) else str(value) for value in both
        )
        found.append(f"{what} {one} against {other}{some}")
    base_ways, own_ways = (scoring_of(run, name) for name in (base, checkpoint))
    if base_ways and own_ways and base_ways != own_ways:
        found.append(
            f"scoring {' and '.join(base_ways)} against {' and '.join(own_ways)}"
        )
    return f"not comparable with the base: {', '.join(found)}" if found else ""


def rounded_activations(pattern: str | None) -> str | None:
    """The note on quantised activations, by the `pattern` of a checkpoint's records;
    None for any other."""
    return ROUNDED if pattern is not None and _ACTIVATIONS.search(pattern) else None


def settings_of(
    run: Mapping[str, Any], checkpoint: str | None, task: str
) -> Mapping[str, Any]:
    """The settings in run.json under which a checkpoint was evaluated on a task; empty
    if there are none. A run without the setting `options` drew distractors as `any`
    does, and one without `grading` graded by the paper's rule.
    """
    found = mapping_at(run, "identity", "task_settings", checkpoint, task)
    return {"options": "any", "grading": "paper", **found} if found else {}


def scoring_of(run: Mapping[str, Any], checkpoint: str | None) -> list[str]:
    """How engines scored this checkpoint's options: the names of all methods."""
    rows = rows_at(run, "engine_stats")
    return sorted(
        {
            str(row["scoring"])
            for row in rows
            if row.get("checkpoint") == checkpoint and row.get("scoring")
        }
    )
