"""Records -> tables, as pure functions.

    outcomes = pd.concat([reduce_records(part) for part in parts])   # parts: records of one checkpoint and task each
    results = compute(Inputs(outcomes, items), run)                  # items: optional, gives the clusters of intervals
    results.tables["fates"].frame

Only outcomes (one small row per checkpoint, item and format) are held in memory, never the records of a sweep.
"""

from __future__ import annotations

from evaluator.metrics.headline import headline_of, headline_sentence
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.outcomes import empty_outcomes, reduce_records
from evaluator.metrics.results import Results, compute, compute_tables, judge
from evaluator.metrics.table import FilledTable, Lack, Table
from evaluator.metrics.tables import TABLES

__all__ = [
    "TABLES",
    "FilledTable",
    "Inputs",
    "Lack",
    "Results",
    "Table",
    "compute",
    "compute_tables",
    "empty_outcomes",
    "headline_of",
    "headline_sentence",
    "judge",
    "reduce_records",
]
