"""Outcomes: one row per item, format and seed, derived from a checkpoint's records. All
tables are made of them.

    RUN/outcomes/<checkpoint>.parquet       derived from RUN/records by every report;
                                            notebooks can read it too

The columns are KEY, METADATA (the checkpoint), SERVING (how it was served), CONTEXT
(its length and depth), `truncated` (one of the item's prompts has a shortened context),
and each registered probe's (`Probe.columns`; null if not measured) with

    <probe>_status    `ok`, `truncated`, `excluded` or `engine_error`; null if the probe
                      did not run
    <probe>_why       the record's reason if it was excluded or failed

and of the probes GRADED what both rules of grading count
(`evaluator.core.reducing.by_both_rules`).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from evaluator.core.errors import Json
from evaluator.core.files import write_parquet
from evaluator.core.records import CONTEXT, METADATA, SERVING
from evaluator.core.reducing import (
    BOTH_RULES,
    BY_SEVERITY,
    KEY,
    MEASURED,
    SEVERITY,
    by_both_rules,
    by_its_rule,
    why_not,
)
from evaluator.probes import PROBES
from evaluator.probes.base import Probe
from evaluator.store.schema import PANDAS

__all__ = [
    "KEY",
    "MEASURED",
    "Outcomes",
    "Recent",
    "chosen_seed",
    "context_is_cut",
    "empty_outcomes",
    "outcome_types",
    "over_seeds",
    "plain",
    "reduce_records",
]

REDUCED_ROWS = 100_000  # of records, at once
HELD_ROWS = 20_000  # kept in memory: the first, and the last ones read
GRADED = ("greedy", "beam", "sample")  # table `grading` has a row of each
Key = TypeVar("Key")
Value = TypeVar("Value", bound=Sized)
Pair = tuple[str, str]  # checkpoint, task


def columns_of(probe: Probe) -> dict[str, str]:
    """A probe's own outcome columns, with their pandas types."""
    both = BOTH_RULES if probe.name in GRADED else {}
    return {
        **probe.columns,
        **{f"{probe.name}_{name}": kind for name, kind in both.items()},
    }


def outcome_types() -> dict[str, str]:
    """The outcome columns in order, with their pandas types."""
    types = {name: PANDAS[name] for name in (*KEY, *METADATA, *SERVING)}
    for probe in PROBES:
        types |= {f"{probe.name}_status": "string", **columns_of(probe)}
    types |= {name: PANDAS[name] for name in CONTEXT}
    return types | {
        "truncated": "boolean",
        **{f"{probe.name}_why": "string" for probe in PROBES},
    }


def empty_outcomes() -> pd.DataFrame:
    return pd.DataFrame(
        {name: pd.Series(dtype=dtype) for name, dtype in outcome_types().items()}
    )


def reduce_records(records: pd.DataFrame) -> pd.DataFrame:
    """The outcomes of records, which must hold all of an item: reduce whole parts,
    then concatenate."""
    if records.empty:
        return empty_outcomes()
    types = outcome_types()
    keyed = records.astype(
        {name: types[name] for name in (*KEY, *METADATA, *SERVING, *CONTEXT)}
    )
    columns = [
        keyed.groupby(list(KEY), sort=True)[[*METADATA, *SERVING, *CONTEXT]].first()
    ]
    for probe in PROBES:
        asked = keyed[keyed["probe"] == probe.name]
        if not asked.empty:
            columns += [probe.reduce(by_its_rule(asked)), why_not(asked, probe.name)]
            if probe.name in GRADED:
                columns.append(by_both_rules(asked, probe.name))
    outcomes = pd.concat(columns, axis=1)
    shortened = context_is_cut(keyed).groupby([keyed[name] for name in KEY]).any()
    outcomes["truncated"] = shortened
    outcomes = outcomes.reindex(columns=[name for name in types if name not in KEY])
    return outcomes.reset_index().astype(types)[list(types)]


def reduce_parts(
    parts: Iterable[tuple[str, pd.DataFrame]],
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each folder's outcomes, from its parts; a folder's parts follow each other, and
    each has all records of its items. Small parts are reduced together: a call of
    `reduce_records` takes .3 s, whatever its size."""
    waiting: list[pd.DataFrame] = []
    folders: dict[str, str] = {}  # by the checkpoint that waiting records name
    done: dict[str, list[pd.DataFrame]] = {}

    def reduce() -> None:
        outcomes = reduce_records(pd.concat(waiting, ignore_index=True))
        for name, piece in outcomes.groupby("checkpoint", sort=False):
            done.setdefault(folders[str(name)], []).append(piece)
        waiting.clear()
        folders.clear()

    for folder, part in parts:
        named = dict.fromkeys(map(str, part["checkpoint"].unique()), folder)
        if any(folders.get(name, folder) != folder for name in named):
            reduce()  # two folders have records of one checkpoint
        waiting.append(part)
        folders |= named
        if sum(map(len, waiting)) >= REDUCED_ROWS:
            reduce()
            *whole, _ = done
            for name in whole:
                yield name, pd.concat(done.pop(name), ignore_index=True)
    if waiting:
        reduce()
    for name, pieces in done.items():
        yield name, pd.concat(pieces, ignore_index=True)


def context_is_cut(records: pd.DataFrame) -> pd.Series:
    """Whether a record's prompt has a shortened context: it says so, or its answer is
    cut and its thought is not."""
    answer_is_cut = records["status"] == "truncated"
    thought_is_cut = records["thought_state"].eq("cut").fillna(False)
    marked = records["truncated"].astype("boolean").fillna(False)
    return marked | (answer_is_cut & ~thought_is_cut)


def chosen_seed(seeds: pd.Series, own: float) -> float:
    """The seed of records to read: the run's own if any has it, or else the lowest."""
    return own if (seeds == own).any() else seeds.min()


def over_seeds(
    outcomes: pd.DataFrame, probe: Probe, item: Sequence[str]
) -> pd.DataFrame:
    """A row for each item of a probe that draws (`Probe.drawn`), from plain outcomes:
    over all of its seeds, or null if one of them was not measured."""
    kinds = columns_of(probe)
    counts = [name for name, kind in kinds.items() if kind == "Int64"]
    texts = [name for name, kind in kinds.items() if kind == "string"]
    numbers = [name for name in kinds if name not in texts]
    status, why = f"{probe.name}_status", f"{probe.name}_why"
    severity = outcomes[status].map(SEVERITY)
    items = outcomes.assign(severity=severity).groupby([*item])
    reduced = items[[*numbers]].mean()
    reduced[counts] = items[counts].sum(min_count=1)
    worst = items["severity"].max()
    reduced = reduced.where(worst < SEVERITY["engine_error"])
    reduced[[*texts, why]] = items[[*texts, why]].first()
    reduced[status] = worst.map(BY_SEVERITY)
    return reduced.reset_index()


def plain(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Outcomes in KEY's order; no nullable columns, which are slow: floats with NaN,
    shared texts with None."""
    frame = outcomes.sort_values(list(KEY), ignore_index=True)
    columns: Json = {}
    for name, dtype in outcome_types().items():
        if dtype == "string":
            codes, texts = pd.factorize(frame[name])
            columns[name] = pd.Series(
                np.array([*map(str, texts), None], dtype=object)[codes], dtype=object
            )
        else:
            columns[name] = frame[name].to_numpy(dtype="float64", na_value=np.nan)
    return pd.DataFrame(columns)


class Outcomes:
    """Outcomes by checkpoint and task, in memory or (many) in files of RUN/outcomes;
    the keys of all items in memory."""

    def __init__(self, outcomes: pd.DataFrame | None = None) -> None:
        self._held: dict[Pair, pd.DataFrame | Path] = {}
        self._read = Recent(self._from_file, HELD_ROWS)
        # checkpoint, task and METADATA of each pair's first row, as added
        self.first: list[Json] = []
        self._items: dict[str, set[tuple[str, str]]] = {}
        self._read_by: dict[str, set[str]] = {}
        self.formats: dict[Pair, set[str]] = {}
        self._rows = 0
        if outcomes is not None:
            self.add(outcomes)

    def add(self, outcomes: pd.DataFrame, path: Path | None = None) -> None:
        """Add outcomes, to `path` if given; few, or without it, stay in memory. Raises
        ValueError for a checkpoint and task added before."""
        if path is not None:
            write_parquet(pa.Table.from_pandas(outcomes, preserve_index=False), path)
            self._rows += len(outcomes)
        few = self._rows <= HELD_ROWS
        for pair, piece in outcomes.groupby(["checkpoint", "task"], sort=False):
            checkpoint, task = map(str, pair)
            if (checkpoint, task) in self._held:
                raise ValueError(
                    f"checkpoint {checkpoint!r}, task {task!r}: a second piece of"
                    " outcomes"
                )
            named = ("checkpoint", "task", *METADATA)
            self.first.append({name: piece[name].iloc[0] for name in named})
            keys = zip(piece["language"], piece["item_id"], strict=True)
            self._items.setdefault(task, set()).update(keys)
            self.formats[checkpoint, task] = set(map(str, piece["format"].unique()))
            asked = {
                probe.reads
                for probe in PROBES
                if piece[f"{probe.name}_status"].notna().any()
            }
            self._read_by.setdefault(task, set()).update(asked)
            self._held[checkpoint, task] = path if path and not few else plain(piece)

    def __getitem__(self, pair: Pair) -> pd.DataFrame:
        """One checkpoint's outcomes on one task as plain columns (`plain`); empty if
        there are none."""
        held = self._held.get(pair)
        if isinstance(held, Path):
            return self._read[pair]
        return plain(empty_outcomes()) if held is None else held

    def _from_file(self, pair: Pair) -> pd.DataFrame:
        frame = pq.read_table(self._held[pair], use_threads=False).to_pandas()
        return plain(
            frame[(frame["checkpoint"] == pair[0]) & (frame["task"] == pair[1])]
        )

    @property
    def asked(self) -> pd.DataFrame:
        """Every item of every task once: task, language, item_id and `item`, the
        number within the task."""
        items = sorted(self._items.items())
        found = [
            (task, *key, number)
            for task, keys in items
            for number, key in enumerate(sorted(keys))
        ]
        texts = ["task", "language", "item_id"]
        return pd.DataFrame(found, columns=[*texts, "item"]).astype(
            dict.fromkeys(texts, object) | {"item": "int64"}
        )

    @property
    def text_tasks(self) -> frozenset[str]:
        """The tasks on which only text probes ran."""
        return frozenset(
            task
            for task, reads in self._read_by.items()
            if "text" in reads and "items" not in reads
        )


class Recent(Generic[Key, Value]):
    """A cache of tables: a lookup makes a missing one, and the most recent ones stay,
    up to about `rows` rows."""

    def __init__(self, make: Callable[[Key], Value], rows: int) -> None:
        self._make = make
        self._left = rows
        self._held: OrderedDict[Key, Value] = OrderedDict()

    def __getitem__(self, key: Key) -> Value:
        found = self._held.get(key)
        if found is None:
            found = self._held[key] = self._make(key)
            self._left -= len(found)
            while self._left < 0 and len(self._held) > 1:
                self._left += len(self._held.popitem(last=False)[1])
        self._held.move_to_end(key)
        return found
