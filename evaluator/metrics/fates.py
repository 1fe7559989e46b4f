"""The drop of an accuracy from dense to pruned, absolute and relative to headroom.

    normalised drop = (acc_dense - acc_pruned) / (acc_dense - floor)

The floor is 0 for generated formats and 1/K for a choice among K options (The Benchmark
Illusion, Eq. 1).

Fates describe the answers that the dense model knew, that is both produced and
recognised:

    kept            still produced (open, greedy) and still recognised (choice)
    mc_only         recognised, no longer produced: only multiple choice still finds it
    produced_only   produced, no longer recognised
    lost            neither; it may not be erased from the weights: beams, samples or
                    its rank may still find it
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from evaluator.metrics.bootstrap import Kinds
from evaluator.metrics.columns import PERCENTAGE, Column, Row
from evaluator.metrics.exclusions import joined_reasons, why_left_out
from evaluator.metrics.inputs import SIDES, Comparison, Part, in_language, statuses_of
from evaluator.metrics.intervals import Floats
from evaluator.metrics.measures import as_floats, paired_difference, rate

# The outcome column that marks an item as right, for each probe with an accuracy.
CORRECT = {"greedy": "produced", "choice": "recognised"}
# The same for the probes that look for a gold answer in generated text.
HIT = {"greedy": "produced", "beam": "beam_hit", "sample": "sample_hit"}
UNPAIRED = "no item is measured in both the checkpoint and its base"


def normalised(dense: Floats, pruned: Floats, floor: Floats) -> Floats:
    """The drop over the headroom, from both accuracies and the floor; NaN if the
    base is not above the floor."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(dense > floor, (dense - pruned) / (dense - floor), np.nan)


def headroom(items: pd.DataFrame, probe: str) -> tuple[list[Floats], Kinds]:
    """The arguments of `normalised`, as a number per item, and the possible kinds of
    items (`bootstrap.intervals`)."""
    floors = np.zeros(len(items))
    if probe != "greedy":
        floors = 1 / as_floats(items["options_dense"])
    floor = float(floors.mean())
    kinds = [(0, 0, floor), (0, 1, floor), (1, 0, floor), (1, 1, floor)]
    return [*sides_of(items, CORRECT[probe]), floors], kinds


def paired_drop(comparison: Comparison, items: pd.DataFrame, column: str) -> Row:
    """`n_paired` and an outcome's drop from the base, with its p, on `items`;
    without any, 0 and a reason."""
    if items.empty:
        return {"n_paired": 0, "reason": comparison.reason or UNPAIRED}
    drop = paired_difference("drop", sides_of(items, column), items)
    return {"n_paired": len(items), **drop}


def why_unpaired(comparison: Comparison, language: str, probe: str) -> str | None:
    """Why items of a language (or of all) were not measured in the checkpoint or its
    base."""
    items = in_language(comparison.outcomes, language)
    return why_left_out(items, *statuses_of(probe))


def paired_row(part: Part, probe: str, nothing: str = UNPAIRED) -> Row:
    """The first columns of a row about the items measured in both: how many there
    are, how many others, and why. `nothing`: why there are none."""
    comparison = part.compared
    why = comparison.reason or nothing if part.items.empty else None
    reason = joined_reasons(why, why_unpaired(comparison, part.language, probe))
    row = part.row | comparison.counts(part.language, probe)
    return row | {"n": len(part.items), "reason": reason}


def sides_of(items: pd.DataFrame, column: str) -> tuple[Floats, Floats]:
    """A column of a comparison's outcomes, in the dense and in the pruned
    checkpoint; all values are measured."""
    dense, pruned = (as_floats(items[f"{column}_{side}"]) for side in SIDES)
    return dense, pruned


def over_headroom(
    drop: float, dense: float, floor: float
) -> tuple[float | None, str | None]:
    """Headroom-normalised drop, or the reason why it is undefined."""
    if dense <= floor:
        return None, f"dense accuracy {dense:.3f} is not above the floor {floor:.3f}"
    return drop / (dense - floor), None


def floor_of(items: pd.DataFrame, probe: str) -> float:
    """The accuracy of guessing: 0 for a generated answer, the mean of 1/K over the
    items for choice."""
    if probe == "greedy" or items.empty:
        return 0.0
    return float((1 / items["options"].astype("float64")).mean())


FATES = ("kept", "mc_only", "produced_only", "lost")
NOT_KNOWN = "not_known"  # the dense model failed to produce it or to recognise it
UNMEASURED = "unmeasured"
RATES = tuple(
    Column(f"{fate}_rate", PERCENTAGE, f"{fate} rate", interval=True) for fate in FATES
)
BARS = {f"{fate}_rate": (fate, fate, 1.0) for fate in FATES}  # parts of a figure


def fates_of(
    base_said: Floats, base_picked: Floats, said: Floats, picked: Floats
) -> npt.NDArray[Any]:
    """The fate of each item, `not_known`, or `unmeasured`; of flags 0.0, 1.0 or NaN."""
    known = (base_said == 1) & (base_picked == 1)
    conditions = {
        UNMEASURED: np.isnan(base_said + base_picked + said + picked),
        NOT_KNOWN: ~known,
        "kept": (said == 1) & (picked == 1),
        "mc_only": picked == 1,
        "produced_only": said == 1,
    }
    return np.select([*conditions.values()], [*conditions], default="lost")


def item_fates(outcomes: pd.DataFrame) -> pd.Series:
    """The fates of the rows of a comparison's outcomes."""
    base_said, said = sides_of(outcomes, "produced")
    base_picked, picked = sides_of(outcomes, "recognised")
    fates = fates_of(base_said, base_picked, said, picked)
    return pd.Series(fates, index=outcomes.index, dtype="object")


def known_share(outcomes: pd.DataFrame, fate: str) -> float | None:
    """The share of a fate among the known answers; None without any."""
    fates = item_fates(outcomes)
    known = int(fates.isin(FATES).sum())
    return int((fates == fate).sum()) / known if known else None


def fate_rates(outcomes: pd.DataFrame) -> Row:
    """`known`: how many of a comparison's outcomes have a fate; and the rate of each
    fate among these."""
    fates = item_fates(outcomes)
    known = fates.isin(FATES)
    row: Row = {"known": int(known.sum())}
    for fate in FATES:
        row |= rate(f"{fate}_rate", fates[known] == fate, outcomes[known])
    return row
