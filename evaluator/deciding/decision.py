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

A run may have controls: a checkpoint once more, under a change that should not
matter. A tolerance below the upper end of what they show decides nothing (`noisy`),
unless the whole interval is beyond that end too.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from evaluator.deciding.criteria import (
    CRITERIA,
    Absent,
    Criterion,
    Evidence,
    Measured,
    Paired,
)
from evaluator.deciding.thresholds import FEWEST, Thresholds, Tolerances
from evaluator.metrics.intervals import ALPHA
from evaluator.metrics.items import ALL, Items

Outcome = Literal["PASS", "WARN", "ANOMALOUS", "BLOCK"]
State = Literal["within", "beyond", "undecided", "unmeasured"]
Name = tuple[str, str]  # of a check: its criterion, and language or group
# what controls show, by criterion: over all items, also for languages and groups
Floors = Mapping[str, Sequence[Evidence]]
# from best to worst
OUTCOMES: tuple[Outcome, ...] = ("PASS", "WARN", "ANOMALOUS", "BLOCK")
PASS_LEVEL, BLOCK_LEVEL = 0.05, 0.01  # of BLOCK: over all checks
IMPLAUSIBLE = 0.05  # a larger gain is a mistake until shown otherwise
_MOST = 1_000_000  # items: a larger estimate does not help a reader


@dataclass(frozen=True, kw_only=True)
class Check:
    """One criterion on all items, or in one language or group."""

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
    # the noise that controls show, and whether it hides what the number says
    floor: Evidence | None = field(default=None, compare=False, repr=False)
    noisy: bool = False
    # the lowest and the highest number of any seed
    of_seeds: tuple[float, float] | None = None

    @property
    def excess(self) -> float | None:
        """How far the number is above the noise; None where noise cancels."""
        if self.floor is None or self.value is None or self.criterion.cancels:
            return None
        return self.value - self.floor.value

    @property
    def pooled(self) -> bool:
        return self.language == ALL

    @cached_property
    def low(self) -> float | None:
        level = self.levels[not self.criterion.least]
        return None if self.evidence is None else self.evidence.lower(level)

    @cached_property
    def high(self) -> float | None:
        level = self.levels[self.criterion.least]
        return None if self.evidence is None else self.evidence.upper(level)

    @property
    def gain(self) -> float:
        """The certain gain: how far the whole interval of a drop is below 0."""
        if not self.criterion.of_language or self.high is None:
            return 0.0
        return max(0.0, -self.high)

    def is_sure(self, evidence: Evidence) -> bool:
        """Whether the evidence excludes the tolerance, on the side of its value."""
        bound, higher = self.threshold, evidence.value > self.threshold
        p = evidence.p_at_most(bound) if higher else evidence.p_at_least(bound)
        return evidence.value != bound and p <= self.levels[self.is_worse(evidence)]

    def is_worse(self, evidence: Evidence) -> bool:
        """Whether the value is on the far side of the tolerance, sure or not."""
        return (evidence.value > self.threshold) != self.criterion.least

    @cached_property
    def enough(self) -> int | None:
        """About how many items like these would decide an undecided check; None if
        it is more than a run can have."""
        if self.evidence is None or self.state != "undecided" or self.noisy:
            return None
        few, many = max(1.0, FEWEST / self.contexts), _MOST / self.n
        if not self.is_sure(self.evidence.times(many)):
            return None
        while many - few > max(0.01 * few, 1 / self.n):
            middle = math.sqrt(few * many)
            if self.is_sure(self.evidence.times(middle)):
                many = middle
            else:
                few = middle
        return math.ceil(max(many * self.n, self.n + 1))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    task: str
    checkpoint: str
    base: str
    measure: str = ""  # of another program's log
    outcome: Outcome = "WARN"
    checks: tuple[Check, ...] = ()
    planned: int = 0  # items
    incomparable: str | None = None
    unmet: str | None = None  # why a task that the policy requires is not judged
    advisory: bool = False  # its BLOCK is only a WARN
    anomaly: str | None = None  # the implausible number, and what to inspect first
    failed: str | None = None  # what of its checkpoint failed; without it a PASS
    # planned items without a judgement, if they could change the verdict
    unjudged: int = 0
    # its answers equal the base's, with their log-probabilities
    identical: bool = False
    same_weights: bool = False  # as the base, and configuration
    differences: tuple[str, ...] = ()  # from the base, beside weights
    remarks: tuple[str, ...] = ()  # on either side's answers
    # the sampled accuracy lost and its ends by seed, if no tolerance judges it
    sampled: tuple[float, float, float] | None = None

    @property
    def subject(self) -> str:
        """The task, with the measure that a log names."""
        return f"{self.task} {self.measure}".rstrip()

    @property
    def blocks(self) -> bool:
        """Whether the finding is BLOCK, in an advisory task too."""
        return self.advisory or self.outcome == "BLOCK"

    def having(self, state: State) -> list[Check]:
        return [check for check in self.checks if check.state == state]

    def of(self, name: str) -> list[Check]:
        return [check for check in self.checks if check.criterion.name == name]


def worst_first(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """By outcome, then by the largest drop over all items."""

    def order(verdict: Verdict) -> tuple[int, float]:
        drops = [
            -(check.value or 0.0)
            for check in verdict.checks
            if check.pooled and check.criterion.of_language
        ]
        return -OUTCOMES.index(verdict.outcome), min(drops, default=0.0)

    return sorted(verdicts, key=order)


@dataclass(frozen=True)
class Decision:
    """The outcome of a checkpoint's checks, before the search for anomalies."""

    outcome: Outcome
    checks: tuple[Check, ...]


def decide(
    paired: Paired,
    thresholds: Thresholds,
    *,
    reports: Mapping[Name, Evidence] | None = None,
    absent: Absent = "left out",
    floors: Floors | None = None,
    groups: Mapping[str, Tolerances] | None = None,
) -> Decision:
    """The decision on one checkpoint.

    `reports`: numbers of tables; without one that has a tolerance no PASS. `absent`: how
    to count items without a judgement. `floors`: what the controls show. `groups`: their
    own tolerances.
    """
    cuts: list[tuple[str, Tolerances, Items]] = [(ALL, thresholds, paired.items)]
    for group, own in (groups or {}).items():
        if len(items := paired.items.of(group)):
            cuts.append((group, own, items))
    measurements = list(_measurements(paired, cuts, reports or {}, absent))
    judged = sum(measured.evidence is not None for *_, measured in measurements)
    known = {
        (each.bound, cut) for each, cut, _, measured in measurements if measured.due
    }
    levels = PASS_LEVEL, BLOCK_LEVEL / max(judged, 1)
    checks = []
    for criterion, language, bound, measured in measurements:
        # nobody asks for what is not to be measured
        lacks = criterion.optional and (criterion.bound, language) not in known
        check = Check(
            criterion=criterion,
            language=language,
            threshold=bound,
            state="undecided" if measured.due or lacks else "unmeasured",
            levels=levels,
            missing=measured.missing,
        )
        if measured.evidence is not None:
            check = _judged(check, measured.evidence)
        checks.append(_above_noise(check, (floors or {}).get(criterion.name, ())))
    states = {check.state for check in checks}
    outcome: Outcome = "WARN"
    if "beyond" in states:
        outcome = "BLOCK"
    elif "undecided" not in states and any(
        check.state == "within"
        and (paired.only_options or check.criterion.shows == "saying")
        for check in checks
    ):
        outcome = "PASS"
    return Decision(outcome, tuple(checks))


def _measurements(
    paired: Paired,
    cuts: Sequence[tuple[str, Tolerances, Items]],
    reports: Mapping[Name, Evidence],
    absent: Absent,
) -> Iterator[tuple[Criterion, str, float, Measured]]:
    """Each judged criterion in the `cuts`, of which the first has all items, then in each
    language: its cut, tolerance and measurement."""
    parts, thresholds = {}, cuts[0][1]
    if thresholds.languages and len(paired.spoken) > 1:
        parts = {language: paired.items.of(language) for language in paired.spoken}
    for criterion in CRITERIA:
        for cut, tolerances, items in cuts:
            bound = criterion.threshold(tolerances)
            if bound is not None:
                report = reports.get((criterion.name, cut))
                measured = Measured(report, due=len(items))
                if criterion.measure is not None:
                    measured = criterion.measure(items, absent)
                yield criterion, cut, bound, measured
        bound = criterion.threshold(thresholds, language=True)
        if bound is not None and criterion.measure is not None:
            for language, part in parts.items():
                measured = criterion.measure(part, absent)
                if measured.due:
                    yield criterion, language, bound, measured


def _judged(check: Check, evidence: Evidence) -> Check:
    """A check with its evidence and state."""
    state: State = "undecided"
    if evidence.contexts >= FEWEST and check.is_sure(evidence):
        state = "beyond" if check.is_worse(evidence) else "within"
    return replace(
        check,
        state=state,
        evidence=evidence,
        value=evidence.value,
        n=evidence.n,
        contexts=evidence.contexts,
    )


def _above_noise(check: Check, floors: Sequence[Evidence]) -> Check:
    """The check with its noise floor, undecided if noise may have decided it."""
    if not floors:
        return check
    floor = max(floors, key=lambda each: abs(each.value - check.criterion.least))
    noisy, state = any(_is_hidden(check, each) for each in floors), check.state
    if noisy and check.evidence:
        state = "undecided"
    return replace(check, floor=floor, noisy=noisy, state=state)


def _is_hidden(check: Check, floor: Evidence) -> bool:
    """Whether noise may be why the check is what it is: the upper end of the noise is
    beyond the tolerance, and the number is not surely beyond that end.

    A control of few items cannot show a small noise, even without any: it prevents no
    "within". Gains and losses by noise cancel in a drop, whose own interval has them:
    there only a sure loss of the control counts.
    """
    criterion, bound = check.criterion, check.threshold
    beyond = check.evidence if check.state == "beyond" else None
    level = ALPHA / 2 if beyond is None else check.levels[1]
    if criterion.least:
        far, near = floor.lower(level), floor.upper(level)
        is_past, is_sure, loses = far < bound, near < bound, near < 1
    else:
        far, near = floor.upper(level), floor.lower(level)
        is_past, is_sure, loses = far > bound, near > bound, near > 0
    if not is_past or (criterion.cancels and not loses):
        return False
    if beyond is not None:
        p = beyond.p_at_least(far) if criterion.least else beyond.p_at_most(far)
        return p > level
    shows_all = criterion.least or criterion.cancels or not criterion.measure
    return is_sure or shows_all or (1 - bound) ** floor.contexts <= ALPHA / 2
