"""Table `flips`: how many answers changed, even if the accuracy did not (Dutta et al.,
arXiv 2407.09141).

A flip is an item that was right in the base and is wrong here, or the reverse. Items
that are wrong in both, with different answers, have their own column. Greedy answers
are compared like texts in grading, choices by the option with the highest score.
`margin` splits the pooled items into thirds by the base's confidence, in nats: the mean
log-probability of a greedy answer's tokens, or the score of the gold option minus the
best other one's.
"""

from collections.abc import Callable, Iterator

import numpy as np

from evaluator.metrics.columns import (
    BY_LANGUAGE,
    COUNT,
    MCNEMAR,
    NATS,
    PERCENTAGE,
    TEXT,
    Column,
    Row,
)
from evaluator.metrics.cuts import Cut, walk
from evaluator.metrics.fates import CORRECT
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.intervals import Floats, mcnemar_p
from evaluator.metrics.items import ALL, Flags, Items, sides_of
from evaluator.metrics.measures import Custom, Measure, flip_rate, rate
from evaluator.metrics.table import LACKS, Bars, Holm, Table

THIRDS = ("lowest", "middle", "highest")
KINDS = ("right_to_wrong", "wrong_to_right", "wrong_to_other")
ANSWER = {"greedy": "answer_said", "choice": "picked"}  # columns that identify it


class Changes(Measure):
    """How many answers of a probe changed, and how; all are measured in both."""

    def __init__(self, probe: str) -> None:
        self._right, self._answer = CORRECT[probe], ANSWER[probe]

    def __call__(self, items: Items) -> Row:
        base, own = sides_of(items, self._right)
        before, after = sides_of(items, self._answer)
        row: Row = {
            "flips": int((base != own).sum()),
            "mcnemar_p": mcnemar_p(base, own),
        }
        row |= flip_rate(self._right)(items)
        kinds = (base > own, base < own, (base + own == 0) & (before != after))
        for name, flags in zip(KINDS, kinds, strict=True):
            row |= {name: int(flags.sum()), **rate(f"{name}_rate", flags, items)}
        return row


def margins(items: Items, probe: str) -> Floats:
    """The base's confidence in its answer to each item, in nats."""
    if probe == "choice":
        return np.abs(items["base_choice_margin"])
    return items["base_answer_logprob"] / items["base_answer_tokens"]


def _third(probe: str, number: int) -> Callable[[Items], Flags]:
    """Which items are in one of the thirds by margin."""

    def is_in(items: Items) -> Flags:
        found = margins(items, probe)
        some = np.flatnonzero(~np.isnan(found))
        flags = np.zeros(len(items), dtype=np.bool_)
        if len(some) >= len(THIRDS):
            order = some[np.argsort(found[some], kind="stable")]
            flags[np.array_split(order, len(THIRDS))[number]] = True
        return flags

    return is_in


def _ends(probe: str) -> Custom:
    def ends(items: Items) -> Row:
        if not len(items):
            return {}
        found = margins(items, probe)
        return {"margin_from": found.min(), "margin_to": found.max()}

    return Custom(ends)


def _cuts(probe: str) -> Iterator[Cut]:
    """All items, then the thirds of the pooled ones by the base's margin."""
    probes, changes = (probe,), Changes(probe)
    keys = {"probe": probe, "margin": ALL}
    yield Cut(keys=keys, probes=probes, both=True, measures=(changes,))
    for number, name in enumerate(THIRDS):
        yield Cut(
            keys=keys | {"margin": name},
            probes=probes,
            both=True,
            where=_third(probe, number),
            measures=(changes, _ends(probe)),
            pooled=True,
        )


_CUTS = [cut for probe in CORRECT for cut in _cuts(probe)]


def _rows(inputs: Inputs) -> Iterator[Row]:
    for row in walk(inputs, _CUTS):
        if row["margin"] == ALL or row["n"]:
            yield row


_PAINTS = {
    "right_to_wrong": ("lost", 1.0),
    "wrong_to_right": ("kept", 1.0),
    "wrong_to_other": ("muted", 0.35),
}
_PARTS = {
    f"{name}_rate": (name.replace("_", " "), *paint) for name, paint in _PAINTS.items()
}

TABLE = Table(
    name="flips",
    title="How many answers changed?",
    reading=(
        "Flips are items that changed from right to wrong, or from wrong to right."
        " Accuracy shows only their difference. wrong to other: wrong in both"
        " checkpoints, with another answer. margin splits the pooled items into thirds"
        " by the base's confidence in its answer, in nats. Flips are harmless noise"
        " only if they stay in the lowest third."
    ),
    needs="the probe greedy or choice on a checkpoint and its base",
    columns=(
        *BY_LANGUAGE,
        *TEXT("probe", "margin"),
        *NATS("margin_from", "margin_to"),
        *COUNT("n", "excluded", "engine_error", "unpaired", "flips", *KINDS),
        *PERCENTAGE.estimates("flip_rate", p="mcnemar_p"),
        *(
            Column(f"{name}_rate", PERCENTAGE, name.replace("_", " "), interval=True)
            for name in KINDS
        ),
        *MCNEMAR,
    ),
    compute=_rows,
    figure=tuple(
        Bars(title, _PARTS, {"probe": probe})
        for probe, title in (
            ("greedy", "Said answers that changed, %"),
            ("choice", "Picked answers that changed, %"),
        )
    ),
    plotted=lambda frame: frame[(frame["margin"] == ALL) & (frame["n"] > 0)],
    corrections=(Holm(("task", "language", "probe", "margin")),),
    lacks=LACKS,
)
