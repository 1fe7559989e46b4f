"""Table `noise`: what changes where nothing should (`evaluator.core.controls`).

A control and its checkpoint have the same weights. So their differences are the noise
floor: no smaller difference means anything. `distance` is how far the log-probability
of a greedy answer, if both say the same one, that of the best beam, the margin of a
choice or of the ranked token, or that of a text's window moves: the mean and the largest
over items, without a sign."""

from collections.abc import Collection, Iterator
from itertools import chain

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
from evaluator.metrics.fates import CORRECT, paired_row, sides_of
from evaluator.metrics.inputs import Comparison, Inputs
from evaluator.metrics.measures import Unbounded, rate
from evaluator.metrics.table import Table
from evaluator.metrics.tables.fidelity import ALONG, divergence_of
from evaluator.metrics.tables.flips import ANSWER, changes_in

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
    for comparison in chain.from_iterable(inputs.controls_of.values()):
        if comparison.reason is not None:
            yield _own(comparison) | {"n": 0, "reason": comparison.reason}
            continue
        for probe in _MOVED:
            if comparison.tells_of(probe):
                yield _of_probe(comparison, probe)
        yield from _of_distributions(inputs, comparison)


def _of_probe(comparison: Comparison, probe: str) -> Row:
    """The changed answers of one probe, and how far its numbers moved."""
    items = comparison.measured(probe)
    row = _own(comparison) | paired_row(next(comparison.parts(items)), probe)
    row |= {"probe": probe}
    del row["language"]
    if items.empty:
        return row
    same = np.ones(len(items), bool)
    if probe in CORRECT:
        row |= _some(changes_in(items, probe), _CHANGES)
        before, after = sides_of(items, ANSWER[probe])
        row |= rate("changed_rate", before != after, items)
    if probe == "greedy":
        lengths = sides_of(items, "answer_tokens")
        same = (before == after) & (lengths[0] == lengths[1])
    dense, control = sides_of(items[same], _MOVED[probe])
    if not len(dense):
        return row
    moved = np.abs(dense - control)
    mean = Unbounded.ratio(moved, np.ones(len(moved)), items[same])
    return row | mean.row("distance", "log") | {"distance_max": float(moved.max())}


def _of_distributions(inputs: Inputs, comparison: Comparison) -> Iterator[Row]:
    """The divergences of its next-token distributions, where probes compare them."""
    subject = comparison.subject
    items = inputs.outcomes_of(subject.checkpoint, subject.task)
    for along in ALONG:
        if items[f"{along.probe}_status"].notna().any():
            row = _own(comparison) | {"probe": along.probe, "along": along.name}
            yield row | _some(divergence_of(items, along), _DIVERGENCES)


def _some(row: Row, names: Collection[str]) -> Row:
    return {name: value for name, value in row.items() if name in names}


def _own(comparison: Comparison) -> Row:
    subject = comparison.subject
    return subject.row | {"control": change_of(subject.checkpoint)}


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
