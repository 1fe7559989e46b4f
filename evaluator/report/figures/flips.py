"""Figure of table `flips`: right to wrong, wrong to right, wrong to another answer; open at the left, choice right."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.metrics.inputs import ALL
from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.rows import Rows

_PAINTS = {
    "right to wrong": ("lost", 1.0),
    "wrong to right": ("kept", 1.0),
    "wrong to other": ("muted", 0.35),
}
_TITLES = {"greedy": "Open answers that changed, %", "choice": "Choices that changed, %"}


def _paint(frame: pd.DataFrame) -> Any:
    rows = Rows(frame[(frame["margin"] == ALL) & (frame["n"] > 0)])
    if not len(rows):
        return None
    made, panels = theme.figure(len(rows), (1, 1))
    theme.label_rows(panels[0], rows.labels)
    for panel, (probe, title) in zip(panels, _TITLES.items(), strict=True):
        shares = {part: rows.values(f"{part.replace(' ', '_')}_rate", probe=probe) for part in _PAINTS}
        theme.stacked(panel, shares, _PAINTS)
        theme.percent_axis(panel, 0, 1.0)
        panel.set_title(title)
    theme.legend(panels[0])
    return made


FIGURE = Figure("flips", _paint)
