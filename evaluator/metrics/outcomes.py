"""Records of one checkpoint and task -> one row per item, format and seed: the only thing that the tables look at.

A run's records are read part by part; what stays in memory are these rows. Columns beside the key, the checkpoint's
own (METADATA) and how it was served (SERVING): each registered probe's (`Probe.columns`; null where it was not
measured) and, for each probe,

    <probe>_status    `ok`, `truncated`, `excluded` or `engine_error`; null where the probe was never asked
    <probe>_why       of what was excluded or failed: the record's reason

and `truncated`: the context was cut for at least one of the item's prompts.
"""

from __future__ import annotations

import pandas as pd

from evaluator.core.records import METADATA, SERVING
from evaluator.probes import PROBES
from evaluator.probes.reducing import KEY, MEASURED, why_not
from evaluator.store.schema import PANDAS

__all__ = ["KEY", "MEASURED", "empty_outcomes", "outcome_types", "reduce_records"]


def outcome_types() -> dict[str, str]:
    """The outcome columns in their order, with their pandas types."""
    types = {name: PANDAS[name] for name in (*KEY, *METADATA, *SERVING)}
    for probe in PROBES:
        types |= {f"{probe.name}_status": "string", **probe.columns}
    return types | {"truncated": "boolean", **{f"{probe.name}_why": "string" for probe in PROBES}}


def empty_outcomes() -> pd.DataFrame:
    """The outcome frame of no record at all, with its columns and types."""
    return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in outcome_types().items()})


def reduce_records(records: pd.DataFrame) -> pd.DataFrame:
    """Item-level outcomes of records (columns as in `Record`), any number of checkpoints and tasks.

    All records of one item on one checkpoint must be in `records`: reduce whole parts, then concatenate.
    """
    if records.empty:
        return empty_outcomes()
    types = outcome_types()
    keyed = records.astype({name: types[name] for name in (*KEY, *METADATA, *SERVING)})
    columns = [keyed.groupby(list(KEY), sort=True)[[*METADATA, *SERVING]].first()]
    for probe in PROBES:
        asked = keyed[keyed["probe"] == probe.name]
        if not asked.empty:
            columns += [probe.reduce(asked), why_not(asked, probe.name)]
    outcomes = pd.concat(columns, axis=1)
    cut = keyed["truncated"].astype("boolean").fillna(False) | (keyed["status"] == "truncated")
    outcomes["truncated"] = cut.groupby([keyed[name] for name in KEY]).any()
    outcomes = outcomes.reindex(columns=[name for name in types if name not in KEY])
    return outcomes.reset_index().astype(types)[list(types)]
