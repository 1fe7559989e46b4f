"""Figure of table `vote`: every checkpoint's place by each rule; open at the left, choice right."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.ticker import MaxNLocator

from evaluator.metrics.inputs import ALL
from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.rows import Rows

_RULES = {"accuracy": "muted", "borda": "greedy", "copeland": "choice", "minimax": "rank"}
_TITLES = {"greedy": "Place, open", "choice": "Place, choice"}


def _paint(frame: pd.DataFrame) -> Any:
    """Over all tasks, or of each task where there is one only."""
    frame = frame[frame["borda_place"].notna()]
    over_all = frame[frame["task"] == ALL]
    rows = Rows((frame if over_all.empty else over_all).assign(language=ALL))
    if not len(rows):
        return None
    made, panels = theme.figure(len(rows), (1, 1))
    theme.label_rows(panels[0], rows.labels)
    for panel, (probe, title) in zip(panels, _TITLES.items(), strict=True):
        for number, (rule, colour) in enumerate(_RULES.items()):
            name = "mean accuracy" if rule == "accuracy" else rule
            values = rows.values(f"{rule}_place", probe=probe)
            theme.dots(panel, values, colour, name, shift=0.16 * (number - 1.5), hollow=rule == "accuracy")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set_title(title)
    theme.legend(panels[0])
    return made


FIGURE = Figure("vote", _paint)
