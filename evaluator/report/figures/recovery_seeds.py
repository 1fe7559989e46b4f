"""Figure of table `recovery_seeds`: lowest, mean and highest rate over the seeds."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evaluator.report.figures.figure import Figure
from evaluator.report.figures.panels import rates


def _paint(frame: pd.DataFrame) -> Any:
    return rates(
        frame,
        "Recovered by samples among greedy failures, over the run seeds",
        [("lowest", "beam", "lowest", {}), ("mean", "greedy", "mean", {}), ("highest", "sample", "highest", {})],
    )


FIGURE = Figure("recovery_seeds", _paint)
