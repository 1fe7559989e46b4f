"""The gate's criteria: numbers with a tolerance, and the paired answers that they
are measured on.

A criterion is one entry of CRITERIA."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import ndtr, ndtri

from evaluator.deciding.thresholds import Thresholds
from evaluator.metrics.columns import PERCENTAGE, POINTS, RATIO, SCORE, Kind
from evaluator.metrics.fates import UNMEASURED, fates_of, floor_of
from evaluator.metrics.inputs import ALL, Comparison, Inputs
from evaluator.metrics.intervals import ALPHA, Floats, ItemNumbers, Mean, Ratio

Flags = npt.NDArray[np.bool_]
Probe = Literal["open", "choice"]
# A loss beyond the tolerance: fewer answers are said, fewer are recognised, answers or
# token probabilities change.
Shows = Literal["saying", "recognising", "changing", "probabilities"]
# How to count an item without a judgement: not at all, as a loss, as a gain.
Absent = Literal["left out", "loss", "gain"]
EXTREMES: tuple[Absent, ...] = ("loss", "gain")
UNKNOWN = ""  # the language of a planned item without any record
_Z = float(ndtri(1 - ALPHA / 2))


@dataclass(frozen=True, eq=False, kw_only=True)
class Paired:
    """One entry per item: open (`said`) and choice answers (`picked`): 1.0 right,
    0.0 wrong, NaN without a judgement.

    The flags `open` and `choice` mark the items that this probe was to judge."""

    languages: npt.NDArray[np.object_]
    contexts: ItemNumbers
    base_said: Floats
    said: Floats
    base_picked: Floats
    picked: Floats
    open: Flags
    choice: Flags
    floor: float = 0.0  # the accuracy of guessing

    def at(self, rows: ItemNumbers) -> "Paired":
        """The items of these rows, in this order; rows may repeat."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        chosen: dict[str, Any] = {
            name: each[rows]
            for name, each in values.items()
            if isinstance(each, np.ndarray)
        }
        return replace(self, **chosen)

    def of(self, language: str) -> "Paired":
        return (
            self
            if language == ALL
            else self.at(np.flatnonzero(self.languages == language))
        )

    def answers(self, probe: Probe) -> tuple[Floats, Floats, Flags]:
        """The base's answers, the checkpoint's, and the flags of one probe."""
        if probe == "open":
            return self.base_said, self.said, self.open
        return self.base_picked, self.picked, self.choice

    @cached_property
    def spoken(self) -> list[str]:
        """The known languages, sorted."""
        return sorted({str(each) for each in self.languages} - {UNKNOWN})


def paired_of(
    inputs: Inputs, comparison: Comparison, planned: int | None = None
) -> Paired:
    """Open-format outcomes of both. `planned`: how many items were to be judged;
    None: those with any record."""
    subject = comparison.subject
    own = inputs.outcomes_of(subject.checkpoint, subject.task)
    base = inputs.outcomes_of(subject.base or "", subject.task)
    numbers = own["item"].to_numpy(np.intp)
    alone = np.setdiff1d(base["item"].to_numpy(np.intp), numbers)
    lacking = len(alone) if planned is None else max(0, planned - len(numbers))
    if lacking >= len(alone):
        numbers, lacking = np.concatenate([numbers, alone]), lacking - len(alone)
    asked = inputs.asked(subject.task).set_index("item").loc[numbers].reset_index()
    own, base = (each.set_index("item").reindex(numbers) for each in (own, base))
    answers = {
        f"{side}{word}": np.append(
            frame[column].astype("Float64").to_numpy(np.float64, na_value=np.nan),
            np.full(lacking, np.nan),
        )
        for side, frame in {"": own, "base_": base}.items()
        for word, column in (("said", "produced"), ("picked", "recognised"))
    }
    contexts = asked["context"].to_numpy(np.intp)
    return Paired(
        languages=np.append(
            asked["language"].to_numpy(object), np.full(lacking, UNKNOWN, dtype=object)
        ),
        contexts=np.append(contexts, contexts.max(initial=-1) + 1 + np.arange(lacking)),
        open=_due(own, base, "greedy", lacking),
        choice=_due(own, base, "choice", lacking),
        floor=floor_of(base[base["options"].notna()], "choice"),
        **answers,
    )


def _due(own: pd.DataFrame, base: pd.DataFrame, probe: str, lacking: int) -> Flags:
    """The items that the probe was to judge: all that not both sides excluded; none
    if a side lacks the probe."""
    statuses = [side[f"{probe}_status"] for side in (own, base)]
    if any(status.isna().all() for status in statuses):
        return np.zeros(len(own) + lacking, dtype=bool)
    excluded = np.logical_and.reduce(
        [(status == "excluded").fillna(False).to_numpy(bool) for status in statuses]
    )
    return np.append(~excluded, np.ones(lacking, dtype=bool))


@dataclass(frozen=True, kw_only=True)
class Reported:
    """A table's number with its 95 % interval. Each half is scaled like a normal
    distribution's."""

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

    def times(self, factor: float) -> "Reported":
        narrower = factor**-0.5
        low, high = (
            self.value + (end - self.value) * narrower for end in (self.low, self.high)
        )
        return replace(self, low=low, high=high)


def _tail(distance: float, side: float) -> float:
    return float(ndtr(-_Z * distance / side)) if side > 0 else float(distance <= 0)


Evidence = Mean | Reported  # a number with one-sided p-values and bounds at any level


@dataclass(frozen=True)
class Measured:
    """The evidence from `due` items. `missing` of them lack a judgement; if all do,
    there is no evidence."""

    evidence: Evidence | None
    due: int = 0
    missing: int = 0


@dataclass(frozen=True)
class Criterion:
    """A number, measured on items or from a table, with a tolerance: the field
    `bound` of `Thresholds` over `per`."""

    name: str
    told: str  # in a sentence: "open accuracy lost"
    bound: str
    kind: Kind
    shows: Shows
    measure: Callable[[Paired, Absent], Measured] | None = None
    table: str = ""
    column: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    of_language: str = ""  # the tolerance within one language, if languages are judged
    counted: str = "items"
    per: float = 100.0
    least: bool = False  # the tolerance is the least that is allowed, not the most

    def threshold(
        self, thresholds: Thresholds, *, language: bool = False
    ) -> float | None:
        """The tolerance in the number's units; None if it is not judged."""
        name = self.of_language if language else self.bound
        value: float | None = getattr(thresholds, name) if name else None
        return None if value is None else value / self.per


def _mean(
    paired: Paired, values: Floats, due: Flags, absent: Absent, low: float = 0.0
) -> Measured:
    """The mean over the due items. A loss has the value 1, and a gain the value
    `low`."""
    gone = due & np.isnan(values)
    if absent != "left out":
        values = np.where(gone, 1.0 if absent == "loss" else low, values)
    kept = due & ~np.isnan(values)
    found = Mean(values[kept], paired.contexts[kept], low=low) if kept.any() else None
    return Measured(found, int(due.sum()), int(gone.sum()))


def _drop(probe: Probe, paired: Paired, absent: Absent) -> Measured:
    base, own, due = paired.answers(probe)
    return _mean(paired, base - own, due, absent, low=-1.0)


def _flips(probe: Probe, paired: Paired, absent: Absent) -> Measured:
    base, own, due = paired.answers(probe)
    return _mean(paired, np.abs(base - own), due, absent)


def _recovery(probe: Probe, paired: Paired, absent: Absent) -> Measured:
    """The checkpoint's right answers divided by the base's."""
    base, own, due = paired.answers(probe)
    gone = due & np.isnan(base + own)
    if absent != "left out":
        base, own = (
            np.where(gone, 1.0, base),
            np.where(gone, float(absent == "gain"), own),
        )
    kept = due & ~np.isnan(base + own)
    found = (
        Ratio(own[kept], base[kept], paired.contexts[kept])
        if base[kept].any()
        else None
    )
    return Measured(found, int(due.sum()), int(gone.sum()))


def _fate(fate: str, paired: Paired, absent: Absent) -> Measured:
    """The share of known answers with this fate."""
    unknown = (paired.base_said == 0) | (paired.base_picked == 0)
    fates = fates_of(paired.base_said, paired.base_picked, paired.said, paired.picked)
    values = np.where(fates == UNMEASURED, np.nan, fates == fate)
    asked = paired.open & paired.choice
    return replace(
        _mean(paired, values, asked & ~unknown, absent), due=int(asked.sum())
    )


_PROBES: tuple[tuple[Probe, Shows], ...] = (
    ("open", "saying"),
    ("choice", "recognising"),
)


def _of_probes(
    name: str,
    told: str,
    bound: str,
    kind: Kind,
    measure: Callable[..., Measured],
    **more: Any,
) -> Iterator[Criterion]:
    """The same criterion for open answers and for choices."""
    for probe, shows in _PROBES:
        given = {"shows": shows, "measure": partial(measure, probe), **more}
        yield Criterion(f"{probe}_{name}", f"{probe} {told}", bound, kind, **given)


def _of_known(name: str, told: str, bound: str, shows: Shows) -> Criterion:
    """The share of a fate, `name`, of the known answers."""
    counted, measure = "known answers", partial(_fate, name)
    return Criterion(
        name, f"{counted} {told}", bound, PERCENTAGE, shows, measure, counted=counted
    )


def _of_fidelity(
    name: str, told: str, bound: str, column: str, **more: Any
) -> Criterion:
    """A mean along the base's own answer."""
    read: dict[str, Any] = {
        "table": "fidelity",
        "column": column,
        "where": {"along": "greedy answer", "group": "all"},
    }
    return Criterion(name, told, bound, SCORE, "probabilities", per=1.0, **read, **more)


# The most important first: a sentence names only some.
CRITERIA = (
    *_of_probes(
        "drop", "accuracy lost", "max_drop", POINTS, _drop, of_language="drop_language"
    ),
    _of_known("mc_only", "picked and no longer said", "max_mc_only", "saying"),
    _of_known("lost", "neither said nor picked", "max_lost", "recognising"),
    *_of_probes(
        "recovery", "accuracy left", "min_recovery", PERCENTAGE, _recovery, least=True
    ),
    *_of_probes("flips", "flips", "max_flips", PERCENTAGE, _flips, shows="changing"),
    Criterion(
        "delta_pr",
        "Delta_PR",
        "max_delta_pr",
        RATIO,
        "saying",
        table="pr_gap",
        column="delta_pr",
        per=1.0,
    ),
    _of_fidelity("kld", "KL divergence from the base, nats a token,", "max_kld", "kld"),
    _of_fidelity(
        "ear", "expected acceptance rate", "min_ear", "acceptance", least=True
    ),
)
