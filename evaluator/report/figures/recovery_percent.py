"""Figure of table `recovery_percent`: open and choice in percent of the base's, and open by language."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.rows import Rows, share


def _paint(frame: pd.DataFrame) -> Any:
    rows = Rows(frame[frame["recovery"].notna()])
    if not len(rows):
        return None
    made, (left, right) = theme.figure(len(rows), (1.15, 1))
    theme.label_rows(left, rows.labels)
    told = {"greedy": "open", "choice": "choice"}
    theme.link(left, *(rows.values("recovery", probe=probe) for probe in told))
    values = [rows.dots(left, "recovery", probe, label, probe=probe) for probe, label in told.items()]
    left.axvline(1, color=theme.COLOURS["muted"], linewidth=1)
    left.set_xlim(min(left.get_xlim()[0], 0.9), max(left.get_xlim()[1], 1.05))
    left.xaxis.set_major_formatter(theme.as_percent)
    theme.label_values(left, *values)
    left.set_title("Accuracy in % of the base's")
    theme.legend(left)
    rows.heat(right, "recovery", "Open by language, % of the base's", share("greedy"), probe="greedy")
    return made


FIGURE = Figure("recovery_percent", _paint)
