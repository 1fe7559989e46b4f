"""Tables as CSV files that are safe to open in a spreadsheet.

A spreadsheet reads a cell as a formula if it begins with =, +, -, @, a tab or a line end. A formula can run programs
or send other cells away, and a table's texts come from checkpoints, data sets and engines. So each such text gets a
leading apostrophe, which marks it as text. Numbers stay unchanged, with or without a sign; so do texts that are
numbers.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

_BEGINNINGS = tuple("=+-@\t\r\n＝＋－＠")  # the wide forms too: some programs read them as the narrow ones


def csv_bytes(frame: pd.DataFrame) -> bytes:
    """A table as CSV, with a header and without row numbers."""
    safe = frame.copy(deep=False)
    for name in frame.columns:
        if not pd.api.types.is_numeric_dtype(frame[name]):  # categories hold texts too
            safe[name] = frame[name].astype(object).map(_as_text)
    return safe.rename(columns=_as_text).to_csv(index=False).encode()


def _as_text(value: Any) -> Any:
    """A cell that no spreadsheet computes. Carriage returns become newlines: Python's CSV writer keeps them, and other
    programs end the row there."""
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
