"""Which items were measured, how many were not, and why."""

from collections import Counter

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
    keep = items[[*columns]].isin(MEASURED).all(axis=1)
    return items if keep.all() else items[keep]


def left_out_of(items: pd.DataFrame, *columns: str) -> Row:
    """How many items any of these columns excluded, and on how many others the engine
    failed."""
    statuses = items[[*columns]]
    excluded = (statuses == "excluded").any(axis=1)
    failed = (statuses == "engine_error").any(axis=1) & ~excluded
    return {"excluded": int(excluded.sum()), "engine_error": int(failed.sum())}


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
