"""Tables as CSV files that a spreadsheet opens without computing what is in them.

A spreadsheet takes a cell that begins with =, +, -, @, a tab or the end of a line for a formula, and a formula can run
programs or send other cells away. Texts of a table come from checkpoints, data sets and engines: such a text gets an
apostrophe before it, which spreadsheets take for "this is text". Numbers stay as they are, also those with a sign, and
a text that is a number is one.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

_BEGINNINGS = tuple("=+-@\t\r\n＝＋－＠")  # the wide forms too: some programs read them as the narrow ones


def csv_bytes(frame: pd.DataFrame) -> bytes:
    """A table as a CSV file, with its header and without row numbers."""
    safe = frame.copy(deep=False)
    for name in frame.columns:
        if not pd.api.types.is_numeric_dtype(frame[name]):  # categories hold texts too
            safe[name] = frame[name].astype(object).map(_as_text)
    return safe.rename(columns=_as_text).to_csv(index=False).encode()


def _as_text(value: Any) -> Any:
    """A cell that is computed by nobody. Python's CSV leaves a return alone, which ends a row for others."""
    if not isinstance(value, str):
        return value
    marked = f"'{value}" if _is_formula(value) else value
    return marked.replace("\r\n", "\n").replace("\r", "\n")


def _is_formula(value: Any) -> bool:
    if not isinstance(value, str) or not value.startswith(_BEGINNINGS):
        return False
    try:
        float(value)
    except ValueError:
        return True
    return value != value.strip()  # a number after a tab is still a cell that begins with a tab
