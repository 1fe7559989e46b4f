"""Figure of table `rank`: bands of ranks, of mc_only and of all items, and of mc_only after the base's lead-in."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.rows import Rows

_BANDS = {"_1": 1.0, "_2_5": 0.68, "_6_20": 0.4, "_over_20": 0.16}
_BAND_NAMES = {"_1": "rank 1", "_2_5": "2-5", "_6_20": "6-20", "_over_20": "over 20"}
_PANELS = (  # group, whose ranks, title
    ("mc_only", "rank", "No longer said (mc_only)"),
    ("mc_only", "aligned_rank", "The same, aligned"),
    ("all", "rank", "All items"),
)


def _paint(frame: pd.DataFrame) -> Any:
    own = frame[frame["side"] == "own"]
    rows = Rows(own)
    parts = [
        (group, ranks, title)
        for group, ranks, title in _PANELS
        if (own["group"] == group).any() and (ranks == "rank" or own[f"{ranks}_median"].notna().any())
    ]
    if not parts:
        return None
    made, panels = theme.figure(len(rows), [1.0] * len(parts))
    theme.label_rows(panels[0], rows.labels)
    for panel, (group, ranks, title) in zip(panels, parts, strict=True):
        shares = {_BAND_NAMES[band]: rows.values(f"{ranks}{band}", group=group) for band in _BANDS}
        theme.stacked(panel, shares, {_BAND_NAMES[band]: ("rank", alpha) for band, alpha in _BANDS.items()})
        for y, median in enumerate(rows.values(f"{ranks}_median", group=group)):
            text = "none" if median is None else f"median {median:,g}"
            place = {"x": 1.012 if median is not None else 0.0, "y": y, "va": "center", "fontsize": 7.8}
            panel.text(s=text, color=theme.COLOURS["muted"], **place)
        theme.percent_axis(panel, 0, 1.0)
        panel.set_title(title)
    theme.legend(panels[0])
    return made


FIGURE = Figure("rank", _paint)
