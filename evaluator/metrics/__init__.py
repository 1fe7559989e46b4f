"""From records to tables, in pure functions.

outcomes = Outcomes()
for part in parts:                              # records of one checkpoint and task
                                                each
    outcomes.add(reduce_records(part))
filled = compute_tables(Inputs(outcomes, items, run=run))     # items: optional, for
the clusters of intervals filled["fates"].frame"""

from evaluator.metrics.headline import headline_sentence
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.table import FilledTable, Lack, Table
from evaluator.metrics.tables import TABLES, compute_tables
from evaluator.store.outcomes import Outcomes, empty_outcomes, reduce_records

__all__ = [
    "TABLES",
    "FilledTable",
    "Inputs",
    "Lack",
    "Outcomes",
    "Table",
    "compute_tables",
    "empty_outcomes",
    "headline_sentence",
    "reduce_records",
]
