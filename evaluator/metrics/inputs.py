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

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import msgspec
import numpy as np
import pandas as pd

from evaluator.checkpoints.quantisation import ROUNDED_ACTIVATIONS
from evaluator.core.controls import MARK
from evaluator.core.errors import Document, mapping_at, rows_at
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
from evaluator.metrics.exclusions import all_measured, left_out_of
from evaluator.probes import PROBES
from evaluator.probes.base import Probe
from evaluator.store.outcomes import (
    KEY,
    Outcomes,
    Recent,
    chosen_seed,
    columns_of,
    outcome_types,
    over_seeds,
)
from evaluator.tasks.loading import NO_LANGUAGES

# the row that pools the languages; the unweighted mean over them
ALL, MEAN = NO_LANGUAGES
Key = tuple[str, str]  # task, checkpoint
SIDES = ("dense", "pruned")
# An item's number within its task, and the number of its context: items of one
# context depend on each other, across languages too.
ITEM = ("language", "item_id", "item", "context")
_HELD_ROWS = 600_000  # a kilobyte each: all tables pass over all checkpoints
_HELD_PAIRS = 10_000  # rows of comparisons, kept in memory after their first use


_IDENTITY_OF = attrgetter(*IDENTITY)


class Subject(Origin, frozen=True):
    """One checkpoint on one task, and how it was pruned (all None for a dense one)."""

    task: str
    # its weights, its configuration and its cache are those of its base
    re_run: bool = False

    @property
    def key(self) -> Key:
        return self.task, self.checkpoint

    @property
    def requested(self) -> float | None:
        """The sparsity of its setting. Checkpoints of one setting may have achieved
        a little more or less."""
        asked = self.requested_sparsity
        return self.sparsity if asked is None else asked

    @property
    def row(self) -> Row:
        """The first columns of a table's row: `columns.SUBJECT`."""
        names = ("task", "checkpoint", "base", *PRUNING)
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Part:
    """A checkpoint's outcomes in one language of a task, or in all of them."""

    subject: Subject
    language: str
    items: pd.DataFrame
    comparison: "Comparison | None" = None

    @property
    def compared(self) -> "Comparison":
        """The comparison of a part that has one."""
        assert self.comparison is not None
        return self.comparison

    @property
    def row(self) -> Row:
        """The first columns of a table's row: `columns.BY_LANGUAGE`."""
        return self.subject.row | {"language": self.language}


class Inputs:
    """Outcomes of any number of checkpoints and tasks, in one frame or by checkpoint.

    The rest is optional. `items` has the columns of `Item`; intervals need task,
    language, item_id and cluster. `verdicts` are those of matcher models (the record's
    key, then the columns of `VerdictRow`), `controls` theirs on control pairs. `run` is
    run.json.

    - `checkpoints`: every checkpoint on every task with questions, in display order.
      `readers`: the same for texts. `once_more`: the checkpoints that are controls
      (`evaluator.core.controls`), which neither of the two has.
    - `formats`: the evaluated formats, in the protocol's order.
    - `notes`: on records that no table can count.
    """

    notes: tuple[str, ...] = ()

    def __init__(
        self,
        outcomes: pd.DataFrame | Outcomes,
        items: pd.DataFrame | None = None,
        verdicts: pd.DataFrame | None = None,
        run: Document | None = None,
        controls: pd.DataFrame | None = None,
    ) -> None:
        self.items, self.verdicts, self.controls = items, verdicts, controls
        self.run = run or {}
        if isinstance(outcomes, pd.DataFrame):
            outcomes = Outcomes(outcomes)
        self._outcomes = outcomes
        subjects = _subjects(outcomes.first, list(mapping_at(self.run, "planned")))
        texts = outcomes.text_tasks
        results = [each for each in subjects if MARK not in each.checkpoint]
        self.checkpoints = [each for each in results if each.task not in texts]
        self.readers = [each for each in results if each.task in texts]
        self.once_more = [each for each in subjects if MARK in each.checkpoint]
        formats = set().union(*outcomes.formats.values())
        known = [format for format in FORMATS if format in formats]
        self.formats = [*known, *sorted(formats.difference(known))]
        left_out = {*KEY, *METADATA}
        own = [name for name in outcome_types() if name not in left_out]
        self._columns = [*ITEM, "seeds", *own]
        self._identity = {each.key: _IDENTITY_OF(each) for each in subjects}
        self._asked = _asked_items(outcomes.asked, items)
        self._in_format = Recent(self._read, _HELD_ROWS)
        self._joined = Recent(self._join, _HELD_PAIRS)
        self._comparisons: dict[str, dict[Key, Comparison]] = {}

    def all_outcomes_of(self, checkpoint: str, task: str) -> pd.DataFrame:
        """One checkpoint's outcomes on one task, all formats and seeds, with the
        numbers of item and context."""
        outcomes = self._outcomes[checkpoint, task]
        if outcomes.empty:
            return outcomes.assign(item=np.arange(0), context=np.arange(0))
        asked = self._asked[task]
        key = ["language", "item_id"]
        keys = pd.MultiIndex.from_frame(asked[key])
        numbers = keys.get_indexer(pd.MultiIndex.from_frame(outcomes[key]))
        contexts = asked["context"].to_numpy()[numbers]
        return outcomes.assign(item=numbers, context=contexts)

    def outcomes_of(
        self, checkpoint: str, task: str, format: str = "open"
    ) -> pd.DataFrame:
        """A checkpoint's outcomes on a task in a format: a row per item with all its
        seeds, or empty."""
        if format in self._outcomes.formats.get((checkpoint, task), ()):
            return self._in_format[checkpoint, task, format]
        return self._nothing

    @cached_property
    def _nothing(self) -> pd.DataFrame:
        return self.all_outcomes_of("", "").reindex(columns=self._columns)

    def _read(self, key: tuple[str, str, str]) -> pd.DataFrame:
        """A row per item: over all `seeds` of a probe that draws (null: its only
        one). Any other has the run's seed (greedy's lowest), or else its own lowest seed."""
        checkpoint, task, format = key
        every = self.all_outcomes_of(checkpoint, task)
        frame = every[every["format"] == format]
        if frame["seed"].nunique() <= 1:
            frame = frame.reindex(columns=self._columns)
            return frame.reset_index(drop=True).copy()
        own = frame.loc[frame["greedy_status"].notna(), "seed"].min()
        shared = dict.fromkeys((*SERVING, *CONTEXT), "first") | {"truncated": "max"}
        chosen = frame.groupby([*ITEM]).agg(shared).reset_index()
        drawn = [f"{probe.name}_status" for probe in PROBES if probe.drawn]
        seeds = (
            frame[frame[drawn].notna().any(axis=1)].groupby("item")["seed"].nunique()
        )
        chosen["seeds"] = chosen["item"].map(seeds)
        for probe in PROBES:
            items = frame[frame[f"{probe.name}_status"].notna()]
            if probe.drawn:
                items = over_seeds(items, probe, ITEM)
            else:
                items = items[items["seed"] == chosen_seed(items["seed"], own)]
            chosen = chosen.merge(
                items[[*ITEM, *_columns(probe)]], on=[*ITEM], how="left"
            )
        return chosen[self._columns].copy()  # in one block: many merges slow it

    def run_seed(self, checkpoint: str, task: str) -> float:
        """The lowest seed of the greedy probe: a run's own (NaN if greedy did not
        run)."""
        every = self._outcomes[checkpoint, task]
        return float(every.loc[every["greedy_status"].notna(), "seed"].min())

    def seeds(self, checkpoint: str, task: str) -> list[int]:
        """The seeds under which it draws on a task: those that the run asks for, or
        else those of its samples."""
        asked: list[int] | None = settings_of(self.run, checkpoint, task).get("seeds")
        if asked is None:
            every = self._outcomes[checkpoint, task]
            asked = sorted(every.loc[every["sample_status"].notna(), "seed"].unique())
        return asked

    def asked(self, task: str) -> pd.DataFrame:
        """Every item of a task that any checkpoint has a record for, in the order of
        their numbers: the columns ITEM, and `digest`, what it asked ("": unknown)."""
        return self._asked[task]

    def languages(self, task: str) -> list[str]:
        return sorted(self._asked[task]["language"].unique())

    def parts(self, *columns: str) -> Iterator[Part]:
        """Every checkpoint on every task with a value in one of these columns: all
        items, then those of each language."""
        for subject in self.checkpoints:
            items = self.outcomes_of(subject.checkpoint, subject.task)
            if items[[*columns]].notna().any(axis=None):
                yield from self.parts_of(subject, items)

    def parts_of(
        self, subject: Subject, items: pd.DataFrame, format: str = "open"
    ) -> Iterator[Part]:
        comparison = self.comparisons(format).get(subject.key)
        for language, here in slices(items, self.languages(subject.task)):
            yield Part(subject, language, here, comparison)

    def comparisons(self, format: str = "open") -> "dict[Key, Comparison]":
        """Every checkpoint with a base beside it, in one format; by task and
        checkpoint, in display order."""
        if format not in self._comparisons:
            comparisons = self._comparisons[format] = {}
            for each in self.checkpoints:
                if each.base is not None:
                    comparisons[each.key] = self._compared(each, each.base, format)
        return self._comparisons[format]

    @cached_property
    def controls_of(self) -> Mapping[Key, "list[Comparison]"]:
        """Each checkpoint's controls, compared with it; by task and checkpoint."""
        controls: dict[Key, list[Comparison]] = {}
        for each in self.once_more:
            of = each.base or ""
            compared = self._compared(each, of, "open")
            controls.setdefault((each.task, of), []).append(compared)
        return controls

    def could_differ(self, task: str, one: str, other: str | None) -> bool:
        """Whether the models can cause a difference of two checkpoints on a task: not
        if the models are the same and the evaluations alike. Holm's families leave out
        comparisons that could not differ.
        """
        here, there = (task, one), (task, other or "")
        if other is None or self._identity.get(here) != self._identity.get(there):
            return True
        return self.incomparable.get(here) != self.incomparable.get(there)

    @cached_property
    def incomparable(self) -> Mapping[Key, str]:
        """Why checkpoints cannot be compared with their bases, by task and
        checkpoint; comparable ones are left out."""
        return self._incomparable(drawn=False)

    @cached_property
    def incomparable_drawn(self) -> Mapping[Key, str]:
        """The same, for comparisons of beams and samples."""
        return self._incomparable(drawn=True)

    def _incomparable(self, *, drawn: bool) -> dict[Key, str]:
        reasons = {}
        for key, comparison in self.comparisons().items():
            if reason := difference(comparison, self.run, drawn=drawn):
                reasons[key] = reason
        return reasons

    def _join(self, key: tuple[str, str, str, str]) -> pd.DataFrame:
        """A checkpoint's outcomes beside its base's."""
        name, base, task, format = key
        pruned = self.outcomes_of(name, task, format)
        dense = self.outcomes_of(base, task, format)
        _, here, there = np.intersect1d(
            pruned["item"], dense["item"], assume_unique=True, return_indices=True
        )
        pruned = pruned.take(here).reset_index(drop=True)
        dense = dense.take(there).reset_index(drop=True)
        asked = [
            settings_of(self.run, side, task).get("seeds") for side in (base, name)
        ]
        if asked[0] is not None and asked[0] == asked[1]:
            # a run that still grows by seeds: only equal ones are compared
            uneven = pruned["seeds"].fillna(1) != dense["seeds"].fillna(1)
            for probe in PROBES:
                if probe.drawn:
                    pruned.loc[uneven, _columns(probe)] = None
                    dense.loc[uneven, _columns(probe)] = None
        values = pruned.columns[len(ITEM) :]
        sides = pruned[values].add_suffix("_pruned"), dense[values].add_suffix("_dense")
        return pd.concat([pruned[[*ITEM]], *sides], axis=1)

    def _compared(self, subject: Subject, base: str, format: str) -> "Comparison":
        task, name = subject.key
        key = (name, base, task, format)
        reason = None
        if (task, base) not in self._identity:
            reason = (
                f"base {base!r} has no records of task {task!r}: evaluate it into the"
                " same run"
            )
        elif self._joined[key].empty:
            reason = (
                f"no item in format {format!r} is common to {name!r} and its base"
                f" {base!r}"
            )
        sides = [self.outcomes_of(side, task, format) for side in (base, name)]
        unpaired: Counter[str] = Counter()
        if all(map(len, sides)):
            items = pd.concat([side[["item", "language"]] for side in sides])
            alone = ~items["item"].duplicated(keep=False)
            unpaired.update(items["language"][alone])
        languages = [] if reason else self.languages(task)
        return Comparison(subject, unpaired, languages, reason, self._joined, key)


def _columns(probe: Probe) -> list[str]:
    return [f"{probe.name}_status", f"{probe.name}_why", *columns_of(probe)]


def _asked_items(
    asked: pd.DataFrame, items: pd.DataFrame | None
) -> dict[str, pd.DataFrame]:
    """The items of each task, with their contexts and digests. An item that is not in
    `items` is its own context."""
    key = ["task", "language", "item_id"]
    known = pd.DataFrame(columns=[*key, "cluster", "digest"], dtype=object)
    if items is not None:
        known = items.reindex(columns=known.columns).astype(object)
    known = known.drop_duplicates(key, keep="last")
    asked = asked.merge(known, on=key, how="left")
    clusters = "cluster " + asked["cluster"].astype(str)
    own = "item " + asked["item_id"]
    asked = asked.assign(group=own.where(asked["cluster"].isna(), clusters))
    tasks = {}
    for task, rows in asked.groupby("task"):
        columns = rows[["language", "item_id", "item"]].reset_index(drop=True)
        contexts = pd.factorize(rows["group"])[0]
        digests = rows["digest"].fillna("").to_numpy(object)
        tasks[str(task)] = columns.assign(digest=digests, context=contexts)
    return tasks


def _subjects(first: Sequence[Document], planned: Sequence[str]) -> list[Subject]:
    """In display order: as `planned`, the sweep's order; others then by base and
    setting. `first`: a first row of each checkpoint and task."""
    subjects = []
    for values in first:
        row: Row = {}
        for name in ("task", "checkpoint", *METADATA):
            row[name] = None if pd.isna(values[name]) else values[name]
        if row["base"] == row["checkpoint"]:
            row["base"] = None
        row["kv_cache"] = row["kv_cache"] or "auto"
        subjects.append(Subject(**row))
    served = {each.checkpoint: _IDENTITY_OF(each) for each in subjects}
    for at, each in enumerate(subjects):
        re_run = served.get(each.base or "") == _IDENTITY_OF(each)
        subjects[at] = msgspec.structs.replace(each, re_run=re_run)
    places = {name: place for place, name in enumerate(planned)}

    return sorted(
        subjects,
        key=lambda each: (
            each.task,
            places.get(each.checkpoint, len(places)),
            each.base is not None,
            each.base or "",
            each.method or "",
            each.pattern or "",
            each.requested or 0.0,
            each.calibration or "",
            each.checkpoint,
        ),
    )


@dataclass(frozen=True)
class Comparison:
    """A row for each item evaluated on both, with columns `<name>_dense` and
    `<name>_pruned`; or `reason` why none."""

    subject: Subject
    # per language: the items with outcomes of only one of the two
    unpaired: "Counter[str]"
    # with rows of their own in tables; none if there is a reason
    languages: Sequence[str]
    reason: str | None
    frames: Recent[tuple[str, str, str, str]]
    key: tuple[str, str, str, str]

    @property
    def outcomes(self) -> pd.DataFrame:
        return self.frames[self.key]

    def parts(self, items: pd.DataFrame) -> Iterator[Part]:
        """Some of the items: all, then those of each language."""
        for language, here in slices(items, self.languages):
            yield Part(self.subject, language, here, self)

    def measured(self, *probes: str, language: str = ALL) -> pd.DataFrame:
        """The outcomes of the items on which these probes were measured in both
        checkpoints."""
        items = in_language(self.outcomes, language)
        return all_measured(items, *statuses_of(*probes))

    def tells_of(self, probe: str) -> bool:
        """Whether the checkpoint ran the probe, or a reason prevents every
        comparison."""
        ran = self.outcomes[f"{probe}_status_pruned"].notna().any()
        return self.reason is not None or bool(ran)

    def counts(self, language: str, *probes: str) -> Row:
        """How many items of a language (or of all) have one side only, or were
        excluded or failed on either."""
        items = in_language(self.outcomes, language)
        unpaired = self.unpaired[language]
        if language == ALL:
            unpaired = self.unpaired.total()
        return left_out_of(items, *statuses_of(*probes)) | {"unpaired": unpaired}


def statuses_of(*probes: str) -> list[str]:
    """The columns of a comparison with the statuses of these probes."""
    return [f"{probe}_status_{side}" for probe in probes for side in SIDES]


def in_language(frame: pd.DataFrame, language: str) -> pd.DataFrame:
    if language == ALL:
        return frame
    rows = np.flatnonzero(frame["language"].to_numpy(dtype=object) == language)
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
SERVED = "endpoint"  # the engine of served models
_WHAT = ("probes", "formats", "name", "languages", "items", "window")
_DRAWN = ("beam_width", "samples", "seeds", "top_p", "temperature")
# A model without such a template has none of these.
_BY_TEMPLATE = ("date", "thought_format", "thought_limit")
# Patterns of records whose scheme quantises activations: W8A8, W4A8, FP8; not FP8
# W8A16.
ROUNDED = (
    "quantised activations: rounding alone moves an option's log-likelihood, by .9 nats"
    " in a test"
)


def difference(compared: Comparison, run: Document, *, drawn: bool) -> str:
    """How a checkpoint's evaluation differs from its base's; empty: it does not.
    `drawn`: also for drawn answers."""
    task, checkpoint = compared.subject.key
    base, items = compared.subject.base, compared.outcomes
    alike = _ALIKE | (_ALIKE_DRAWN if drawn else {})
    # a server computes in its own way; its checkpoint's notes say so
    served = bool((items["engine_pruned"] == SERVED).any())
    if served:
        alike = {name: words for name, words in alike.items() if name not in SERVING}
    theirs, own = settings_of(run, base, task), settings_of(run, checkpoint, task)
    differing = _differing_columns(items, alike)
    ignored = _WHAT if drawn else (*_WHAT, *_DRAWN)
    for name in sorted(theirs.keys() & own.keys() - {*ignored}):
        unset = name in _BY_TEMPLATE and not (theirs[name] and own[name])
        if theirs[name] != own[name] and not unset:
            differing.append(_against(name, theirs[name], own[name]))
    ways = scoring_of(run, base), scoring_of(run, checkpoint)
    if all(ways) and ways[0] != ways[1] and not served:
        differing.append(_against("scoring", *map(" and ".join, ways)))
    return f"not comparable with the base: {', '.join(differing)}" if differing else ""


def _differing_columns(items: pd.DataFrame, alike: Mapping[str, str]) -> list[str]:
    differing = []
    for name, words in alike.items():
        dense, pruned = items[f"{name}_dense"], items[f"{name}_pruned"]
        differ = dense.notna() & pruned.notna() & (dense != pruned)
        if differ.any():
            first = int(np.flatnonzero(differ)[0])
            text = _against(words, dense.iloc[first], pruned.iloc[first])
            if not differ.all():
                text += f" on {int(differ.sum())} of {len(items)} items"
            differing.append(text)
    return differing


def _against(words: str, *values: object) -> str:
    """`beams 5 against 4`: floats without a trailing zero."""
    base, own = (f"{each:g}" if isinstance(each, float) else each for each in values)
    return f"{words} {base} against {own}"


def rounded_activations(pattern: str | None) -> str | None:
    """The note on quantised activations, by the `pattern` of a checkpoint's records;
    None for any other."""
    return (
        ROUNDED if pattern is not None and ROUNDED_ACTIVATIONS.search(pattern) else None
    )


def settings_of(run: Document, checkpoint: str | None, task: str) -> Document:
    """The settings in run.json under which a checkpoint was evaluated on a task; empty
    if there are none."""
    found = mapping_at(run, "identity", "task_settings", checkpoint, task)
    if "seeds" not in found:
        return found
    asked = mapping_at(run, "seeds", checkpoint).get(task)  # by the last call
    seeds = asked or found["seeds"] or [found.get("seed")]
    return {**found, "seeds": sorted(seeds)}


def scoring_of(run: Document, checkpoint: str | None) -> list[str]:
    """How engines scored this checkpoint's options: the names of all methods."""
    methods = set()
    for row in rows_at(run, "engine_stats"):
        if row.get("checkpoint") == checkpoint and row.get("scoring"):
            methods.add(str(row["scoring"]))
    return sorted(methods)
