"""Figure of table `perplexity`: perplexity, and its ratio to the base."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.metrics.inputs import MEAN
from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.panels import perplexity_panel
from evaluator.report.figures.rows import Rows


def _paint(frame: pd.DataFrame) -> Any:
    frame = frame[frame["perplexity"].notna() & (frame["language"] != MEAN)]
    if frame.empty:
        return None
    rows = Rows(frame)
    made, (left, right) = theme.figure(len(rows), (1.0, 1.0))
    theme.label_rows(left, rows.labels)
    rows.dots(left, "perplexity", "rank", "perplexity")
    perplexity_panel(left, [None] * len(rows), rows.values("perplexity"))
    left.set_title("Perplexity")
    rows.dots(right, "perplexity_ratio", "lost", "relative to the base")
    right.axvline(1.0, color=theme.COLOURS["muted"], linewidth=1)
    theme.label_values(right, rows.values("perplexity_ratio"), text=lambda value: f"{value:,.2f}")
    right.xaxis.set_major_formatter(theme.as_amount)
    right.set_title("Relative to the base")
    return made


FIGURE = Figure("perplexity", _paint)
