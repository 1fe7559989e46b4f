"""Figure of table `accuracy`: open and choice accuracy pooled, and open accuracy by language."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.rows import Rows, share


def _paint(frame: pd.DataFrame) -> Any:
    rows = Rows(frame[frame["format"] == "open"])
    if not len(rows):
        return None
    made, (left, right) = theme.figure(len(rows), (1.15, 1))
    theme.label_rows(left, rows.labels)
    theme.link(left, rows.values("accuracy", probe="greedy"), rows.values("accuracy", probe="choice"))
    told = {"greedy": "open: says it", "choice": "choice: recognises it"}
    theme.percent_axis(left, -0.02, 1.04)
    theme.label_values(left, *[rows.dots(left, "accuracy", probe, told[probe], probe=probe) for probe in told])
    left.set_title("Accuracy, languages pooled")
    theme.legend(left)
    rows.heat(right, "accuracy", "Open accuracy by language, %", share("greedy"), probe="greedy")
    return made


FIGURE = Figure("accuracy", _paint)
