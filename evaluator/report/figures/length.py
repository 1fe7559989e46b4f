"""Figure of table `length`: answers' length in multiples of the base's, and the share that did not end."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.rows import Rows


def _paint(frame: pd.DataFrame) -> Any:
    rows = Rows(frame[frame["ratio"].notna()])
    if not len(rows):
        return None
    made, (left, right) = theme.figure(len(rows), (1.15, 1))
    theme.label_rows(left, rows.labels)
    values = rows.dots(left, "ratio", "rank", "tokens")
    left.axvline(1, color=theme.COLOURS["muted"], linewidth=1)
    theme.factor_axis(left, [1.0, *(value for value in values if value is not None)])
    theme.label_values(left, values, text=lambda value: f"{value:.2f}")
    left.set_title("Tokens of an answer, in multiples of the base's")
    theme.link(right, rows.values("base_at_limit"), rows.values("at_limit"))
    rows.dots(right, "base_at_limit", "muted", "base", hollow=True)
    rows.dots(right, "at_limit", "lost", "checkpoint")
    theme.percent_axis(right, -0.02, 1.04)
    right.set_title("Answers cut off at the limit")
    theme.legend(right)
    return made


FIGURE = Figure("length", _paint)
