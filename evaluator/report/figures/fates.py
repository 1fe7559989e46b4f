"""Figure of table `fates`: shares of the fates, and mc_only by language."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.metrics.fates import FATES
from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.rows import Rows, share


def _paint(frame: pd.DataFrame) -> Any:
    frame = frame[frame.groupby(["task", "checkpoint"])["n"].transform("max") > 0]
    rows = Rows(frame)
    if not len(rows):
        return None
    made, (left, right) = theme.figure(len(rows), (1.35, 1))
    theme.label_rows(left, rows.labels)
    shares = {fate: rows.values(f"{fate}_rate") for fate in FATES}
    theme.stacked(left, shares, {fate: (fate, 1.0) for fate in FATES})
    for y, n in enumerate(rows.values("n")):
        left.text(1.012, y, f"n = {n or 0:.0f}", va="center", fontsize=7.8, color=theme.COLOURS["muted"])
    theme.percent_axis(left, 0, 1.0)
    left.set_title("What became of the answers that the dense model knew, %")
    theme.legend(left)
    rows.heat(right, "mc_only_rate", "mc_only by language, %", share("mc_only"))
    return made


FIGURE = Figure("fates", _paint)
