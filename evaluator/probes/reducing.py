"""From one probe's records to one row for each item: functions that the probes' `reduce` methods share.

A row is named by KEY. A probe counts as measured only if all of an item's records are; columns that were not measured
are null, and `<probe>_status` says why.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

KEY = ("checkpoint", "task", "language", "item_id", "format", "seed")
MEASURED = ("ok", "truncated")

_SEVERITY = {"ok": 0, "truncated": 1, "engine_error": 2, "excluded": 3}
_BY_SEVERITY = {severity: status for status, severity in _SEVERITY.items()}


def by_item(asked: pd.DataFrame) -> list[pd.Series]:
    """What to group records by, to get an item's together."""
    return [asked[name] for name in KEY]


def status_of(asked: pd.DataFrame) -> pd.Series:
    """The worst status among an item's records of one probe."""
    severity = asked["status"].map(_SEVERITY).astype("int64")
    return severity.groupby(by_item(asked)).max().map(_BY_SEVERITY)


def why_not(asked: pd.DataFrame, probe: str) -> pd.DataFrame:
    """Column `<probe>_why`: the text of the item's first record of its worst status, where that is no measurement."""
    marked = asked.assign(severity=asked["status"].map(_SEVERITY).astype("int64"))
    worst = marked[marked["severity"].gt(1) & marked["text"].notna()]
    worst = worst.sort_values(["severity", "index"], ascending=[False, True], kind="stable")
    return worst.groupby(list(KEY))[["text"]].first().rename(columns={"text": f"{probe}_why"})


def where_measured(
    reduced: pd.DataFrame, asked: pd.DataFrame, probe: str, value: str, decided: Any = True
) -> pd.DataFrame:
    """The probe's columns with `<probe>_status`: null where it was not measured.

    An `ok` record without a `value`, or an item that is not `decided` (too few options, for example), was not measured:
    its status is engine_error.
    """
    status = status_of(asked).reindex(reduced.index)
    status = status.mask(status.isin(MEASURED) & ~(decided & reduced[value].notna()), "engine_error")
    known = {name: column.where(status.isin(MEASURED)) for name, column in reduced.items()}
    return pd.DataFrame({**known, f"{probe}_status": status})


def hits(asked: pd.DataFrame, probe: str) -> pd.DataFrame:
    """The number of answers to an item, whether one contains a gold answer, and how many do."""
    counted = asked.assign(contains=asked["contains"].astype("boolean").fillna(False).astype("int64"))
    groups = counted.groupby(list(KEY))
    found = groups["contains"].sum().astype("Int64")
    reduced = pd.DataFrame({f"{probe}s": groups.size().astype("Int64"), f"{probe}_hit": (found > 0).astype("boolean")})
    reduced[f"{probe}_hits"] = found
    return where_measured(reduced, asked, probe, f"{probe}_hit")
