"""Fates: what became of an answer that the dense model knew, that is both produced and recognised.

kept            still produced (open, greedy) and still recognised (choice)
mc_only         recognised, no longer produced: multiple choice alone still sees it
produced_only   produced, no longer recognised
lost            neither; that does not mean erased from the weights: beams, samples or its rank may still find it
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from evaluator.metrics.inputs import SIDES

FATES = ("kept", "mc_only", "produced_only", "lost")
NOT_KNOWN = "not_known"  # the dense model did not both produce and recognise it
UNMEASURED = "unmeasured"


def item_fates(outcomes: pd.DataFrame) -> pd.Series:
    """The fate of each row of a comparison's outcomes, or `not_known`, or `unmeasured`."""
    measured = fate_measured(outcomes)
    known = ((outcomes["produced_dense"] == 1) & (outcomes["recognised_dense"] == 1)).to_numpy()
    produced, recognised = (outcomes[f"{name}_pruned"].to_numpy() == 1 for name in ("produced", "recognised"))
    fate = np.select(
        [~measured, ~known, produced & recognised, recognised, produced],
        [UNMEASURED, NOT_KNOWN, "kept", "mc_only", "produced_only"],
        default="lost",
    )
    return pd.Series(fate, index=outcomes.index, dtype="object")


def known_items(outcomes: pd.DataFrame) -> pd.DataFrame:
    """The rows that have a fate, with their `fate`: measured with both probes in both checkpoints, and known."""
    fated = outcomes.assign(fate=item_fates(outcomes))
    return fated[fated["fate"].isin(FATES)]


def fate_measured(outcomes: pd.DataFrame) -> np.ndarray:
    """Which rows have what a fate needs: produced and recognised, in both checkpoints."""
    columns = [f"{name}_{side}" for name in ("produced", "recognised") for side in SIDES]
    return outcomes[columns].notna().all(axis=1).to_numpy(bool)
