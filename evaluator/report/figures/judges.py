"""Figure of table `judges`: what every judge accepts of right answers, and denies of wrong ones."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.metrics.judging import BAR
from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.rows import Rows

_SHARES = {"sensitivity": ("kept", "accepts right answers"), "specificity": ("choice", "denies wrong answers")}


def _paint(frame: pd.DataFrame) -> Any:
    rows = Rows(frame[frame["n"] > 0])
    if not len(rows):
        return None
    made, (panel,) = theme.figure(len(rows), (1.0,))
    theme.label_rows(panel, rows.labels)
    for number, (column, (colour, label)) in enumerate(_SHARES.items()):
        rows.dots(panel, column, colour, label, shift=0.2 * (number - 0.5))
    panel.axvline(BAR, color=theme.COLOURS["muted"], linewidth=1)
    theme.percent_axis(panel, -0.02, 1.04)
    panel.set_title("On control pairs; unfit with a whole interval at the left of the line")
    theme.legend(panel)
    return made


FIGURE = Figure("judges", _paint)
