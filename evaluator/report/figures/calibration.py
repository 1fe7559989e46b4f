"""Figure of table `calibration`: open and choice accuracy, and the gap between them."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.metrics.inputs import MEAN
from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.panels import Series, linked
from evaluator.report.figures.rows import Rows


def _paint(frame: pd.DataFrame) -> Any:
    rows = Rows(frame)
    kinds = frame.drop_duplicates(["task", "checkpoint"])["kind"].tolist()
    rows.labels = [f"{label} ({kind.replace('_', ' ')})" for label, kind in zip(rows.labels, kinds, strict=True)]
    made, (left, right) = theme.figure(len(rows), (1.15, 1.0))
    theme.label_rows(left, rows.labels)
    series: list[Series] = [("open_accuracy", "greedy", "open", {}), ("choice_accuracy", "choice", "choice", {})]
    linked(left, rows, "Accuracy", series, rates=True)
    rows.dots(right, "choice_minus_open", "mc_only", "pooled", shift=-0.12)
    rows.dots(right, "choice_minus_open", "mc_only", "mean over languages", language=MEAN, shift=0.12, hollow=True)
    theme.change_axis(right, points=True)
    right.set_title("Gap: choice minus open")
    theme.legend(left)
    theme.legend(right)
    return made


FIGURE = Figure("calibration", _paint)
