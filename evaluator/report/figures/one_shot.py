"""Figure of table `one_shot`: the gap without and with the example, pooled and by language."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.metrics.columns import rounded
from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.panels import Series, linked
from evaluator.report.figures.rows import Rows


def _paint(frame: pd.DataFrame) -> Any:
    """The gap pooled at the left, and by language the gap without and with the example."""
    rows = Rows(frame)
    made, (left, *right) = theme.figure(len(rows), (1.15, 1.0, 1.0))
    theme.label_rows(left, rows.labels)
    series: list[Series] = [("zero_shot_gap", "greedy", "0-shot", {}), ("one_shot_gap", "kept", "1-shot", {})]
    linked(left, rows, "Gap to the dense model", series)
    for panel, (column, colour, label, _) in zip(right, series, strict=True):

        def paint(value: float, colour: str = colour) -> tuple[str, float, str]:
            return rounded(100 * value), 2 * abs(value), colour

        rows.heat(panel, column, f"{label} gap by language, points", paint)
    theme.legend(left)
    return made


FIGURE = Figure("one_shot", _paint)
