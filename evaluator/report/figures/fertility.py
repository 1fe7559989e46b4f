"""Figure of table `fertility`: open drop over fertility, a dot per language."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.metrics.inputs import MEAN
from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure

_MOST_PANELS = 4
_TITLE_CHARACTERS = 96  # side by side, of all panels


def _paint(frame: pd.DataFrame) -> Any:
    """Open drop over fertility, a dot per language; a panel for each of the checkpoints with the largest drops."""
    frame = frame[frame["open_drop"].notna() & frame["fertility"].notna() & (frame["language"] != MEAN)]
    if frame.empty:
        return None
    drops = frame.groupby(["task", "checkpoint"], sort=False)["open_drop"].mean()
    chosen = drops.sort_values(ascending=False, kind="stable").index[:_MOST_PANELS]
    made, panels = theme.figure(7, [1.0] * len(chosen))
    bottom, top = min(0.0, frame["open_drop"].min()) - 0.03, frame["open_drop"].max() + 0.05
    for panel, (task, checkpoint) in zip(panels, chosen, strict=True):
        part = frame[(frame["task"] == task) & (frame["checkpoint"] == checkpoint)]
        for unit, hollow in (("word", False), ("character", True)):
            mine = part[part["unit"] == unit]
            face = theme.COLOURS["paper" if hollow else "greedy"]
            edge = theme.COLOURS["greedy"]
            label = f"per {unit}"
            panel.scatter(mine["fertility"], mine["open_drop"], s=30, facecolor=face, edgecolor=edge, label=label)
        panel.set_ylim(bottom, top)
        panel.yaxis.set_major_formatter(theme.as_points)
        panel.grid(axis="y", color=theme.COLOURS["grid"], linewidth=0.7)
        panel.set_xlabel("tokens per word or character")
        panel.margins(x=0.15)
        theme.name_points(panel, part["fertility"].tolist(), part["open_drop"].tolist(), part["language"].tolist())
        title = checkpoint if frame["task"].nunique() == 1 else f"{checkpoint} · {task}"
        panel.set_title(theme.in_two_lines(title, _TITLE_CHARACTERS // len(chosen)))
    panels[0].set_ylabel("open drop")
    if (frame["unit"] == "character").any():
        theme.legend(panels[0])
    return made


FIGURE = Figure("fertility", _paint)
