"""Figure of table `ladder`: the drop of each rung in points and relative to headroom, and perplexity."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.panels import perplexity_panel
from evaluator.report.figures.rows import Rows


def _paint(frame: pd.DataFrame) -> Any:
    rows = Rows(frame[frame["n"] > 0])
    if not len(rows):
        return None
    read = rows.values("perplexity", rung="open")
    with_perplexity = any(value is not None for value in read)
    made, panels = theme.figure(len(rows), [1.0, 1.0] + [0.7] * with_perplexity)
    theme.label_rows(panels[0], rows.labels)
    rungs = [rung for rung in ("open", "shown", "choice") if (frame["rung"] == rung).any()]
    paints = {"open": "greedy", "shown": "shown", "choice": "choice"}
    for panel, column, title in (
        (panels[0], "drop", "Drop in points"),
        (panels[1], "normalised_drop", "Drop relative to headroom"),
    ):
        theme.link(panel, *(rows.values(column, rung=rung) for rung in rungs))
        for rung in rungs:
            rows.dots(panel, column, paints[rung], rung, rung=rung)
        theme.change_axis(panel, points=column == "drop")
        panel.set_title(title)
    if with_perplexity:
        perplexity_panel(panels[2], rows.values("perplexity_dense", rung="open"), read)
        panels[2].set_title(f"Perplexity, {frame['perplexity_task'].dropna().iloc[0]}")
    theme.legend(panels[0])
    return made


FIGURE = Figure("ladder", _paint)
