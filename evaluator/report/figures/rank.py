"""Figure of table `rank`: bands of ranks, of mc_only and of all items."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.rows import Rows

_BANDS = {"rank_1": 1.0, "rank_2_5": 0.68, "rank_6_20": 0.4, "rank_over_20": 0.16}
_BAND_NAMES = {"rank_1": "rank 1", "rank_2_5": "2-5", "rank_6_20": "6-20", "rank_over_20": "over 20"}


def _paint(frame: pd.DataFrame) -> Any:
    own = frame[frame["side"] == "own"]
    groups = [("mc_only", "Recognised, no longer said (mc_only)"), ("all", "All items")]
    parts = [(group, title, Rows(own)) for group, title in groups if (own["group"] == group).any()]
    if not parts:
        return None
    rows = parts[0][2]
    made, panels = theme.figure(len(rows), [1.0] * len(parts))
    theme.label_rows(panels[0], rows.labels)
    for panel, (group, title, _) in zip(panels, parts, strict=True):
        shares = {_BAND_NAMES[band]: rows.values(band, group=group) for band in _BANDS}
        theme.stacked(panel, shares, {_BAND_NAMES[band]: ("rank", alpha) for band, alpha in _BANDS.items()})
        for y, median in enumerate(rows.values("rank_median", group=group)):
            text = "none" if median is None else f"median {median:,g}"
            place = {"x": 1.012 if median is not None else 0.0, "y": y, "va": "center", "fontsize": 7.8}
            panel.text(s=text, color=theme.COLOURS["muted"], **place)
        theme.percent_axis(panel, 0, 1.0)
        panel.set_title(title)
    theme.legend(panels[0])
    return made


FIGURE = Figure("rank", _paint)
