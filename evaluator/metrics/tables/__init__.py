"""The tables of the report, one file each. Adding one is a file with a `TABLE`, and a line here."""

from __future__ import annotations

from evaluator.core.config import Registry
from evaluator.metrics.table import Table
from evaluator.metrics.tables import (
    accuracy,
    calibration,
    candidates,
    distractors,
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
    prompt_order,
    prompts,
    rank,
    recovery,
    recovery_percent,
    recovery_seeds,
    screening,
    vote,
    weak,
)

# In the order of the report.
TABLES: Registry[Table] = Registry(
    "table",
    (
        accuracy.TABLE,
        fates.TABLE,
        flips.TABLE,
        recovery_percent.TABLE,
        length.TABLE,
        ladder.TABLE,
        recovery.TABLE,
        rank.TABLE,
        pr_gap.TABLE,
        candidates.TABLE,
        distractors.TABLE,
        hard_distractors.TABLE,
        recovery_seeds.TABLE,
        one_shot.TABLE,
        calibration.TABLE,
        fertility.TABLE,
        perplexity.TABLE,
        fidelity.TABLE,
        matching.TABLE,
        judges.TABLE,
        prompts.TABLE,
        prompt_order.TABLE,
        weak.TABLE,
        vote.TABLE,
        overlap.TABLE,
        screening.TABLE,
    ),
)
