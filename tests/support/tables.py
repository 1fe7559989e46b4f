"""From records written by hand to the report's tables, and one row of one of them."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pandas as pd
import pytest

from evaluator.core.records import Format
from evaluator.metrics import TABLES, FilledTable, Inputs, reduce_records
from evaluator.metrics.columns import Row
from evaluator.metrics.headline import SUMMED, headline_with_intervals
from evaluator.metrics.inputs import rows_where
from evaluator.metrics.items import ALL
from tests.support.records import Seen, judged, records

FORMS: tuple[Format, ...] = (
    "open",
    "shown",
    "distractors_only",
    "unrelated",
    "one_shot",
)


class Tables(Mapping[str, pd.DataFrame]):
    """Tables by name. Each is computed when it is read: all of them take half a
    second."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._filled: dict[str, FilledTable] = {}

    def fill(self, name: str) -> FilledTable:
        if name not in self._filled:
            self._filled[name] = TABLES[name].fill(self._inputs)
        return self._filled[name]

    def __getitem__(self, name: str) -> pd.DataFrame:
        return self.fill(name).frame

    def __iter__(self) -> Iterator[str]:
        return iter(TABLES.names)

    def __len__(self) -> int:
        return len(TABLES.names)

    @property
    def rows(self) -> dict[str, list[Row]]:
        return {name: self.fill(name).rows for name in self}

    @property
    def headline(self) -> pd.DataFrame:
        return headline_with_intervals({name: self.fill(name).rows for name in SUMMED})


def tables(*parts: pd.DataFrame, items: pd.DataFrame | None = None) -> Tables:
    """The tables of these records, reduced at once: each call takes its time."""
    whole = pd.concat(parts, ignore_index=True)
    return Tables(Inputs(reduce_records(whole), items))


def outcomes(checkpoint: str, seen: Mapping[str, Seen], **own: Any) -> pd.DataFrame:
    """The outcomes of many items, of which each kind is reduced once in all tests."""
    kinds = list(dict.fromkeys(seen.values()))
    rows = pd.concat([_of_kind(kind, checkpoint, **own) for kind in kinds])
    found = rows.take([kinds.index(each) for each in seen.values()])
    found = found.reset_index(drop=True)
    for at, name in enumerate(("language", "item_id")):
        values = [key.split("/")[at] for key in seen]
        found[name] = pd.Series(values, dtype=found[name].dtype)
    return found


@cache
def _of_kind(kind: Seen, checkpoint: str, **own: Any) -> pd.DataFrame:
    return reduce_records(records(checkpoint, {"english/1": kind}, **own))


def pair(
    dense: Mapping[str, Seen], pruned: Mapping[str, Seen], name: str = "p", **own: Any
) -> Tables:
    """The tables of a base and of a checkpoint, from what each did with its items."""
    return tables(records("dense", dense), records(name, pruned, base="dense", **own))


def select(frame: pd.DataFrame, **equal: object) -> pd.DataFrame:
    """The rows with these values; of all languages together if no language is named."""
    if "language" in frame:
        equal = {"language": ALL} | equal
    return rows_where(frame, equal)


def only(frame: pd.DataFrame, **equal: object) -> pd.Series:
    """The one row that `select` finds."""
    rows = select(frame, **equal)
    assert len(rows) == 1
    return rows.iloc[0]


def assert_has(found: pd.DataFrame | pd.Series | Row, **values: object) -> None:
    """Check a row's values, or the columns of a frame as lists: None for a missing
    value, whole numbers exactly, others but for the rounding of a sum."""
    for name, wanted in values.items():
        pairs = [(found[name], wanted)]
        if isinstance(wanted, list):
            pairs = [*zip(found[name], wanted, strict=True)]
        for value, expected in pairs:
            if expected is None:
                assert pd.isna(value), name
            elif isinstance(expected, float):
                assert value == pytest.approx(expected, rel=1e-12), name
            else:
                assert value == expected, name


def whole_inputs(seen: Mapping[str, Mapping[str, Seen]]) -> Inputs:
    """The inputs of every table, from what checkpoints did with the same items. The
    first is the base of the others."""
    parts, verdicts = [], []
    for name, found in seen.items():
        base = None if name == next(iter(seen)) else next(iter(seen))
        how: dict[str, Any] = {"base": base, "calibration": base and "c4"}
        for form in FORMS:
            parts.append(records(name, found, form=form, **how))
        drawn = {key: Seen(samples=each.samples) for key, each in found.items()}
        parts.append(records(name, drawn, seed=1, **how))
        for posed in ("t+terse", "boolq+zero-shot"):
            parts.append(records(name, found, task=posed, **how))
        for length in (500, 2000):
            long = records(name, found, task=f"t@{length}", **how)
            depths = [0.1, 0.5, 0.9] * (len(long) // 3) + [0.1] * (len(long) % 3)
            parts.append(long.assign(context_tokens=length, context_depth=depths))
        windows = {
            f"text/{i}": Seen(window=(-20.0 - i - bool(base) * i / 2, 10))
            for i in range(4)
        }
        parts.append(records(name, windows, task="text-wiki", **how))
        for matcher, period in (("a", 2), ("b", 3)):
            verdicts.append(
                judged(
                    matcher, name, {key: i % period == 0 for i, key in enumerate(found)}
                )
            )
    controls = pd.DataFrame({"item_id": ["00", "02"], "verdict": [True, False]})
    spent = {
        "device": "<H100>",
        "generated_tokens": 9,
        "busy_seconds": 1.0,
        "waiting_seconds": 0.5,
    }
    run: dict[str, Any] = {"checkpoints": [{"name": name, "bytes": 9} for name in seen]}
    run |= {"engine_stats": [{"checkpoint": name, **spent} for name in seen]}
    told = pd.concat(parts, ignore_index=True)
    told["contains_paper"] = told["contains"]
    thoughts = told.index[told["probe"] == "greedy"]
    told.loc[thoughts, ["thought", "thought_state"]] = "hm", "closed"
    told.loc[thoughts, "thought_tokens"] = [
        3 + number % 5 for number in range(len(thoughts))
    ]
    return Inputs(
        reduce_records(told),
        verdicts=pd.concat(verdicts),
        run=run,
        controls=controls.assign(matcher="a"),
    )
