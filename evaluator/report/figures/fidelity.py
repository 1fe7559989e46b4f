"""Figure of table `fidelity`: mc_only and accuracy over the divergence from the base, a dot per checkpoint."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.metrics.inputs import ALL
from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure

_LEAST = 1e-9  # nats, on the logarithmic axis: what is nearer to nothing stands there


def _paint(frame: pd.DataFrame) -> Any:
    """Along the greedy answer; in a run that has only texts, the acceptance takes the place of what was answered."""
    whole = frame[(frame["language"] == ALL) & (frame["group"] == ALL) & frame["kld"].notna()]
    if whole.empty:
        return None
    along = next(each for each in ("greedy answer", "gold answer", "text") if (whole["along"] == each).any())
    whole = whole[whole["along"] == along]
    wanted = [("mc_only_rate", "mc_only", "mc_only"), ("accuracy", "greedy", "Open accuracy")]
    shown = [each for each in wanted if whole[each[0]].notna().any()]
    shown = shown or [("acceptance", "rank", "Expected acceptance")]
    made, panels = theme.figure(7, [1.0] * len(shown))
    names = whole["checkpoint"] if whole["task"].nunique() == 1 else whole["checkpoint"] + " · " + whole["task"]
    for panel, (column, colour, title) in zip(panels, shown, strict=True):
        part = whole[whole[column].notna()]
        x, y = part["kld"].clip(lower=_LEAST), part[column]
        is_floor = part["floor"].astype(bool)
        paint = theme.COLOURS[colour]
        for chosen, face in ((~is_floor, paint), (is_floor, theme.COLOURS["paper"])):
            panel.scatter(x[chosen], y[chosen], s=30, facecolor=face, edgecolor=paint, zorder=3)
        for name, spot in zip(names[part.index], zip(x, y, strict=True), strict=True):
            panel.annotate(
                theme.in_two_lines(name), spot, xytext=(5, 0), textcoords="offset points", va="center", fontsize=7.3,
                color=theme.COLOURS["muted"],
            )  # fmt: skip
        panel.set_xscale("log")
        panel.set_ylim(-0.04, 1.04)
        panel.yaxis.set_major_formatter(theme.as_percent)
        panel.grid(axis="y", color=theme.COLOURS["grid"], linewidth=0.7)
        panel.set_xlabel(f"divergence from the base, nats (hollow: the base from itself), {along}")
        panel.margins(x=0.2)
        panel.set_title(title)
        panel.tick_params(labelleft=True)
    return made


FIGURE = Figure("fidelity", _paint)
