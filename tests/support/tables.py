"""From records written by hand to the report's tables, and one row of one of them."""

from __future__ import annotations

import pandas as pd

from evaluator.metrics import Inputs, compute_tables, reduce_records


def tables(*parts: pd.DataFrame, items: pd.DataFrame | None = None) -> dict[str, pd.DataFrame]:
    """Every table of these records, by name."""
    outcomes = pd.concat([reduce_records(part) for part in parts], ignore_index=True)
    return {name: table.frame for name, table in compute_tables(Inputs(outcomes, items)).items()}


def only(frame: pd.DataFrame, **equal: object) -> pd.Series:
    """The one row that has these values."""
    for name, value in equal.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return frame.iloc[0]
