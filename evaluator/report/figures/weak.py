"""Figure of table `weak`: the kinds of questions with the largest drops, and how much more that is than others lose."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.metrics.inputs import ALL
from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.rows import Rows

_MOST = 16
_PROBES = {"greedy": "open", "choice": "choice"}
_TITLES = {"drop": "Drop from the base", "excess": "More than the other kinds"}


def _paint(frame: pd.DataFrame) -> Any:
    """A row per checkpoint and kind."""
    worst = frame[frame["drop"].notna()].nlargest(_MOST, "drop")
    rows = Rows(worst.assign(checkpoint=worst["checkpoint"] + ": " + worst["by"] + ", " + worst["kind"], language=ALL))
    if not len(rows):
        return None
    made, panels = theme.figure(len(rows), (1, 1))
    theme.label_rows(panels[0], rows.labels)
    for panel, (column, title) in zip(panels, _TITLES.items(), strict=True):
        for probe, label in _PROBES.items():
            rows.dots(panel, column, probe, label, probe=probe)
        theme.change_axis(panel, points=True)
        panel.set_title(title)
    theme.legend(panels[0])
    return made


FIGURE = Figure("weak", _paint)
