"""Which items were measured, how many were not, and why."""

from collections import Counter

import numpy as np
import numpy.typing as npt
import pandas as pd

from evaluator.metrics.columns import Row
from evaluator.store.outcomes import MEASURED

NO_REASON = "the records do not say why"
# of an outcome on either side, for agreement beyond chance: with fewer, one item
# decides it
LEAST = 5
STATUSES = {"excluded": "excluded", "engine_error": "failed"}  # and their words


def all_measured(items: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The items with a measurement in all of these columns of statuses."""
    keep = np.logical_and.reduce([_with(items, name, *MEASURED) for name in columns])
    return items if keep.all() else items[keep]


def left_out_of(items: pd.DataFrame, *columns: str) -> Row:
    """How many items any of these columns excluded, and on how many others the engine
    failed."""
    counts, left = {}, np.ones(len(items), dtype=bool)
    for status in STATUSES:
        flags = [_with(items, name, status) for name in columns]
        out = left & np.logical_or.reduce(flags)
        counts[status], left = int(out.sum()), left & ~out
    return counts


def _with(items: pd.DataFrame, column: str, *statuses: str) -> npt.NDArray[np.bool_]:
    """Which items have one of these statuses. In numpy: a table asks it for each row."""
    values = items[column].to_numpy(dtype=object)
    found: npt.NDArray[np.bool_] = np.zeros(len(values), dtype=bool)
    for status in statuses:
        found |= values == status
    return found


def measured(
    items: pd.DataFrame, *probes: str, nothing: str = "no item was measured"
) -> tuple[pd.DataFrame, Row]:
    """The items that all these probes measured; n, excluded (by any) and
    engine_error; `nothing`: why n is 0."""
    columns = [f"{probe}_status" for probe in probes]
    done = all_measured(items, *columns)
    reason = joined_reasons(
        None if len(done) else nothing, why_left_out(items, *columns)
    )
    return done, {"n": len(done), **left_out_of(items, *columns), "reason": reason}


def why_left_out(items: pd.DataFrame, *columns: str) -> str | None:
    """`3 excluded (reason); 1 failed (message)`, most frequent first, of the
    statuses in `columns`; an item once."""
    if not any(left_out_of(items, *columns).values()):
        return None
    texts = [column.replace("_status", "_why") for column in columns]
    remaining = items[[*columns, *texts]]
    parts: list[str] = []
    for status, word in STATUSES.items():
        flags = remaining[[*columns]] == status
        out = flags.any(axis=1)
        if out.any():
            known = remaining.loc[out, texts].where(flags[out].to_numpy())
            reasons = Counter(known.bfill(axis=1).iloc[:, 0].fillna(NO_REASON))
            for reason in sorted(reasons, key=lambda text: (-reasons[text], text)):
                parts.append(f"{reasons[reason]} {word} ({reason})")
            remaining = remaining[~out]
    return joined_reasons(*parts)


def joined_reasons(*reasons: str | None) -> str | None:
    return "; ".join(dict.fromkeys(filter(None, reasons))) or None
