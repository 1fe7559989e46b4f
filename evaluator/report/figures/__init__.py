"""Figures, at most one per table: a row per checkpoint, pooled over languages at the left, by language at the right.

Adding one is a file with a `FIGURE`, and a line here. A table without a figure is fine.
"""

from __future__ import annotations

import pandas as pd

from evaluator.core.config import Registry
from evaluator.report.figures import (
    accuracy,
    calibration,
    candidates,
    fates,
    fertility,
    fidelity,
    flips,
    hard_distractors,
    judges,
    ladder,
    length,
    matching,
    one_shot,
    overlap,
    perplexity,
    pr_gap,
    prompts,
    rank,
    recovery,
    recovery_percent,
    recovery_seeds,
    theme,
    vote,
    weak,
)
from evaluator.report.figures.figure import Figure

FIGURES: Registry[Figure] = Registry(
    "figure",
    (
        accuracy.FIGURE,
        fates.FIGURE,
        flips.FIGURE,
        recovery_percent.FIGURE,
        length.FIGURE,
        ladder.FIGURE,
        recovery.FIGURE,
        rank.FIGURE,
        pr_gap.FIGURE,
        candidates.FIGURE,
        hard_distractors.FIGURE,
        recovery_seeds.FIGURE,
        one_shot.FIGURE,
        calibration.FIGURE,
        fertility.FIGURE,
        perplexity.FIGURE,
        fidelity.FIGURE,
        matching.FIGURE,
        judges.FIGURE,
        weak.FIGURE,
        vote.FIGURE,
        overlap.FIGURE,
        prompts.FIGURE,
    ),
)


def draw(name: str, frame: pd.DataFrame) -> str | None:
    """The figure of table `name` as inline SVG; None when the table has nothing to show or no figure."""
    if name not in FIGURES or frame.empty:
        return None
    with theme.styled():
        made = FIGURES[name].paint(frame)
        if made is None:
            return None
        return theme.to_svg(made, f"figure-{name.replace('_', '-')}", f"Figure of table {name}")
