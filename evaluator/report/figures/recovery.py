"""Figure of table `recovery`: the answer in greedy, beams and samples; and what they find among greedy failures."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.rows import Rows


def _paint(frame: pd.DataFrame) -> Any:
    rows = Rows(frame)
    made, (left, right) = theme.figure(len(rows), (1.15, 1))
    theme.label_rows(left, rows.labels)
    for panel in (left, right):
        theme.percent_axis(panel, -0.02, 1.04)
    probes = {"greedy": "greedy says it", "beam": "in any beam", "sample": "in any sample"}
    theme.link(left, *(rows.values("rate", population="all_items", probe=probe) for probe in probes))
    everything = [
        rows.dots(left, "rate", probe, label, population="all_items", probe=probe) for probe, label in probes.items()
    ]
    theme.label_values(left, *everything)
    left.set_title("All items with beams and samples")
    theme.legend(left)
    for probe, shift in (("beam", -0.13), ("sample", 0.13)):
        rows.dots(right, "rate", probe, probes[probe], population="greedy_failures", probe=probe, shift=shift)
    for y, n in enumerate(rows.values("n", population="greedy_failures", probe="sample")):
        right.text(1.06, y, f"n = {n or 0:.0f}", va="center", fontsize=7.8, color=theme.COLOURS["muted"])
    right.set_title("Recovered among its own greedy failures")
    return made


FIGURE = Figure("recovery", _paint)
