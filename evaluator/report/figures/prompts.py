"""Figure of table `prompts`: the mean over the prompts with its interval, and each prompt; open left, choice right."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.metrics.inputs import ALL
from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.rows import Rows

_TITLES = {"greedy": "Open, under each prompt", "choice": "Choice, under each prompt"}


def _paint(frame: pd.DataFrame) -> Any:
    """All languages pooled. Prompts are hollow dots a little above their mean; which is which, the table says."""
    frame = frame[(frame["format"] == "open") & (frame["language"] == ALL) & (frame["n"] > 0)]
    rows = Rows(frame)
    if not len(rows):
        return None
    made, panels = theme.figure(len(rows), (1, 1))
    theme.label_rows(panels[0], rows.labels)
    for panel, (probe, title) in zip(panels, _TITLES.items(), strict=True):
        rows.dots(panel, "accuracy", probe, "mean over prompts", probe=probe, prompt=ALL, shift=0.12)
        for number, prompt in enumerate(prompt for prompt in frame["prompt"].unique() if prompt != ALL):
            values = rows.values("accuracy", probe=probe, prompt=prompt)
            theme.dots(panel, values, "muted", "" if number else "one prompt", shift=-0.16, hollow=True)
        theme.percent_axis(panel)
        panel.set_title(title)
    theme.legend(panels[0])
    return made


FIGURE = Figure("prompts", _paint)
