"""The inputs of every table: checkpoints on tasks, their items (each beside its base's),
and the controls."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter

import msgspec
import numpy as np
import pandas as pd

from evaluator.core.controls import MARK
from evaluator.core.errors import Document, mapping_at
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
from evaluator.metrics.comparable import difference, settings_of
from evaluator.metrics.items import ALL, BASE, OF_ITEM, Array, Items, at_rows
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

Key = tuple[str, str]  # task, checkpoint
# An item's number within its task, and the number of its context: items of one
# context depend on each other, across languages too.
ITEM = ("language", "item_id", "item", "context")
_HELD_ROWS = 600_000  # a kilobyte each: all tables pass over all checkpoints
_HELD_PAIRS = 100_000  # joined with their base, which is quick
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
    """A checkpoint's items in one language or group of a task, or all of them."""

    subject: Subject
    language: str
    items: Items
    alone: str | None  # why nothing can be compared with the base

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
      (`evaluator.core.controls`), which neither of the two has. The `base` of a control
      is the checkpoint that it controls.
    - `formats`: the evaluated formats, in the protocol's order.
    - `cuts`: a task's languages, then its groups: each is a row of a table.
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
        self.cuts: dict[str, list[str]] = {}
        for task, rows in self._asked.items():
            groups = sorted({*chain(*rows["groups"])})
            self.cuts[task] = [*sorted(rows["language"].unique()), *groups]
        self._in_format = Recent(self._read, _HELD_ROWS)
        self._joined = Recent(self._join, _HELD_PAIRS)

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
            return frame.reindex(columns=self._columns).reset_index(drop=True)
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
        their numbers: the columns ITEM, `groups`, and `digest`, what it asked ("":
        unknown)."""
        return self._asked[task]

    def languages(self, task: str) -> list[str]:
        return sorted(self._asked[task]["language"].unique())

    def of(self, subject: Subject, format: str = "open") -> Items:
        """The items that the checkpoint or its base has records of."""
        key = (subject.checkpoint, subject.base or "", subject.task, format)
        return self._joined[key]

    def parts(
        self, subject: Subject, format: str = "open", *, where: Collection[str] = ()
    ) -> Iterator[Part]:
        """All items of a checkpoint, then those of each language and group; none if no
        item has a value in a column of `where`."""
        items = self.of(subject, format)
        if where and not any(items.has(name).any() for name in where):
            return
        alone = self.alone(subject, format) if subject.base else None
        for cut, here in items.slices(self.cuts[subject.task]):
            yield Part(subject, cut, here, alone)

    def alone(self, subject: Subject, format: str = "open") -> str | None:
        """Why a checkpoint cannot be compared with its base in this format: they have
        no items in common."""
        task, base = subject.task, subject.base
        if (task, base) not in self._identity:
            return (
                f"base {base!r} has no records of task {task!r}: evaluate it into the"
                " same run"
            )
        if not len(self.of(subject, format).both):
            return (
                f"no item in format {format!r} is common to {subject.checkpoint!r} and"
                f" its base {base!r}"
            )
        return None

    @property
    def compared(self) -> list[Subject]:
        """The checkpoints with a base, in display order."""
        return [each for each in self.checkpoints if each.base is not None]

    @cached_property
    def controls_of(self) -> Mapping[Key, list[Subject]]:
        """Each checkpoint's controls; by task and checkpoint."""
        controls: dict[Key, list[Subject]] = {}
        for each in self.once_more:
            controls.setdefault((each.task, each.base or ""), []).append(each)
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
        for each in self.compared:
            both = self.of(each).both
            sides = each.checkpoint, each.base or "", each.task
            if reason := difference(both, *sides, self.run, drawn=drawn):
                reasons[each.key] = reason
        return reasons

    def _join(self, key: tuple[str, str, str, str]) -> Items:
        """A checkpoint's outcomes beside its base's."""
        name, base, task, format = key
        own = self.outcomes_of(name, task, format)
        theirs = self.outcomes_of(base, task, format)
        if base:
            theirs = self._alike_in_seeds(own, theirs, (base, name), task)
        numbers = np.union1d(own["item"], theirs["item"]).astype(np.intp)
        asked = self._asked[task]
        sides = []
        for frame in (own, theirs):
            rows = np.full(len(asked), -1)  # the last of `values` below: a missing one
            rows[frame["item"].to_numpy(np.intp)] = np.arange(len(frame))
            sides.append((frame, rows[numbers]))

        def read(column: str) -> Array:
            if column in OF_ITEM:
                known: Array = asked[column].to_numpy()
                return known[numbers]
            frame, rows = sides[column.startswith(BASE)]
            column = column.removeprefix(BASE)
            if column == "asked":
                return rows >= 0
            values = frame[column].to_numpy()
            if values.dtype == object:
                values = values.copy()
                values[pd.isna(values)] = None
            return at_rows(values, rows)

        return Items(read)

    def _alike_in_seeds(
        self, own: pd.DataFrame, theirs: pd.DataFrame, names: Key, task: str
    ) -> pd.DataFrame:
        """A base's outcomes to compare with. In a run that still grows by seeds, the
        items that one side drew under fewer seeds have no drawn answers."""
        asked = [settings_of(self.run, name, task).get("seeds") for name in names]
        if asked[0] is None or asked[0] != asked[1]:
            return theirs
        seeds = theirs["item"].map(own.set_index("item")["seeds"].fillna(1))
        uneven = seeds.notna() & (seeds != theirs["seeds"].fillna(1))
        if not uneven.any():
            return theirs
        theirs = theirs.copy()
        for probe in PROBES:
            if probe.drawn:
                theirs.loc[uneven, _columns(probe)] = None
        return theirs


def _columns(probe: Probe) -> list[str]:
    return [f"{probe.name}_status", f"{probe.name}_why", *columns_of(probe)]


def _asked_items(
    asked: pd.DataFrame, items: pd.DataFrame | None
) -> dict[str, pd.DataFrame]:
    """The items of each task, with their contexts and digests. An item that is not in
    `items` is its own context."""
    key = ["task", "language", "item_id"]
    names = [*key, "cluster", "digest", "groups"]
    known = pd.DataFrame(columns=names, dtype=object)
    if items is not None:
        known = items.reindex(columns=names).astype(object)
    known = known.drop_duplicates(key, keep="last")
    asked = asked.merge(known, on=key, how="left")
    clusters = "cluster " + asked["cluster"].astype(str)
    own = "item " + asked["item_id"]
    asked = asked.assign(
        cluster=own.where(asked["cluster"].isna(), clusters),
        groups=asked["groups"].fillna("").map(tuple),
    )
    tasks = {}
    for task, rows in asked.groupby("task"):
        columns = rows[["language", "item_id", "item", "groups"]].reset_index(drop=True)
        contexts = pd.factorize(rows["cluster"])[0]
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


def rows_where(frame: pd.DataFrame, equal: Mapping[str, object]) -> pd.DataFrame:
    """The rows that equal `equal` in every column that it names."""
    for name, value in equal.items():
        frame = frame[frame[name] == value]
    return frame


def in_language(frame: pd.DataFrame, language: str) -> pd.DataFrame:
    """The rows of a language, or all of them."""
    return frame if language == ALL else frame[frame["language"] == language]
