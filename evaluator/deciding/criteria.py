"""The gate's criteria: numbers with a tolerance, and the evidence for them. A criterion is one entry of CRITERIA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self

import numpy as np
from scipy.special import ndtr, ndtri

from evaluator.deciding.paired import Flags, Paired
from evaluator.deciding.thresholds import Thresholds
from evaluator.metrics.columns import PERCENTAGE, POINTS, RATIO, SCORE, Kind
from evaluator.metrics.intervals import ALPHA, Floats, Mean, Ratio

# A loss beyond the tolerance means: fewer answers are said, fewer are recognised, answers change, or token
# probabilities change.
Shows = Literal["saying", "recognising", "changing", "probabilities"]
# How to count an item without a judgement: not at all, as a loss, as a gain.
Absent = Literal["left out", "loss", "gain"]
EXTREMES: tuple[Absent, ...] = ("loss", "gain")
_Z = float(ndtri(1 - ALPHA / 2))


class Evidence(Protocol):
    """A number with one-sided p-values and bounds at any level."""

    @property
    def value(self) -> float: ...
    @property
    def n(self) -> int: ...
    @property
    def contexts(self) -> int: ...
    def p_at_least(self, margin: float) -> float: ...
    def p_at_most(self, margin: float) -> float: ...
    def upper(self, level: float) -> float: ...
    def lower(self, level: float) -> float: ...
    def times(self, factor: float) -> Self:
        """The same number with `factor` times as many contexts."""


@dataclass(frozen=True, kw_only=True)
class Reported:
    """A table's number with its 95 % interval. Each half is scaled like a normal distribution's."""

    value: float
    low: float
    high: float
    n: int
    contexts: int

    def p_at_least(self, margin: float) -> float:
        return _tail(margin - self.value, self.high - self.value)

    def p_at_most(self, margin: float) -> float:
        return _tail(self.value - margin, self.value - self.low)

    def upper(self, level: float) -> float:
        return self.value + (self.high - self.value) * float(ndtri(1 - level)) / _Z

    def lower(self, level: float) -> float:
        return self.value - (self.value - self.low) * float(ndtri(1 - level)) / _Z

    def times(self, factor: float) -> Reported:
        narrower = factor**-0.5
        low, high = (self.value + (end - self.value) * narrower for end in (self.low, self.high))
        return replace(self, low=low, high=high)


def _tail(distance: float, side: float) -> float:
    return float(ndtr(-_Z * distance / side)) if side > 0 else float(distance <= 0)


@dataclass(frozen=True)
class Measured:
    """The evidence from `due` items. `missing` of them lack a judgement; if all do, there is no evidence."""

    evidence: Evidence | None
    due: int = 0
    missing: int = 0


Measure = Callable[[Paired, Absent], Measured]


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """One number with a tolerance, which is the field `bound` of `Thresholds` divided by `per`.

    The number is measured on a checkpoint's items (`measure`) or comes from a table (`table`, `column`, `where`).
    """

    name: str
    told: str  # in a sentence: "open accuracy lost"
    bound: str
    kind: Kind
    shows: Shows
    measure: Measure | None = None
    table: str = ""
    column: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    of_language: str = ""  # the tolerance within one language, if languages are judged
    counted: str = "items"
    per: float = 100.0
    least: bool = False  # the tolerance is the least that is allowed, not the most

    @property
    def is_drop(self) -> bool:
        return bool(self.of_language)

    def threshold(self, thresholds: Thresholds, *, language: bool = False) -> float | None:
        """The tolerance in the number's units; None if it is not judged."""
        value: float | None = getattr(thresholds, self.of_language if language else self.bound)
        return None if value is None else value / self.per


def _mean(
    paired: Paired, values: Floats, due: Flags, absent: Absent, *, low: float = 0.0, loss: float = 1.0
) -> Measured:
    """The mean over the due items. `low` is the value of a gain, `loss` that of a loss."""
    gone = due & np.isnan(values)
    if absent != "left out":
        values = np.where(gone, loss if absent == "loss" else low, values)
    kept = due & ~np.isnan(values)
    found = Mean(values[kept], paired.contexts[kept], low=low) if kept.any() else None
    return Measured(found, int(due.sum()), int(gone.sum()))


def _open_drop(paired: Paired, absent: Absent) -> Measured:
    return _mean(paired, paired.base_said - paired.said, paired.open, absent, low=-1.0)


def _choice_drop(paired: Paired, absent: Absent) -> Measured:
    return _mean(paired, paired.base_picked - paired.picked, paired.choice, absent, low=-1.0)


def _fate(picked: float) -> Measure:
    """The share of known answers that are no longer said but still picked (`picked` 1), or neither (0)."""

    def share(paired: Paired, absent: Absent) -> Measured:
        unknown = (paired.base_said == 0) | (paired.base_picked == 0)
        values = ((paired.said == 0) & (paired.picked == picked)).astype(np.float64)
        measured = paired.base_said + paired.base_picked + paired.said + paired.picked
        values[np.isnan(measured)] = np.nan
        asked = paired.open & paired.choice
        return replace(_mean(paired, values, asked & ~unknown, absent), due=int(asked.sum()))

    return share


def _recovery(base: str, own: str, due: str) -> Measure:
    def ratio(paired: Paired, absent: Absent) -> Measured:
        under, over, asked = (getattr(paired, name) for name in (base, own, due))
        gone = asked & np.isnan(under + over)
        if absent != "left out":
            under, over = np.where(gone, 1.0, under), np.where(gone, float(absent == "gain"), over)
        kept = asked & ~np.isnan(under + over)
        found = Ratio(over[kept], under[kept], paired.contexts[kept]) if under[kept].any() else None
        return Measured(found, int(asked.sum()), int(gone.sum()))

    return ratio


def _open_flips(paired: Paired, absent: Absent) -> Measured:
    return _mean(paired, np.abs(paired.base_said - paired.said), paired.open, absent)


def _choice_flips(paired: Paired, absent: Absent) -> Measured:
    return _mean(paired, np.abs(paired.base_picked - paired.picked), paired.choice, absent)


def _drop(word: str, measure: Measure, shows: Shows) -> Criterion:
    return Criterion(
        name=f"{word}_drop",
        told=f"{word} accuracy lost",
        bound="max_drop",
        of_language="drop_language",
        kind=POINTS,
        shows=shows,
        measure=measure,
    )


def _left(word: str, measure: Measure, shows: Shows) -> Criterion:
    return Criterion(
        name=f"{word}_recovery",
        told=f"{word} accuracy left",
        bound="min_recovery",
        kind=PERCENTAGE,
        shows=shows,
        measure=measure,
        least=True,
    )


def _flips(word: str, measure: Measure) -> Criterion:
    return Criterion(
        name=f"{word}_flips",
        told=f"{word} flips",
        bound="max_flips",
        kind=PERCENTAGE,
        shows="changing",
        measure=measure,
    )


_SAID = {"along": "greedy answer", "group": "all"}  # rows of table fidelity: along the base's own answer
# The most important first: a sentence names only some.
CRITERIA = (
    _drop("open", _open_drop, "saying"),
    _drop("choice", _choice_drop, "recognising"),
    Criterion(
        name="mc_only",
        told="known answers picked and no longer said",
        bound="max_mc_only",
        kind=PERCENTAGE,
        shows="saying",
        measure=_fate(1.0),
        counted="known answers",
    ),
    Criterion(
        name="lost",
        told="known answers neither said nor picked",
        bound="max_lost",
        kind=PERCENTAGE,
        shows="recognising",
        measure=_fate(0.0),
        counted="known answers",
    ),
    _left("open", _recovery("base_said", "said", "open"), "saying"),
    _left("choice", _recovery("base_picked", "picked", "choice"), "recognising"),
    _flips("open", _open_flips),
    _flips("choice", _choice_flips),
    Criterion(
        name="delta_pr",
        told="Delta_PR",
        bound="max_delta_pr",
        kind=RATIO,
        shows="saying",
        table="pr_gap",
        column="delta_pr",
        per=1.0,
    ),
    Criterion(
        name="kld",
        told="KL divergence from the base, nats a token,",
        bound="max_kld",
        kind=SCORE,
        shows="probabilities",
        table="fidelity",
        column="kld",
        where=_SAID,
        per=1.0,
    ),
    Criterion(
        name="ear",
        told="expected acceptance rate",
        bound="min_ear",
        kind=SCORE,
        shows="probabilities",
        table="fidelity",
        column="acceptance",
        where=_SAID,
        per=1.0,
        least=True,
    ),
)
