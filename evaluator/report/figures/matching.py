"""Figure of table `matching`: accuracy by grader, and Scott's pi of every two graders."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pandas as pd

from evaluator.report.figures import theme
from evaluator.report.figures.figure import Figure
from evaluator.report.figures.rows import Rows

_GRADERS = ("greedy", "choice", "beam", "sample", "shown", "lost")  # colours of graders, containment first


def _paint(frame: pd.DataFrame) -> Any:
    """Of greedy open answers, or of what was judged instead: accuracy by grader at the left; at the right Scott's pi of
    every two graders that have one with an interval."""
    first = frame.loc[frame["n"] > 0, ["format", "probe"]].drop_duplicates().head(1)
    frame = frame.merge(first, on=["format", "probe"])
    if frame.empty:
        return None
    rows = Rows(frame.assign(scott_pi=frame["scott_pi"].where(frame["scott_pi_low"].notna())))
    agreed = frame[frame["against"].notna() & frame["scott_pi_low"].notna()]
    made, panels = theme.figure(len(rows), (1.0, 1.0) if len(agreed) else (1.0,))
    theme.label_rows(panels[0], rows.labels)
    graders = frame.loc[frame["against"].isna(), "grader"].drop_duplicates().tolist()
    accuracies = Rows(frame[frame["against"].isna()])
    for number, (grader, colour) in enumerate(zip(graders, cycle(_GRADERS))):
        shift = 0.36 * (number / (len(graders) - 1) - 0.5)  # containment and at least one matcher
        accuracies.dots(panels[0], "accuracy", colour, grader, grader=grader, shift=shift)
    theme.percent_axis(panels[0], -0.02, 1.04)
    panels[0].set_title("Accuracy by grader")
    theme.legend(panels[0], columns=2)
    if len(agreed):
        pairs = agreed[["grader", "against"]].drop_duplicates().itertuples(index=False, name=None)
        for (grader, against), colour in zip(pairs, cycle(_GRADERS)):
            label = f"{grader} and {against}"
            rows.dots(panels[1], "scott_pi", colour, label, grader=grader, against=against)
        theme.change_axis(panels[1])
        panels[1].set_title("Scott's pi")
        theme.legend(panels[1], columns=1)
    return made


FIGURE = Figure("matching", _paint)
