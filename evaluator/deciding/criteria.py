"""The gate's criteria: numbers with a tolerance, and the paired answers that they
are measured on.

A criterion is one entry of CRITERIA."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from evaluator.metrics.measures import as_floats

Flags = npt.NDArray[np.bool_]
Probe = Literal["open", "choice", "sample"]
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

    The flags `open` and `choice` mark the items that this probe was to judge. Of
    several seeds, `sampled` is the share of right samples over all of them."""

    languages: npt.NDArray[np.object_]
    contexts: ItemNumbers
    base_said: Floats
    said: Floats
    base_picked: Floats
    picked: Floats
    open: Flags
    choice: Flags
    base_sampled: Floats | None = None
    sampled: Floats | None = None
    sample: Flags | None = None
    floor: float = 0.0  # the accuracy of guessing
    only_options: bool = False  # the task scores no open answer: a PASS needs none

    def at(self, rows: ItemNumbers) -> "Paired":
        """The items of these rows, in this order; rows may repeat."""
        chosen: dict[str, Any] = {}
        for name, values in vars(self).items():
            if isinstance(values, np.ndarray):
                chosen[name] = values[rows]
        return replace(self, **chosen)

    def of(self, language: str) -> "Paired":
        if language == ALL:
            return self
        return self.at(np.flatnonzero(self.languages == language))

    def answers(self, probe: Probe) -> tuple[Floats, Floats, Flags]:
        """The base's answers, the checkpoint's, and the flags of one probe."""
        if probe == "open":
            return self.base_said, self.said, self.open
        if probe == "choice":
            return self.base_picked, self.picked, self.choice
        base, own, due = self.base_sampled, self.sampled, self.sample
        if base is None or own is None or due is None:
            nothing = np.full(len(self.contexts), np.nan)
            return nothing, nothing, nothing > 0
        return base, own, due

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
    own = inputs.outcomes_of(subject.checkpoint, subject.task).set_index("item")
    base = inputs.outcomes_of(subject.base or "", subject.task).set_index("item")
    items = own.index.to_numpy(np.intp)
    only_base = np.setdiff1d(base.index.to_numpy(np.intp), items)
    unseen = len(only_base) if planned is None else max(0, planned - len(items))
    if unseen >= len(only_base):
        items, unseen = np.append(items, only_base), unseen - len(only_base)
    own, base = own.reindex(items), base.reindex(items)
    names = subject.base, subject.checkpoint
    seeds = [len(inputs.seeds(name or "", subject.task)) for name in names]
    asked = inputs.asked(subject.task).set_index("item").loc[items].reset_index()
    languages = asked["language"].to_numpy(object)
    contexts = asked["context"].to_numpy(np.intp)
    new_contexts = contexts.max(initial=-1) + 1 + np.arange(unseen)

    def answers(side: pd.DataFrame, column: str) -> Floats:
        values = side[column].to_numpy(np.float64)
        return np.append(values, np.full(unseen, np.nan))

    return Paired(
        languages=np.append(languages, np.full(unseen, UNKNOWN, dtype=object)),
        contexts=np.append(contexts, new_contexts),
        base_said=answers(base, "produced"),
        said=answers(own, "produced"),
        base_picked=answers(base, "recognised"),
        picked=answers(own, "recognised"),
        open=_due(own["greedy_status"], base["greedy_status"], unseen),
        choice=_due(own["choice_status"], base["choice_status"], unseen),
        floor=floor_of(base[base["options"].notna()], "choice"),
        **_sampled(own, base, unseen, seeds),
    )


def _sampled(
    own: pd.DataFrame, base: pd.DataFrame, unseen: int, seeds: Sequence[int]
) -> dict[str, Any]:
    """The shares of right samples; empty unless one draws under several `seeds`, the
    numbers of base and checkpoint. An item that lacks one is missing. Items beyond the
    first of a language have no samples."""
    if max(seeds) < 2:
        return {}
    sides: list[Floats] = []
    for side, number in zip((base, own), seeds, strict=True):
        shares = as_floats(side["sample_hits"] / side["samples"])
        shares = np.where(side["seeds"].fillna(1) >= number, shares, np.nan)
        sides.append(np.append(shares, np.full(unseen, np.nan)))
    statuses = own["sample_status"], base["sample_status"]
    drawn = (statuses[0].notna() | statuses[1].notna()).to_numpy(bool)
    drawn = np.append(drawn, np.full(unseen, drawn.all()))
    due = _due(*statuses, unseen) & drawn
    return {"base_sampled": sides[0], "sampled": sides[1], "sample": due}


def _due(own: pd.Series, base: pd.Series, unseen: int) -> Flags:
    """The items that a probe with these statuses was to judge: all that not both
    sides excluded; none if a side lacks the probe."""
    if own.isna().all() or base.isna().all():
        return np.zeros(len(own) + unseen, dtype=bool)
    excluded = (own == "excluded") & (base == "excluded")
    return np.append(~excluded.to_numpy(bool), np.ones(unseen, dtype=bool))


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
        low = self.value + (self.low - self.value) * narrower
        high = self.value + (self.high - self.value) * narrower
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
    text: str  # in a sentence: "open accuracy lost"
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
    cancels: bool = False  # noise moves it up as often as down

    def threshold(
        self, thresholds: Thresholds, *, language: bool = False
    ) -> float | None:
        """The tolerance in the number's units; None if it is not judged."""
        name = self.of_language if language else self.bound
        value: float | None = getattr(thresholds, name, None)
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
    mean = Mean(values[kept], paired.contexts[kept], low=low) if kept.any() else None
    return Measured(mean, int(due.sum()), int(gone.sum()))


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
        base = np.where(gone, 1.0, base)
        own = np.where(gone, float(absent == "gain"), own)
    kept = due & ~np.isnan(base + own)
    ratio = None
    if base[kept].any():
        ratio = Ratio(own[kept], base[kept], paired.contexts[kept])
    return Measured(ratio, int(due.sum()), int(gone.sum()))


def _fate(fate: str, paired: Paired, absent: Absent) -> Measured:
    """The share of known answers with this fate."""
    unknown = (paired.base_said == 0) | (paired.base_picked == 0)
    fates = fates_of(paired.base_said, paired.base_picked, paired.said, paired.picked)
    values = np.where(fates == UNMEASURED, np.nan, fates == fate)
    asked = paired.open & paired.choice
    share = _mean(paired, values, asked & ~unknown, absent)
    return replace(share, due=int(asked.sum()))


def _of_probes(
    name: str,
    text: str,
    bound: str,
    kind: Kind,
    measure: Callable[..., Measured],
    **more: Any,
) -> Iterator[Criterion]:
    """The same criterion for open answers and for choices."""
    shown: dict[Probe, Shows] = {"open": "saying", "choice": "recognising"}
    for probe, shows in shown.items():
        given = {"shows": shows, "measure": partial(measure, probe), **more}
        yield Criterion(f"{probe}_{name}", f"{probe} {text}", bound, kind, **given)


def _of_known(name: str, text: str, bound: str, shows: Shows) -> Criterion:
    """The share of a fate, `name`, of the known answers."""
    counted = "known answers"
    return Criterion(
        name,
        f"{counted} {text}",
        bound,
        PERCENTAGE,
        shows,
        partial(_fate, name),
        counted=counted,
    )


_ALONG_BASE = {"along": "greedy answer", "group": "all"}
# The most important first: a sentence names only some.
CRITERIA = (
    *_of_probes(
        "drop",
        "accuracy lost",
        "max_drop",
        POINTS,
        _drop,
        of_language="drop_language",
        cancels=True,
    ),
    Criterion(
        "sample_drop",
        "sampled accuracy lost",
        "max_sample_drop",
        POINTS,
        "saying",
        partial(_drop, "sample"),
        of_language="sample_drop_language",
        cancels=True,
    ),
    _of_known("mc_only", "picked and no longer said", "max_mc_only", "saying"),
    _of_known("lost", "neither said nor picked", "max_lost", "recognising"),
    *_of_probes(
        "recovery",
        "accuracy left",
        "min_recovery",
        PERCENTAGE,
        _recovery,
        least=True,
        cancels=True,
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
        cancels=True,
    ),
    Criterion(
        "kld",
        "KL divergence from the base, nats a token,",
        "max_kld",
        SCORE,
        "probabilities",
        table="fidelity",
        column="kld",
        where=_ALONG_BASE,
        per=1.0,
    ),
    Criterion(
        "ear",
        "expected acceptance rate",
        "min_ear",
        SCORE,
        "probabilities",
        table="fidelity",
        column="acceptance",
        where=_ALONG_BASE,
        per=1.0,
        least=True,
    ),
)
