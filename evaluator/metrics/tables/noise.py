"""Table `noise`: what changes where nothing should (`evaluator.core.controls`).

A control and its checkpoint have the same weights. So their differences are the noise
floor: no smaller difference means anything. `distance` is how far the log-probability
of a greedy answer, if both say the same one, that of the best beam, the margin of a
choice or of the ranked token, or that of a text's window moves: the mean and the largest
over items, without a sign."""

from collections.abc import Collection, Iterator

import numpy as np

from evaluator.core.controls import change_of
from evaluator.metrics.columns import (
    COUNT,
    DIVERGENCE,
    NATS,
    PERCENTAGE,
    SCORE,
    SUBJECT,
    TEXT,
    WHY,
    Row,
)
from evaluator.metrics.cuts import Cut
from evaluator.metrics.fates import CORRECT
from evaluator.metrics.inputs import Inputs, Subject
from evaluator.metrics.items import Items, sides_of
from evaluator.metrics.measures import Custom, Unbounded, rate
from evaluator.metrics.table import Table
from evaluator.metrics.tables.fidelity import ALONG, divergence_of
from evaluator.metrics.tables.flips import ANSWER, Changes

_MOVED = {
    "greedy": "answer_logprob",
    "beam": "beam_logprob",
    "choice": "choice_margin",
    "rank": "margin",
    "aligned_rank": "aligned_margin",
    "perplexity": "nll",
}
_ENDS = ("", "_low", "_high", WHY)
_CHANGES = {"flips", *(f"flip_rate{end}" for end in _ENDS)}
_DIVERGENCES = {"n", "excluded", "engine_error", "reason", "kld_max"}
for _name in ("kld", "acceptance", "same_top"):
    _DIVERGENCES.update(f"{_name}{end}" for end in _ENDS)


def _rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.once_more:
        own = subject.row | {"control": change_of(subject.checkpoint)}
        if reason := inputs.alone(subject):
            yield own | {"n": 0, "reason": reason}
            continue
        for probe in _MOVED:
            for row in _cut(probe).rows(inputs, subject):
                del row["language"]
                yield row | own
        for row in _of_distributions(inputs, subject):
            yield own | row


def _cut(probe: str) -> Cut:
    """The changed answers of one probe, and how far its numbers moved."""

    def moved(items: Items) -> Row:
        if not len(items):
            return {}
        same, row = np.ones(len(items), bool), Row()
        if probe in CORRECT:
            row |= _some(Changes(probe)(items), _CHANGES)
            before, after = sides_of(items, ANSWER[probe])
            row |= rate("changed_rate", before != after, items)
        if probe == "greedy":
            lengths = sides_of(items, "answer_tokens")
            same = (before == after) & (lengths[0] == lengths[1])
        items = items.take(same)
        if not len(items):
            return row
        base, own = sides_of(items, _MOVED[probe])
        distance = np.abs(base - own)
        mean = Unbounded.ratio(distance, np.ones(len(items)), items)
        row |= mean.row("distance", "log")
        return row | {"distance_max": float(distance.max())}

    return Cut(
        keys={"probe": probe},
        probes=(probe,),
        both=True,
        measures=(Custom(moved),),
        pooled=True,
    )


def _of_distributions(inputs: Inputs, subject: Subject) -> Iterator[Row]:
    """The divergences of its next-token distributions, where probes compare them."""
    items = inputs.of(subject)
    for along in ALONG:
        if items.any_ran(along.probe):
            row = _some(divergence_of(items, along), _DIVERGENCES)
            yield row | {"probe": along.probe, "along": along.name}


def _some(row: Row, names: Collection[str]) -> Row:
    return {name: value for name, value in row.items() if name in names}


TABLE = Table(
    name="noise",
    title="How much changes where nothing should?",
    reading=(
        "A control is a checkpoint once more, under a change that should not matter."
        " All that differs is noise: a difference from the base that is not above it"
        " means nothing. changed counts other answers, flips only those that are now"
        " right or wrong. distance: how far log-probabilities move, without a sign."
    ),
    needs="a control (--control repeat, or controls: in a sweep)",
    columns=(
        *SUBJECT,
        *TEXT("control", "probe", "along"),
        *COUNT("n", "excluded", "engine_error", "unpaired", "flips"),
        *PERCENTAGE.estimates("flip_rate", "changed_rate"),
        *DIVERGENCE.estimates("distance"),
        *NATS("distance_max"),
        *DIVERGENCE.estimates("kld"),
        *DIVERGENCE("kld_max"),
        *SCORE.estimates("acceptance"),
        *PERCENTAGE.estimates("same_top"),
    ),
    compute=_rows,
)
