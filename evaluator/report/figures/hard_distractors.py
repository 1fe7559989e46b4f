"""Figure of table `hard_distractors`: choice accuracy, and what is recognised but no longer said, by kind of option."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.panels import Series, linked
from evaluator.report.figures.rows import Rows


def _paint(frame: pd.DataFrame) -> Any:
    rows = Rows(frame)
    with_fates = frame["known"].fillna(0).gt(0).any()
    made, panels = theme.figure(len(rows), [1.0] * (1 + with_fates))
    theme.label_rows(panels[0], rows.labels)
    titles = {"accuracy": "Choice accuracy", "dissociation": "Recognised, no longer said"}
    for panel, (column, title) in zip(panels, titles.items(), strict=False):
        series: list[Series] = [
            (f"standard_{column}", "choice", "standard distractors", {}),
            (f"hard_{column}", "lost", "hard distractors", {}),
        ]
        linked(panel, rows, title, series, rates=column == "accuracy")
    theme.legend(panels[0])
    return made


FIGURE = Figure("hard_distractors", _paint)
