"""The decision: is a checkpoint surely no worse than its base by more than the
tolerance?

Each criterion is a test of non-inferiority on paired items, clustered by context:

- within: the whole interval is within the tolerance, at a one-sided level of 5 %
- beyond: the whole interval is beyond the tolerance, at a one-sided level of 1 % over
  all criteria and languages
- undecided: neither; `enough` estimates how many items would decide
- unmeasured: the run lacks the number

PASS requires every criterion and language to be within, so a checkpoint that exceeds
any tolerance passes in at most 5 % of runs (intersection-union test, R. Berger,
Technometrics 24, 1982). BLOCK needs a correction, as any single check can block by
chance (Bonferroni).

A run with several looks divides both levels among them (`looks`). A check that is
within at one look stays within at later looks, unless it is beyond there. A look too
small for even a flawless checkpoint takes no share of the level.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from evaluator.deciding.criteria import (
    CRITERIA,
    Absent,
    Criterion,
    Evidence,
    Measured,
    Paired,
)
from evaluator.deciding.thresholds import Thresholds
from evaluator.metrics.inputs import ALL
from evaluator.metrics.sequential_looks import (
    BLOCK_LEVEL,
    PASS_LEVEL,
    able,
    in_order,
    looks,
    nominal,
)

Outcome = Literal["PASS", "WARN", "ANOMALOUS", "BLOCK"]
State = Literal["within", "beyond", "undecided", "unmeasured"]
Name = tuple[str, str]  # of a check: its criterion and language
# from best to worst
OUTCOMES: tuple[Outcome, ...] = ("PASS", "WARN", "ANOMALOUS", "BLOCK")
FEWEST = 10  # contexts that a decision requires
IMPLAUSIBLE = 0.05  # a larger gain is a mistake until shown otherwise
_MOST = 1_000_000  # items: a larger estimate does not help a reader


@dataclass(frozen=True, kw_only=True)
class Check:
    """One criterion on all items or in one language."""

    criterion: Criterion
    language: str
    threshold: float
    state: State
    # of the test that the number is within the tolerance, and that it is beyond
    levels: tuple[float, float]
    evidence: Evidence | None = field(default=None, compare=False, repr=False)
    value: float | None = None
    n: int = 0
    contexts: int = 0
    missing: int = 0  # items without a judgement

    @property
    def pooled(self) -> bool:
        return self.language == ALL

    @cached_property
    def low(self) -> float | None:
        return (
            None
            if self.evidence is None
            else self.evidence.lower(self.levels[not self.criterion.least])
        )

    @cached_property
    def high(self) -> float | None:
        return (
            None
            if self.evidence is None
            else self.evidence.upper(self.levels[self.criterion.least])
        )

    @property
    def gain(self) -> float:
        """The certain gain: how far the whole interval of a drop is below 0."""
        return (
            max(0.0, -self.high)
            if self.criterion.of_language and self.high is not None
            else 0.0
        )

    @cached_property
    def enough(self) -> int | None:
        """About how many items like these would decide an undecided check; None if
        it is more than a run can have."""
        if self.evidence is None or self.state != "undecided":
            return None
        few, many = max(1.0, FEWEST / self.contexts), _MOST / self.n
        if not _is_sure(
            self.evidence.times(many), self.criterion, self.threshold, self.levels
        ):
            return None
        while many - few > max(0.01 * few, 1 / self.n):
            middle = math.sqrt(few * many)
            sure = _is_sure(
                self.evidence.times(middle), self.criterion, self.threshold, self.levels
            )
            few, many = (few, middle) if sure else (middle, many)
        return math.ceil(max(many * self.n, self.n + 1))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    task: str
    checkpoint: str
    base: str
    outcome: Outcome = "WARN"
    checks: tuple[Check, ...] = ()
    planned: int = 0  # items
    incomparable: str | None = None
    anomaly: str | None = None  # the implausible number, and what to inspect first
    # planned items without a judgement, if they could change the verdict
    unjudged: int = 0
    early: str | None = None  # a sentence, if the gate decided before the last look

    def having(self, state: State) -> list[Check]:
        return [check for check in self.checks if check.state == state]

    def of(self, name: str) -> list[Check]:
        return [check for check in self.checks if check.criterion.name == name]


@dataclass(frozen=True)
class Decision:
    """The outcome of a checkpoint's checks, before the search for anomalies."""

    outcome: Outcome
    checks: tuple[Check, ...]

    @property
    def within(self) -> frozenset[Name]:
        """The checks that passed; they stay passed at later looks."""
        return frozenset(
            (check.criterion.name, check.language)
            for check in self.checks
            if check.state == "within"
        )


def decide(
    paired: Paired,
    thresholds: Thresholds,
    *,
    sizes: tuple[int, ...] = (1,),
    passed: Collection[Name] = (),
    reports: Mapping[Name, Evidence] | None = None,
    absent: Absent = "left out",
) -> Decision:
    """The decision on one checkpoint.

    `sizes`: the items of each planned look. `passed`: the checks that were within at an
    earlier look. `reports`: numbers of tables; without one that has a tolerance no
    PASS. `absent`: how to count items without a judgement.
    """
    items = len(paired.contexts)
    spoken = paired.spoken if thresholds.languages and len(paired.spoken) > 1 else []
    parts = {language: paired.of(language) for language in spoken}
    found: list[tuple[Criterion, str, float, Measured]] = []
    for criterion in CRITERIA:
        bound = criterion.threshold(thresholds)
        if bound is not None and criterion.measure is not None:
            found.append((criterion, ALL, bound, criterion.measure(paired, absent)))
        elif bound is not None:
            report = (reports or {}).get((criterion.name, ALL))
            found.append((criterion, ALL, bound, Measured(report, due=items)))
        bound = criterion.threshold(thresholds, language=True)
        if bound is not None and criterion.measure is not None:
            apart = (
                (language, criterion.measure(part, absent))
                for language, part in parts.items()
            )
            found += [
                (criterion, language, bound, measured)
                for language, measured in apart
                if measured.due
            ]
    judged = sum(measured.evidence is not None for *_, measured in found)
    blocking = nominal(BLOCK_LEVEL / max(judged, 1), sizes)
    checks = []
    for criterion, language, bound, measured in found:
        passing = able(PASS_LEVEL, sizes, _spotless(criterion, bound, measured, items))
        levels = nominal(PASS_LEVEL, passing), blocking
        before = (criterion.name, language) in passed
        checks.append(
            _check(
                criterion,
                language,
                bound,
                measured,
                levels,
                may_pass=items >= passing[0],
                passed=before,
            )
        )
    states = {check.state for check in checks}
    said = any(
        check.state == "within" and check.criterion.shows == "saying"
        for check in checks
    )
    outcome: Outcome = (
        "BLOCK"
        if "beyond" in states
        else "PASS"
        if said and "undecided" not in states
        else "WARN"
    )
    return Decision(outcome, tuple(checks))


def _spotless(
    criterion: Criterion, bound: float, measured: Measured, items: int
) -> float:
    """The p-value per item of a flawless checkpoint: for n contexts it is (1 -
    bound)^n; 0 if unknown."""
    if (
        criterion.least
        or criterion.measure is None
        or measured.evidence is None
        or not 0 < bound < 1
    ):
        return 0.0
    return float((1 - bound) ** (measured.evidence.contexts / items))


def _check(
    criterion: Criterion,
    language: str,
    bound: float,
    measured: Measured,
    levels: tuple[float, float],
    *,
    may_pass: bool,
    passed: bool,
) -> Check:
    """One check with its state. `may_pass`: the look is large enough. `passed`:
    within at an earlier look."""
    state: State = "undecided" if measured.due else "unmeasured"
    check = Check(
        criterion=criterion,
        language=language,
        threshold=bound,
        state=state,
        levels=levels,
        missing=measured.missing,
    )
    found = measured.evidence
    if found is None:
        return check
    state = "undecided"
    sure = found.contexts >= FEWEST and _is_sure(found, criterion, bound, levels)
    if sure and (found.value > bound) != criterion.least:
        state = "beyond"
    elif passed or (sure and may_pass):
        state = "within"
    return replace(
        check,
        state=state,
        evidence=found,
        value=found.value,
        n=found.n,
        contexts=found.contexts,
    )


def _is_sure(
    evidence: Evidence, criterion: Criterion, bound: float, levels: tuple[float, float]
) -> bool:
    """Whether the evidence excludes the tolerance, on the side of its value."""
    p = (
        evidence.p_at_least(bound)
        if evidence.value < bound
        else evidence.p_at_most(bound)
    )
    beyond = (evidence.value > bound) != criterion.least
    return evidence.value != bound and p <= levels[beyond]


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


def replay(
    paired: Paired, thresholds: Thresholds, *, first: int, repeats: int, seed: int = 0
) -> Replay:
    """Where and how would the gate have stopped? Each try draws contexts with
    replacement, in random order."""
    rng = np.random.default_rng(seed)
    found = [
        stopped(redrawn(paired, rng), thresholds, first, rng) for _ in range(repeats)
    ]
    return Replay(
        tuple(outcome for outcome, _ in found), tuple(cost for _, cost in found)
    )


def stopped(
    paired: Paired, thresholds: Thresholds, first: int, rng: np.random.Generator
) -> tuple[Outcome, int]:
    """The verdict of a screened sweep on these items, and how many items it takes."""
    ordered = paired.at(in_order(paired.contexts, paired.languages, rng))
    sizes = looks(ordered.contexts, first)
    passed: frozenset[Name] = frozenset()
    for size in sizes:
        decision = decide(
            ordered.at(np.arange(size)), thresholds, sizes=sizes, passed=passed
        )
        if decision.outcome != "WARN":
            break
        passed = decision.within
    return decision.outcome, size


def redrawn(paired: Paired, rng: np.random.Generator) -> Paired:
    """The same number of contexts, drawn at random with replacement. A context drawn
    twice counts as two."""
    rows = np.argsort(paired.contexts, kind="stable")
    _, starts, counts = np.unique(
        paired.contexts[rows], return_index=True, return_counts=True
    )
    drawn = rng.integers(len(starts), size=len(starts))
    places = np.concatenate(
        [rows[starts[each] : starts[each] + counts[each]] for each in drawn]
    )
    return replace(
        paired.at(places), contexts=np.repeat(np.arange(len(drawn)), counts[drawn])
    )
