"""The drop of an accuracy from base to checkpoint, absolute and relative to headroom.

    normalised drop = (acc_base - acc) / (acc_base - floor)

The floor is 0 for generated formats and 1/K for a choice among K options (The Benchmark
Illusion, Eq. 1).

Fates describe the answers that the base knew, that is both said and picked:

    kept            still said (greedy) and still picked (choice)
    mc_only         picked only: multiple choice still finds it
    produced_only   said only
    lost            neither; it may not be erased from the weights: beams, samples or
                    its rank may still find it
"""

from collections.abc import Callable

import numpy as np

from evaluator.metrics.bootstrap import Kinds
from evaluator.metrics.columns import PERCENTAGE, WHY, Row, worded
from evaluator.metrics.intervals import Floats
from evaluator.metrics.items import Array, Flags, Items, sides_of
from evaluator.metrics.measures import Measure, Share, as_floats

# The outcome column that marks an item as right, for each probe with an accuracy.
CORRECT = {"greedy": "produced", "choice": "recognised"}
# The same for the probes that look for a gold answer in generated text.
HIT = {"greedy": "produced", "beam": "beam_hit", "sample": "sample_hit"}


def normalised(base: Floats, own: Floats, floor: Floats) -> Floats:
    """The drop over the headroom, from both accuracies and the floor; NaN if the
    base is not above the floor."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(base > floor, (base - own) / (base - floor), np.nan)


def headroom(items: Items, probe: str) -> tuple[list[Floats], Kinds]:
    """The arguments of `normalised`, as a number per item, and the possible kinds of
    items (`bootstrap.intervals`)."""
    floors = guesses(items, probe)
    floor = float(floors.mean())
    kinds = [(0, 0, floor), (0, 1, floor), (1, 0, floor), (1, 1, floor)]
    return [*sides_of(items, CORRECT[probe]), floors], kinds


def guesses(items: Items, probe: str) -> Floats:
    """How often guessing is right about each item: 0 for a generated answer, 1/K for
    a choice."""
    if probe == "greedy":
        return np.zeros(len(items))
    return 1 / as_floats(items["base_options"])


def over_headroom(
    drop: float, base: float, floor: float
) -> tuple[float | None, str | None]:
    """Headroom-normalised drop, or the reason why it is undefined."""
    if base <= floor:
        return None, f"dense accuracy {base:.3f} is not above the floor {floor:.3f}"
    return drop / (base - floor), None


class NormalisedDrop(Measure):
    """`floor`, and `normalised_drop`: the drop over the headroom, of items that both
    have measured."""

    def __init__(self, probe: str) -> None:
        self._probe = probe

    def __call__(self, items: Items) -> Row:
        values, _ = headroom(items, self._probe)
        base, own, floor = (float(each.mean()) for each in values)
        relative, reason = over_headroom(base - own, base, floor)
        return {"floor": floor, "normalised_drop": relative, "reason": reason}

    def over_languages(self, items: Items) -> Row:
        why = "floor and normalised_drop are of all languages together"
        return {f"floor{WHY}": why, f"normalised_drop{WHY}": why}


FATES = ("kept", "mc_only", "produced_only", "lost")
NOT_KNOWN = "not_known"  # the base failed to say it or to pick it
UNMEASURED = "unmeasured"
RATES = PERCENTAGE.estimates(*(f"{fate}_rate" for fate in FATES))
# parts of a figure
BARS = {f"{fate}_rate": (worded(fate), fate, 1.0) for fate in FATES}


def fates_of(items: Items) -> Array:
    """The fate of each item, `not_known`, or `unmeasured`."""
    base_said, said = sides_of(items, "produced")
    base_picked, picked = sides_of(items, "recognised")
    conditions = {
        UNMEASURED: np.isnan(base_said + base_picked + said + picked),
        NOT_KNOWN: (base_said != 1) | (base_picked != 1),
        "kept": (said == 1) & (picked == 1),
        "mc_only": picked == 1,
        "produced_only": said == 1,
    }
    return np.select([*conditions.values()], [*conditions], default="lost")


def known(items: Items) -> Flags:
    """Which items have a fate."""
    return np.isin(fates_of(items), FATES)


def has_fate(fate: str) -> Callable[[Items], Flags]:
    return lambda items: fates_of(items) == fate


def fate_share(fate: str) -> Share:
    """The share of the items with this fate; unmeasured ones have no number."""

    def flags(items: Items) -> Floats:
        fates = fates_of(items)
        return np.where(fates == UNMEASURED, np.nan, fates == fate)

    return Share(f"{fate}_rate", flags)


def known_share(items: Items, fate: str) -> float | None:
    """The share of a fate among the known answers; None without any."""
    fates = fates_of(items.take(known(items)))
    return float((fates == fate).mean()) if len(fates) else None


class FateRates(Measure):
    """`known`: how many items have a fate; and the rate of each fate among these."""

    def __call__(self, items: Items) -> Row:
        items = items.take(known(items))
        row: Row = {"known": len(items)}
        for fate in FATES:
            row |= fate_share(fate)(items)
        return row
