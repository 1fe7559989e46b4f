"""Figure of table `pr_gap`: Delta_PR pooled and as the mean over languages, and by language."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.metrics.inputs import MEAN
from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.rows import Rows


def _paint(frame: pd.DataFrame) -> Any:
    rows = Rows(frame[frame.groupby(["task", "checkpoint"])["delta_pr"].transform("count") > 0])
    if not len(rows):
        return None
    made, (left, right) = theme.figure(len(rows), (1.0, 1.15))
    theme.label_rows(left, rows.labels)
    rows.dots(left, "delta_pr", "mc_only", "pooled over items", shift=-0.12)
    rows.dots(left, "delta_pr", "mc_only", "mean over languages", language=MEAN, shift=0.12, hollow=True)
    theme.change_axis(left)
    left.set_title("Delta_PR = d_open - d_choice")
    theme.legend(left)

    def paint(value: float) -> tuple[str, float, str]:
        text = f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")
        return text, abs(value), "mc_only" if value >= 0 else "negative"

    rows.heat(right, "delta_pr", "Delta_PR by language", paint)
    return made


FIGURE = Figure("pr_gap", _paint)
