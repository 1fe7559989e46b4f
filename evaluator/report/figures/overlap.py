"""Figure of table `overlap`: the pairs that are most and least alike, of all items and of those to lose."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.metrics.inputs import ALL
from evaluator.metrics.tables.overlap import ERRORS, LOST
from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.rows import Rows

_TITLES = {ALL: "Kappa, all items", LOST: "Kappa, items that are right in the base"}
_PROBES = {"greedy": "open", "choice": "choice"}


def _paint(frame: pd.DataFrame) -> Any:
    """A row per pair, by error consistency; a kappa without an interval is not drawn."""
    frame = frame[frame["kappa_low"].notna() & (frame["measure"] == ERRORS)]
    pairs = frame["checkpoint"] + " and " + frame["other"]
    rows = Rows(frame.assign(checkpoint=pairs, language=ALL))
    if not len(rows):
        return None
    titles = {among: title for among, title in _TITLES.items() if (frame["among"] == among).any()}
    made, panels = theme.figure(len(rows), [1] * len(titles))
    theme.label_rows(panels[0], rows.labels)
    for panel, (among, title) in zip(panels, titles.items(), strict=True):
        for probe, label in _PROBES.items():
            rows.dots(panel, "kappa", probe, label, probe=probe, among=among)
        theme.change_axis(panel)
        panel.set_title(title)
    theme.legend(panels[0])
    return made


FIGURE = Figure("overlap", _paint)
