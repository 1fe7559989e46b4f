"""Figure of table `candidates`: accuracy by what is listed as candidates."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.report.figures.figure import Figure
from evaluator.report.figures.panels import rates


def _paint(frame: pd.DataFrame) -> Any:
    return rates(
        frame,
        "Open accuracy by what is listed as candidates",
        [
            ("accuracy", "greedy", "none", {"format": "open"}),
            ("accuracy", "lost", "distractors only", {"format": "distractors_only"}),
            ("accuracy", "negative", "unrelated", {"format": "unrelated"}),
            ("accuracy", "shown", "gold among them", {"format": "shown"}),
        ],
    )


FIGURE = Figure("candidates", _paint)
