"""Records -> tables, as pure functions.

    pieces = Pieces()
    for part in parts:                              # records of one checkpoint and task each
        pieces.add(reduce_records(part))
    results = compute(Inputs(pieces, items), run)   # items: optional, gives the clusters of intervals
    results.tables["fates"].frame

What is held in memory are outcomes (one small row per checkpoint, item and format) of a bounded number of pieces, never
the records of a sweep.
"""

from __future__ import annotations

from evaluator.metrics.gate.verdicts import judge
from evaluator.metrics.headline import headline_of, headline_sentence
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.outcomes import empty_outcomes, reduce_records
from evaluator.metrics.pieces import Pieces
from evaluator.metrics.results import Results, compute, compute_tables
from evaluator.metrics.table import FilledTable, Lack, Table
from evaluator.metrics.tables import TABLES

__all__ = [
    "TABLES",
    "FilledTable",
    "Inputs",
    "Lack",
    "Pieces",
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
