"""The decision: is a checkpoint surely no worse than its base by more than the tolerance?

Each criterion is a test of non-inferiority on paired items, clustered by context:

- within: the whole interval is within the tolerance, at a one-sided level of 5 %
- beyond: the whole interval is beyond the tolerance, at a one-sided level of 1 % over all criteria and languages
- undecided: neither; `enough` estimates how many items would decide
- unmeasured: the run lacks the number

PASS requires every criterion and language to be within. A checkpoint that exceeds a tolerance has to pass the test of
that tolerance too, which happens in at most 5 % of runs. So PASS needs no correction (intersection-union test,
R. Berger, Technometrics 24, 1982). BLOCK does, as any single check can block by chance (Bonferroni).

A run with several looks divides both levels among them (`looks`). A check that is within at one look stays within at
later looks, unless it is beyond there. A look too small for even a flawless checkpoint cannot pass and takes no share
of the level.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from evaluator.deciding.criteria import CRITERIA, Absent, Criterion, Evidence, Measured
from evaluator.deciding.paired import Paired
from evaluator.deciding.thresholds import Thresholds
from evaluator.metrics.inputs import ALL
from evaluator.metrics.looks import BLOCK_LEVEL, PASS_LEVEL, able, in_order, looks, nominal

Outcome = Literal["PASS", "WARN", "ANOMALOUS", "BLOCK"]
State = Literal["within", "beyond", "undecided", "unmeasured"]
OUTCOMES: tuple[Outcome, ...] = ("PASS", "WARN", "ANOMALOUS", "BLOCK")  # from best to worst
FEWEST = 10  # contexts that a decision requires
IMPLAUSIBLE = 0.05  # a larger gain is a mistake until shown otherwise
_MOST = 1_000_000  # items: a larger estimate does not help a reader


@dataclass(frozen=True, kw_only=True)
class Check:
    """One criterion on all items or in one language. `low` and `high`: the bounds that the decision used."""

    criterion: Criterion
    language: str
    threshold: float
    state: State
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    contexts: int = 0
    missing: int = 0  # items without a judgement
    enough: int | None = None  # for an undecided check: the items that would decide

    @property
    def pooled(self) -> bool:
        return self.language == ALL

    @property
    def gain(self) -> float:
        """The certain gain: how far the whole interval of a drop is below 0."""
        return max(0.0, -self.high) if self.criterion.is_drop and self.high is not None else 0.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One checkpoint on one task."""

    task: str
    checkpoint: str
    base: str
    outcome: Outcome = "WARN"
    checks: tuple[Check, ...] = ()
    planned: int = 0  # items
    incomparable: str | None = None
    anomaly: str | None = None  # the implausible number, and what to inspect first
    unjudged: int = 0  # planned items without a judgement, if they could change the verdict
    early: str | None = None  # a sentence, if the gate decided before the last look

    def having(self, state: State) -> list[Check]:
        return [check for check in self.checks if check.state == state]

    def of(self, name: str) -> list[Check]:
        """The checks of the criterion with this name."""
        return [check for check in self.checks if check.criterion.name == name]


Name = tuple[str, str]  # of a check: its criterion and language
Reports = Mapping[Name, Evidence]  # numbers of tables


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """The evidence for one check, and its state at the two levels: for a pass and for a block."""

    criterion: Criterion
    language: str
    bound: float
    measured: Measured
    levels: tuple[float, float]
    may_pass: bool
    passed: bool  # at an earlier look

    @cached_property
    def state(self) -> State:
        evidence = self.measured.evidence
        if evidence is None:
            return "undecided" if self.measured.due else "unmeasured"
        sure = evidence.contexts >= FEWEST and self._sure(evidence)
        if sure and self._lost(evidence) > 0:
            return "beyond"
        return "within" if self.passed or (sure and self.may_pass) else "undecided"

    def _lost(self, evidence: Evidence) -> float:
        """How far the number is beyond the tolerance; negative if it is within."""
        return self.bound - evidence.value if self.criterion.least else evidence.value - self.bound

    def _sure(self, evidence: Evidence) -> bool:
        """Whether the interval excludes the tolerance."""
        lost = self._lost(evidence)
        above = (lost < 0) != self.criterion.least
        p = evidence.p_at_least(self.bound) if above else evidence.p_at_most(self.bound)
        return lost != 0 and p <= self.levels[lost > 0]

    @property
    def check(self) -> Check:
        """The check with the bounds that the decision used."""
        evidence = self.measured.evidence
        found = Check(
            criterion=self.criterion,
            language=self.language,
            threshold=self.bound,
            state=self.state,
            missing=self.measured.missing,
        )
        if evidence is None:
            return found
        up, down = reversed(self.levels) if self.criterion.least else self.levels
        low, high = evidence.lower(down), evidence.upper(up)
        enough = self._enough(evidence) if self.state == "undecided" else None
        return replace(
            found, value=evidence.value, low=low, high=high, n=evidence.n, contexts=evidence.contexts, enough=enough
        )

    def _enough(self, evidence: Evidence) -> int | None:
        """About how many items like these would decide; None if it is more than a run can have."""
        few, many = max(1.0, FEWEST / evidence.contexts), _MOST / evidence.n
        if not self._sure(evidence.times(many)):
            return None
        while many - few > max(0.01 * few, 1 / evidence.n):
            middle = math.sqrt(few * many)
            few, many = (few, middle) if self._sure(evidence.times(middle)) else (middle, many)
        return math.ceil(max(many * evidence.n, evidence.n + 1))


@dataclass(frozen=True)
class Decision:
    """The outcome of a checkpoint's checks, before the search for anomalies."""

    judged: tuple[_Judged, ...]

    @property
    def outcome(self) -> Outcome:
        if any(each.state == "beyond" for each in self.judged):
            return "BLOCK"
        said = any(each.state == "within" and each.criterion.shows == "saying" for each in self.judged)
        doubt = any(each.state == "undecided" for each in self.judged)
        return "PASS" if said and not doubt else "WARN"

    @property
    def missing(self) -> int:
        """The items without a judgement, for the criterion that has most of them."""
        return max((each.measured.missing for each in self.judged), default=0)

    @property
    def within(self) -> frozenset[Name]:
        """The checks that passed; they stay passed at later looks."""
        return frozenset((each.criterion.name, each.language) for each in self.judged if each.state == "within")

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        return tuple(each.check for each in self.judged)


def decide(
    paired: Paired,
    thresholds: Thresholds,
    *,
    sizes: tuple[int, ...] = (1,),
    passed: Collection[Name] = (),
    reports: Reports | None = None,
    absent: Absent = "left out",
) -> Decision:
    """The decision on one checkpoint.

    `sizes`: the items of each planned look. `passed`: the checks that were within at an earlier look. `absent`: how to
    count items without a judgement.
    """
    found = list(_measured(paired, thresholds, reports or {}, absent))
    judged = sum(measured.evidence is not None for *_, measured in found)
    items = len(paired.contexts)
    blocking = nominal(BLOCK_LEVEL / max(judged, 1), sizes)
    checks = []
    for criterion, language, bound, measured in found:
        passing = able(PASS_LEVEL, sizes, _spotless(criterion, bound, measured, items))
        checks.append(
            _Judged(
                criterion=criterion,
                language=language,
                bound=bound,
                measured=measured,
                levels=(nominal(PASS_LEVEL, passing), blocking),
                may_pass=items >= passing[0],
                passed=(criterion.name, language) in passed,
            )
        )
    return Decision(tuple(checks))


def _spotless(criterion: Criterion, bound: float, measured: Measured, items: int) -> float:
    """The p-value per item of a flawless checkpoint: for n contexts it is (1 - bound)^n; 0 if unknown."""
    if criterion.least or criterion.measure is None or measured.evidence is None or not 0 < bound < 1:
        return 0.0
    return float((1 - bound) ** (measured.evidence.contexts / items))


def _measured(
    paired: Paired, thresholds: Thresholds, reports: Reports, absent: Absent
) -> Iterator[tuple[Criterion, str, float, Measured]]:
    """Each criterion, pooled and by language, with its tolerance and evidence."""
    spoken = paired.spoken if thresholds.languages and len(paired.spoken) > 1 else []
    apart = {language: paired.of(language) for language in spoken}
    for criterion in CRITERIA:
        bound = criterion.threshold(thresholds)
        if bound is not None:
            measured = criterion.measure(paired, absent) if criterion.measure else _of_table(paired, criterion, reports)
            yield criterion, ALL, bound, measured
        bound = criterion.threshold(thresholds, language=True) if criterion.is_drop else None
        if bound is not None and criterion.measure:
            found = ((language, criterion.measure(part, absent)) for language, part in apart.items())
            yield from ((criterion, language, bound, each) for language, each in found if each.due)


def _of_table(paired: Paired, criterion: Criterion, reports: Reports) -> Measured:
    """A table's number. If it has a tolerance and is missing, the checkpoint cannot pass."""
    return Measured(reports.get((criterion.name, ALL)), due=len(paired.contexts))


@dataclass(frozen=True)
class Replay:
    """Each try's verdict, and the items that it took."""

    outcomes: tuple[Outcome, ...]
    costs: tuple[int, ...]

    @property
    def median(self) -> float:
        """Items that half of the tries need at most."""
        return float(np.median(self.costs))

    def share(self, outcome: Outcome) -> float:
        return self.outcomes.count(outcome) / len(self.outcomes)


def replay(paired: Paired, thresholds: Thresholds, *, first: int, repeats: int, seed: int = 0) -> Replay:
    """A sequential test on existing data: where would the gate have stopped, and with which verdict?

    Each try draws the contexts with replacement, in random order, and stops like a screened sweep.
    """
    rng = np.random.default_rng(seed)
    found = [stopped(redrawn(paired, rng), thresholds, first, rng) for _ in range(repeats)]
    return Replay(tuple(outcome for outcome, _ in found), tuple(cost for _, cost in found))


def stopped(paired: Paired, thresholds: Thresholds, first: int, rng: np.random.Generator) -> tuple[Outcome, int]:
    """The verdict of a screened sweep on these items, and how many items it takes."""
    ordered = paired.at(in_order(paired.contexts, paired.languages, rng))
    sizes = looks(ordered.contexts, first)
    passed: frozenset[Name] = frozenset()
    for size in sizes:
        decision = decide(ordered.at(np.arange(size)), thresholds, sizes=sizes, passed=passed)
        if decision.outcome != "WARN":
            break
        passed = decision.within
    return decision.outcome, size


def redrawn(paired: Paired, rng: np.random.Generator) -> Paired:
    """The same number of contexts, drawn at random with replacement. A context drawn twice counts as two."""
    rows = np.argsort(paired.contexts, kind="stable")
    _, starts, counts = np.unique(paired.contexts[rows], return_index=True, return_counts=True)
    drawn = rng.integers(len(starts), size=len(starts))
    places = np.concatenate([rows[starts[each] : starts[each] + counts[each]] for each in drawn])
    found = paired.at(places)
    return replace(found, contexts=np.repeat(np.arange(len(drawn)), counts[drawn]))
