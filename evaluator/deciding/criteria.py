"""The gate's criteria: numbers with a tolerance, and the paired answers that they
are measured on.

A criterion is one entry of CRITERIA."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from evaluator.deciding.thresholds import Tolerances
from evaluator.metrics.columns import PERCENTAGE, POINTS, RATIO, SCORE, Kind, worded
from evaluator.metrics.fates import fate_share, guesses
from evaluator.metrics.inputs import Inputs, Subject
from evaluator.metrics.intervals import ALPHA, Floats, ItemNumbers, Mean, Ratio
from evaluator.metrics.items import BASE, Flags, Items, at_rows, sides_of, statuses_of
from evaluator.metrics.measures import Share, drop, flip_rate

Probe = Literal["open", "choice", "sample"]
# the column that says whether an answer of the probe is right
ANSWERS: Mapping[Probe, str] = {
    "open": "produced",
    "choice": "recognised",
    "sample": "sampled",
}
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
    """The items that a verdict rests on. Their columns are `language`, `groups`,
    `context`, those of ANSWERS with the base's, and for each probe the items that it was to judge. Of
    several seeds, `sampled` is the share of right samples over all of them."""

    items: Items
    floor: float = 0.0  # the accuracy of guessing
    only_options: bool = False  # the task scores no open answer: a PASS needs none

    @classmethod
    def of_answers(
        cls,
        languages: npt.ArrayLike,
        contexts: ItemNumbers,
        answers: Mapping[Probe, tuple[Floats, Floats, Flags]],
        groups: npt.NDArray[np.object_] | None = None,
        **more: Any,
    ) -> "Paired":
        """`answers`: for some probes the base's, the checkpoint's (1.0 right, 0.0
        wrong, NaN without a judgement), and the items that were to be judged."""
        unasked = np.full(len(contexts), np.nan)
        columns: dict[str, Any] = {"language": languages, "context": contexts}
        columns["item"] = np.arange(len(contexts))
        columns["groups"] = np.full(len(contexts), None)
        columns["groups"][:] = groups
        for probe, name in ANSWERS.items():
            base, own, due = answers.get(probe, (unasked, unasked, unasked > 0))
            columns |= {f"{BASE}{name}": base, name: own, probe: due}
        return cls(items=Items.of_columns(columns), **more)

    def of(self, language: str) -> "Paired":
        return replace(self, items=self.items.of(language))

    @property
    def spoken(self) -> list[str]:
        """The known languages, sorted."""
        return [each for each in self.items.languages if each != UNKNOWN]


def paired_of(inputs: Inputs, subject: Subject, planned: int | None = None) -> Paired:
    """Open-format outcomes of a checkpoint and its base. `planned`: how many items were
    to be judged; None: those with any record."""
    items = inputs.of(subject)
    own, of_base = int(items["asked"].sum()), len(items) - int(items["asked"].sum())
    unseen = of_base if planned is None else max(0, planned - own)
    if unseen >= of_base:
        unseen -= of_base
    else:
        items = items.take(items["asked"])
    rows = np.append(np.arange(len(items)), np.full(unseen, -1))
    seen = items
    items = Items(lambda name: at_rows(seen[name], rows))
    new = seen["context"].max(initial=-1) + 1 + np.arange(unseen)
    answers: dict[Probe, tuple[Floats, Floats, Flags]] = {}
    asked: dict[Probe, str] = {"open": "greedy", "choice": "choice"}
    for probe, status in asked.items():
        due = _due(inputs, subject, items, status)
        answers[probe] = *sides_of(items, ANSWERS[probe]), due
    shares = _sampled(inputs, subject, items)
    if shares is not None:
        answers["sample"] = shares
    optional = seen.take(seen.has("base_options"))
    floor = float(guesses(optional, "choice").mean()) if len(optional) else 0.0
    languages = np.where(rows < 0, UNKNOWN, items["language"])
    contexts = np.append(seen["context"], new)
    groups = items["groups"]
    return Paired.of_answers(languages, contexts, answers, groups, floor=floor)


def _sampled(
    inputs: Inputs, subject: Subject, items: Items
) -> tuple[Floats, Floats, Flags] | None:
    """The shares of right samples; None unless one side draws under several seeds. An
    item that lacks one is missing. Items beyond the first of a language have no
    samples."""
    seeds = {
        BASE: len(inputs.seeds(subject.base or "", subject.task)),
        "": len(inputs.seeds(subject.checkpoint, subject.task)),
    }
    if max(seeds.values()) < 2:
        return None
    sides = []
    for side, number in seeds.items():
        shares = items[f"{side}sample_hits"] / items[f"{side}samples"]
        drawn = np.nan_to_num(items[f"{side}seeds"], nan=1.0)
        sides.append(np.where(drawn >= number, shares, np.nan))
    drawn, seen = items.has("sample_status"), items.has("item")
    drawn |= items.has("base_sample_status")
    drawn |= ~seen & drawn[seen].all()
    return sides[0], sides[1], drawn & _due(inputs, subject, items, "sample")


def _due(inputs: Inputs, subject: Subject, items: Items, probe: str) -> Flags:
    """The items that a probe was to judge: all that not both sides excluded; none if a
    side lacks the probe."""
    for name in (subject.base or "", subject.checkpoint):
        records = inputs.outcomes_of(name, subject.task)
        if records[f"{probe}_status"].isna().all():
            return np.zeros(len(items), dtype=np.bool_)
    return ~items.having(statuses_of([probe], both=True), "excluded")


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
    text: str  # in a sentence: "drop of said answers"
    bound: str
    kind: Kind
    shows: Shows
    measure: Callable[[Items, Absent], Measured] | None = None
    table: str = ""
    column: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    of_language: str = ""  # the tolerance within one language, if languages are judged
    counted: str = "items"
    per: float = 100.0
    least: bool = False  # the tolerance is the least that is allowed, not the most
    cancels: bool = False  # noise moves it up as often as down
    needs: str = ""  # what a run may lack
    probes: tuple[str, ...] = ()  # that fill its table

    @property
    def heading(self) -> str:
        """In a table: "said" (what is lost of it), "picked only"."""
        return worded(self.name.removesuffix("_drop"))

    @property
    def optional(self) -> bool:
        """Whether it is judged only where somebody asks for it."""
        return Tolerances.model_fields[self.bound].default is None

    def shown(self, bound: float) -> str:
        """A tolerance for people: as it was given if rounding would change it."""
        return max(f"{self.per * bound:g}", self.kind.shown(bound, unit=False), key=len)

    def threshold(
        self, thresholds: Tolerances, *, language: bool = False
    ) -> float | None:
        """The tolerance in the number's units; None if it is not judged."""
        name = self.of_language if language else self.bound
        value: float | None = getattr(thresholds, name, None)
        return None if value is None else value / self.per


def _share(share: Share, probe: Probe, items: Items, absent: Absent) -> Measured:
    """The mean over the due items. A loss has the value 1, and a gain the lowest."""
    return _mean(share, share.values(items), items[probe], items, absent)


def _mean(
    share: Share, values: Floats, due: Flags, items: Items, absent: Absent
) -> Measured:
    gone = due & np.isnan(values)
    if absent != "left out":
        values = np.where(gone, 1.0 if absent == "loss" else share.low, values)
    kept = due & ~np.isnan(values)
    mean = None
    if kept.any():
        mean = Mean(values[kept], items["context"][kept], low=share.low)
    return Measured(mean, int(due.sum()), int(gone.sum()))


def _recovery(probe: Probe, items: Items, absent: Absent) -> Measured:
    """The checkpoint's right answers divided by the base's."""
    name, due = ANSWERS[probe], items[probe]
    base, own = items[f"{BASE}{name}"], items[name]
    gone = due & np.isnan(base + own)
    if absent != "left out":
        base = np.where(gone, 1.0, base)
        own = np.where(gone, float(absent == "gain"), own)
    kept = due & ~np.isnan(base + own)
    ratio = None
    if base[kept].any():
        ratio = Ratio(own[kept], base[kept], items["context"][kept])
    return Measured(ratio, int(due.sum()), int(gone.sum()))


def _fate(share: Share, items: Items, absent: Absent) -> Measured:
    """The share of the known answers."""
    unknown = (items["base_produced"] == 0) | (items["base_recognised"] == 0)
    asked = items["open"] & items["choice"]
    found = _mean(share, share.values(items), asked & ~unknown, items, absent)
    return replace(found, due=int(asked.sum()))


def _of_probes(
    name: str,
    text: str,
    bound: str,
    kind: Kind,
    measure: Callable[[Probe], Callable[[Items, Absent], Measured]],
    **more: Any,
) -> Iterator[Criterion]:
    """The same criterion for open answers and for choices."""
    shown: dict[Probe, Shows] = {"open": "saying", "choice": "recognising"}
    for probe, shows in shown.items():
        given = {"shows": shows, "measure": measure(probe), **more}
        spelled = f"{text} of {worded(probe)} answers"
        yield Criterion(f"{probe}_{name}", spelled, bound, kind, **given)


def _of_known(name: str, text: str, bound: str, shows: Shows) -> Criterion:
    """The share of a fate, `name`, of the known answers."""
    counted = "known answers"
    return Criterion(
        name,
        f"{counted} {text}",
        bound,
        PERCENTAGE,
        shows,
        partial(_fate, fate_share(name)),
        counted=counted,
    )


def _drop(probe: Probe) -> Callable[[Items, Absent], Measured]:
    return partial(_share, drop(f"{probe}_drop", ANSWERS[probe]), probe)


def _flips(probe: Probe) -> Callable[[Items, Absent], Measured]:
    return partial(_share, flip_rate(ANSWERS[probe]), probe)


_FIDELITY: Mapping[str, Any] = {
    "table": "fidelity",
    "where": {"along": "greedy answer", "group": "all"},
    "needs": "the probe fidelity",
    "probes": ("fidelity",),
    "per": 1.0,
}
# The most important first: a sentence names only some.
CRITERIA = (
    *_of_probes(
        "drop",
        "drop",
        "max_drop",
        POINTS,
        _drop,
        of_language="drop_language",
        cancels=True,
    ),
    Criterion(
        "sample_drop",
        "drop of sampled answers",
        "max_sample_drop",
        POINTS,
        "saying",
        _drop("sample"),
        of_language="sample_drop_language",
        cancels=True,
        needs="samples under several seeds (--seeds)",
    ),
    _of_known("mc_only", "picked only", "max_mc_only", "saying"),
    _of_known("lost", "lost", "max_lost", "recognising"),
    *_of_probes(
        "recovery",
        "recovery",
        "min_recovery",
        PERCENTAGE,
        lambda probe: partial(_recovery, probe),
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
        needs="the probes greedy and choice",
        probes=("greedy", "choice"),
        per=1.0,
        cancels=True,
    ),
    Criterion(
        "kld",
        "KL divergence from the base, nats a token,",
        "max_kld",
        SCORE,
        "probabilities",
        column="kld",
        **_FIDELITY,
    ),
    Criterion(
        "ear",
        "expected acceptance rate",
        "min_ear",
        SCORE,
        "probabilities",
        column="acceptance",
        **_FIDELITY,
        least=True,
    ),
)
