"""From records written by hand to the report's tables, and one row of one of them."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from evaluator.metrics import TABLES, Inputs, reduce_records
from tests.support.records import Seen, records


class Tables(Mapping[str, pd.DataFrame]):
    """Tables by name. Each is computed when it is read: all of them take half a second."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._found: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._found:
            self._found[name] = TABLES[name].fill(self._inputs).frame
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(TABLES.names)

    def __len__(self) -> int:
        return len(TABLES.names)


def tables(*parts: pd.DataFrame, items: pd.DataFrame | None = None) -> Tables:
    """The tables of these records."""
    outcomes = pd.concat([reduce_records(part) for part in parts], ignore_index=True)
    return Tables(Inputs(outcomes, items))


def pair(dense: Mapping[str, Seen], pruned: Mapping[str, Seen], name: str = "p", **own: Any) -> Tables:
    """The tables of a base and of a checkpoint, from what each did with its items."""
    return tables(records("dense", dense), records(name, pruned, base="dense", **own))


def only(frame: pd.DataFrame, **equal: object) -> pd.Series:
    """The one row that has these values."""
    for name, value in equal.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return frame.iloc[0]
