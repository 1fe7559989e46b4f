"""A verdict in plain words and as JSON (RUN/gate.json): the use that the checkpoint
is fit for, and why."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from evaluator.deciding.decision import FEWEST, OUTCOMES, Check, Outcome, Verdict
from evaluator.deciding.thresholds import Thresholds
from evaluator.metrics import TABLES
from evaluator.metrics.inputs import ALL
from evaluator.store.run_json import Failure

_MOST = 2  # reasons that a sentence names
_NAMES = 3  # languages
_COUNTED: dict[Outcome, str] = {
    "BLOCK": "blocked",
    "ANOMALOUS": "anomalous",
    "WARN": "undecided",
    "PASS": "passed",
}
# of a check
_NUMBERS = (
    *("language", "state", "value", "low", "high"),
    *("threshold", "n", "contexts", "missing"),
)
NO_BASE = "No checkpoint of this run has a base to compare it with."


def usable(verdict: Verdict) -> str:
    """The use that the checkpoint is fit for, in one clause."""
    if verdict.incomparable:
        return "not comparable"
    if verdict.outcome == "PASS":
        return "usable, and better" if better(verdict) else "usable"
    if verdict.outcome != "BLOCK":
        return _COUNTED[verdict.outcome]
    beyond = verdict.having("beyond")
    shown = {check.criterion.shows for check in beyond if check.pooled}
    if not shown or _well_elsewhere(verdict):
        return _in_languages(beyond)
    if "recognising" in shown:
        return "not usable"
    if "saying" in shown:
        choices = verdict.of("choice_drop")
        picks = any(check.pooled and check.state == "within" for check in choices)
        return "usable for recognition only" if picks else "not usable for open answers"
    if "changing" in shown:
        return "right about as often, on other questions"
    return "usable by its answers, not by its probabilities"


def why(verdict: Verdict, most: int = _MOST) -> str:
    """The reason in one clause, and whether the checkpoint stopped early."""
    reason = verdict.incomparable or verdict.anomaly or _reason(verdict, most)
    return reason if verdict.early is None else f"{reason}; {verdict.early}"


def _reason(verdict: Verdict, most: int) -> str:
    if verdict.unjudged:
        return (
            f"{verdict.unjudged:,} of {verdict.planned:,} planned items have no"
            " judgement: as losses or as gains, they would change the verdict"
        )
    if verdict.outcome == "WARN":
        return _lacking(verdict)
    if verdict.outcome == "BLOCK":
        beyond = verdict.having("beyond")
        worst = [check for check in beyond if check.pooled] or _worst_first(beyond)
        rest = len(worst) - most
        more = f", and {rest} more" if rest > 0 else ""
        return ", ".join(map(_measured, worst[:most])) + more
    reason = better(verdict)
    if not reason:
        items = max(check.n for check in verdict.checks if check.pooled)
        reason = f"within every tolerance, on {items:,} items"
    unmeasured = [check.criterion.text for check in verdict.having("unmeasured")]
    if unmeasured:
        reason += f"; not measured: {', '.join(unmeasured)}"
    return reason


def better(verdict: Verdict) -> str:
    """The certain gains: "better by 3.0 pp (open)"; empty if there are none."""
    gains = []
    for check in (*verdict.of("open_drop"), *verdict.of("choice_drop")):
        if check.pooled and check.gain:
            gain = check.criterion.kind.shown(-(check.value or 0))
            gains.append(f"{gain} ({check.criterion.name.removesuffix('_drop')})")
    return f"better by {' and '.join(gains)}" if gains else ""


def paragraph(verdicts: Sequence[Verdict]) -> str:
    several = len({verdict.task for verdict in verdicts}) > 1
    sentences = []
    for verdict in verdicts:
        task = f" on {verdict.task}" if several else ""
        sentences.append(
            f"{verdict.checkpoint}{task}: {usable(verdict)} ({why(verdict)})."
        )
    return " ".join(sentences) or NO_BASE


def summary(verdicts: Sequence[Verdict]) -> str:
    """All verdicts counted: "4 of 5 blocked, 1 undecided"."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    clauses: list[str] = []
    for outcome, word in _COUNTED.items():
        if counts[outcome]:
            total = "" if clauses else f" of {len(verdicts):,}"
            clauses.append(f"{counts[outcome]:,}{total} {word}")
    return ", ".join(clauses) or NO_BASE


def _lacking(verdict: Verdict) -> str:
    """The reason for WARN: the undecided check that needs most items (pooled ones
    first), and the number of others."""
    undecided = verdict.having("undecided")
    if not verdict.checks:
        return "no item was measured in both it and its base"
    if not undecided:
        if any(check.criterion.shows == "saying" for check in verdict.checks):
            return "open answers were not measured"
        return "no tolerance judges open answers: a PASS needs one"
    pooled = [check for check in undecided if check.pooled]
    hardest = max(
        pooled or undecided, key=lambda check: (check.enough is None, check.enough or 0)
    )
    rest = len(undecided) - 1
    if not rest:
        return _undecided(hardest)
    verb = "is" if rest == 1 else "are"
    return f"{_undecided(hardest)}; {_counted(rest, 'more check')} {verb} undecided"


def _undecided(check: Check) -> str:
    criterion, counted, where = check.criterion, check.criterion.counted, _where(check)
    if check.value is None:
        if criterion.table:
            needs = TABLES[criterion.table].needs
            return (
                f"{criterion.text} has no interval in table {criterion.table}, which"
                f" needs {needs}"
            )
        return f"no {counted}{where} of both the base and the checkpoint can be judged"
    if check.contexts < FEWEST:
        items = _counted(check.n, counted.removesuffix("s"))
        contexts = _counted(check.contexts, "context")
        return f"{items}{where} in {contexts}: a verdict needs {FEWEST} contexts"
    needs = f"more {counted} than a run can have"
    if check.enough is not None:
        unit = 10 ** max(0, len(str(check.enough)) - 2)  # an estimate has two digits
        needs = f"about {-(-check.enough // unit) * unit:,} {counted}{where}"
    return f"{_measured(check)}; it would take {needs}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _well_elsewhere(verdict: Verdict) -> bool:
    """Whether the loss is limited to some languages. Each other language then stays
    within the pooled tolerance."""
    tolerances, drops = {}, []
    for check in verdict.checks:
        if check.pooled:
            tolerances[check.criterion.name] = check.threshold
        elif check.value is not None:
            drops.append(check)
    bad = {check.language for check in drops if check.state == "beyond"}
    losses = [
        (check.value or 0.0) - tolerances[check.criterion.name]
        for check in drops
        if check.language not in bad
    ]
    return bool(bad and losses) and max(losses) <= 0


def _in_languages(beyond: Sequence[Check]) -> str:
    """The languages in which an otherwise usable checkpoint fails: "not usable in
    Bengali"."""
    gone, silent = {}, {}  # languages, in order
    for check in _worst_first(beyond):
        if not check.pooled:
            silent[check.language] = check
            if check.criterion.shows == "recognising":
                gone[check.language] = check
    clauses = []
    if gone:
        clauses.append(f"not usable in {_named([*gone])}")
    silent_only = [language for language in silent if language not in gone]
    if silent_only:
        clauses.append(f"usable for recognition only in {_named(silent_only)}")
    return "; ".join(clauses)


def _worst_first(checks: Iterable[Check]) -> list[Check]:
    """By the distance from the tolerance, as a multiple of the tolerance."""

    def excess(check: Check) -> float:
        assert check.value is not None
        return abs(check.value - check.threshold) / (check.threshold or 1.0)

    return sorted(checks, key=excess, reverse=True)


def _measured(check: Check) -> str:
    """A check as "open accuracy lost 12.3 pp (8.0 to 16.1; at most 2.0)"."""
    kind = check.criterion.kind
    low, high = kind.shown(check.low, unit=False), kind.shown(check.high, unit=False)
    side = "at least" if check.criterion.least else "at most"
    bound = kind.shown(check.threshold, unit=False)
    return (
        f"{check.criterion.text}{_where(check)} {kind.shown(check.value)} ({low} to"
        f" {high}; {side} {bound})"
    )


def _where(check: Check) -> str:
    return "" if check.language == ALL else f" in {_named([check.language])}"


def _named(languages: Sequence[str]) -> str:
    """Names as in the data sets. Longer names start with a capital; codes do not."""
    names = [
        name if len(name) <= 3 else name[:1].upper() + name[1:]
        for name in languages[:_NAMES]
    ]
    rest = len(languages) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest else "")


def document(
    verdicts: Sequence[Verdict],
    thresholds: Thresholds,
    failures: Sequence[Failure] = (),
) -> dict[str, Any]:
    """RUN/gate.json, shares as fractions of 1. `verdict` is the worst of any
    checkpoint; WARN without any, and at best WARN if a checkpoint or one of its
    tasks failed, as nothing judged it."""
    outcomes = [verdict.outcome for verdict in verdicts]
    worst = max(outcomes, key=OUTCOMES.index, default="WARN")
    not_judged = [
        {"checkpoint": each.checkpoint, "task": each.task, "why": each.reason}
        for each in failures
    ]
    return {
        "schema_version": 2,
        "verdict": "WARN" if failures and worst == "PASS" else worst,
        "summary": summary(verdicts),
        "words": paragraph(verdicts),
        "thresholds": dict(thresholds),
        "checkpoints": list(map(_row, verdicts)),
        "not_judged": not_judged,
    }


def _row(verdict: Verdict) -> dict[str, Any]:
    checks = []
    for check in verdict.checks:
        numbers = {name: getattr(check, name) for name in _NUMBERS}
        row = {"criterion": check.criterion.name, **numbers}
        checks.append(row | {"enough_items": check.enough})
    return {
        "task": verdict.task,
        "checkpoint": verdict.checkpoint,
        "base": verdict.base,
        "verdict": verdict.outcome,
        "usable": usable(verdict),
        "why": why(verdict),
        "planned": verdict.planned,
        "unjudged": verdict.unjudged,
        "decided_early": verdict.early is not None,
        "checks": checks,
    }
