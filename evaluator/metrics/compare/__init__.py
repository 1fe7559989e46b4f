"""Two runs beside each other, item by item: what moved, whether it is more than noise, and what was done otherwise.

found = compare(side_of_run(inputs_a, "a"), side_of_run(inputs_b, "b"))
found.frame          # a row for each checkpoint, task, measure and language
found.differences    # what differs in how the two came about
"""

from __future__ import annotations

from evaluator.metrics.compare.movement import COLUMNS, Compared, compare
from evaluator.metrics.compare.sides import Side, side_of_logged, side_of_run

__all__ = ["COLUMNS", "Compared", "Side", "compare", "side_of_logged", "side_of_run"]
