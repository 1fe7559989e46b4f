"""A verdict in plain words and as JSON (RUN/gate.json): the use that the checkpoint
is fit for, and why."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from evaluator.core.errors import Json, counted
from evaluator.core.records import is_group
from evaluator.deciding.decision import OUTCOMES, Check, Outcome, Verdict, worst_first
from evaluator.deciding.policy import Policy
from evaluator.deciding.thresholds import FEWEST
from evaluator.metrics.columns import POINTS, rounded
from evaluator.metrics.intervals import ALPHA
from evaluator.metrics.items import ALL
from evaluator.store.run_json import Failure

_MOST = 2  # reasons that a sentence names
_NAMES = 3  # languages
_WIDER = "which more questions narrow (--control order asks all of them again)"
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
_IDENTICAL = (
    "warning: every answer equals the base's: perhaps the compression was never applied"
)
NO_BASE = "No checkpoint of this run has a base to compare it with."


def usable(verdict: Verdict) -> str:
    """The use that the checkpoint is fit for, in one clause."""
    if verdict.unmet:
        return "required, and not measured"
    if verdict.incomparable:
        return "not comparable"
    if verdict.outcome == "PASS":
        return "usable, and better" if better(verdict) else "usable"
    if not verdict.blocks:
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
        return (
            "picks as before, says less" if picks else "not usable for saying answers"
        )
    if "changing" in shown:
        return "right about as often, on other questions"
    return "usable by its answers, not by its probabilities"


def why(verdict: Verdict, most: int = _MOST) -> str:
    """The reason in one clause."""
    reason = verdict.incomparable or verdict.anomaly or _reason(verdict, most)
    for check in verdict.checks:
        if check.value is None and check.criterion.table:
            lack = _undecided(check)
            reason += "" if lack in reason else f"; {lack}"
    if verdict.advisory:
        reason = f"advisory: {reason}"
    if verdict.identical and not verdict.incomparable:
        reason += f"; {_IDENTICAL}"
    if verdict.sampled and not verdict.incomparable:
        drop, *ends = verdict.sampled
        reason += f"; not judged: samples lost {POINTS.shown(drop)} ({_spread(ends)})"
    if verdict.same_weights:
        reason += "; same weights as its base"
    if verdict.differences:
        lines = ", ".join(verdict.differences)
        reason += f"; differs from its base beside weights: {lines}"
    return "; ".join((reason, *verdict.remarks))


def _reason(verdict: Verdict, most: int) -> str:
    if verdict.unmet:
        what = "group" if is_group(verdict.task) else "task"
        return f"the policy requires this {what}: {verdict.unmet}"
    if verdict.unjudged:
        return (
            f"{verdict.unjudged:,} of {verdict.planned:,} planned items have no"
            " judgement: as losses or as gains, they would change the verdict"
        )
    if verdict.blocks:
        beyond = verdict.having("beyond")
        worst = [check for check in beyond if check.pooled] or _worst_first(beyond)
        rest = len(worst) - most
        more = f", and {rest} more" if rest > 0 else ""
        return ", ".join(map(_measured, worst[:most])) + more
    if verdict.failed:
        return f"within every tolerance so far; not judged: {verdict.failed}"
    if verdict.outcome == "WARN":
        return _lacking(verdict)
    reason = better(verdict)
    if not reason:
        items = max(check.n for check in verdict.checks if check.pooled)
        reason = f"within every tolerance, on {items:,} items"
    unmeasured = [
        check.criterion.text + _where(check) for check in verdict.having("unmeasured")
    ]
    if unmeasured:
        reason += f"; not measured: {', '.join(unmeasured)}"
    return reason


def better(verdict: Verdict) -> str:
    """The certain gains: "better by 3.0 pp (said)"; empty if there are none."""
    gains = []
    for check in verdict.checks:
        if check.pooled and check.gain:
            gain = check.criterion.kind.shown(-(check.value or 0))
            gains.append(f"{gain} ({check.criterion.heading})")
    return f"better by {' and '.join(gains)}" if gains else ""


def of_groups(verdict: Verdict) -> str:
    """What it shows in each of the user's groups that has a tolerance; empty for
    none."""
    told = []
    for check in verdict.checks:
        if is_group(check.language):
            told.append(f"{_measured(check)}: {check.state}")
    return "; ".join(told)


def words(verdicts: Sequence[Verdict]) -> str:
    """The verdicts in plain words, a line each."""
    several = len({verdict.subject for verdict in verdicts}) > 1
    sentences = []
    for verdict in verdicts:
        task = f" on {verdict.subject}" if several else ""
        sentences.append(
            f"{verdict.checkpoint}{task}: {usable(verdict)} ({why(verdict)})."
        )
    return "\n".join(sentences) or NO_BASE


def summary(verdicts: Sequence[Verdict]) -> str:
    """All verdicts counted: "4 of 5 blocked, 1 undecided"."""
    counts = Counter(
        "warned (advisory)" if each.advisory else _COUNTED[each.outcome]
        for each in verdicts
    )
    clauses: list[str] = []
    for word in sorted(counts, key=[*_COUNTED.values(), *counts].index):
        total = "" if clauses else f" of {len(verdicts):,}"
        clauses.append(f"{counts[word]:,}{total} {word}")
    return ", ".join(clauses) or NO_BASE


def notice(verdicts: Sequence[Verdict]) -> str:
    """The summary and the blocked checkpoints: "1 of 3 blocked: BLOCK wanda-0.5";
    empty without verdicts."""
    if not verdicts:
        return ""
    blocked = [each.checkpoint for each in verdicts if each.outcome == "BLOCK"]
    names = ", ".join(dict.fromkeys(blocked))
    return summary(verdicts) + (f": BLOCK {names}" if names else "")


def _lacking(verdict: Verdict) -> str:
    """The reason for WARN: the undecided check with the largest loss (pooled ones
    first), and the number of others. Nothing decides a check without a value."""
    undecided = verdict.having("undecided")
    if not verdict.checks:
        return "no item was measured in both it and its base"
    if not undecided:
        if any(check.criterion.shows == "saying" for check in verdict.checks):
            return "said answers were not measured"
        return "no tolerance judges said answers: a PASS needs one"
    for check in undecided:
        if check.noisy:
            return _undecided(check)
    pooled = [check for check in undecided if check.pooled] or undecided
    worst = max(pooled, key=lambda check: (excess(check), _needed(check)))
    most = max(pooled, key=_needed)
    reason = _undecided(worst)
    rest = [
        f"{each.criterion.heading}{_where(each)}"
        for each in undecided
        if each is not worst and (each.value is not None or not each.criterion.table)
    ]
    if rest:
        more = f" and {len(rest) - _NAMES} more" if rest[_NAMES:] else ""
        reason += f"; also undecided: {', '.join(rest[:_NAMES])}{more}"
    if _needed(most) > _needed(worst):
        reason += f"; {most.criterion.heading} would take {_needs(most)}"
    return reason


def _undecided(check: Check) -> str:
    criterion, what, where = check.criterion, check.criterion.counted, _where(check)
    if check.value is None:
        if criterion.table:
            return (
                f"{criterion.text} has no interval in table {criterion.table}, which"
                f" needs {criterion.needs}"
            )
        if criterion.needs and not check.missing:
            return f"{criterion.text}{where} was not measured, which needs {criterion.needs}"
        return f"no {what}{where} of both the base and the checkpoint can be judged"
    if check.contexts < FEWEST:
        items = counted(check.n, what.removesuffix("s"))
        contexts = counted(check.contexts, "context")
        return f"{items}{where} in {contexts}: a verdict needs {FEWEST} contexts"
    if check.noisy:
        return f"{_measured(check)}: the tolerance is below the noise floor, {_WIDER}"
    return f"{_measured(check)}; it would take {_needs(check)} for an even chance"


def _needed(check: Check) -> float:
    """Items that would decide a check."""
    return math.inf if check.enough is None else check.enough


def _needs(check: Check) -> str:
    what = check.criterion.counted
    if check.enough is None:
        return f"more {what} than a run can have"
    unit = 10 ** max(0, len(str(check.enough)) - 2)  # an estimate has two digits
    return f"about {-(-check.enough // unit) * unit:,} {what}{_where(check)}"


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
        if check.language not in bad and check.criterion.name in tolerances
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
        clauses.append(f"says less in {_named(silent_only)}")
    return "; ".join(clauses)


def _worst_first(checks: Iterable[Check]) -> list[Check]:
    return sorted(checks, key=excess, reverse=True)


def excess(check: Check) -> float:
    """How far a value is beyond its tolerance, as a multiple of the tolerance."""
    if check.value is None:
        return math.inf
    # what is left is at least 98 %: at most 2 % may be lost
    tolerance = abs(check.threshold - check.criterion.least) or 1.0
    excess = (check.value - check.threshold) / tolerance
    return -excess if check.criterion.least else excess


def _measured(check: Check) -> str:
    """A check as "drop of said answers 12.3 pp (8.0 to 16.1; at most 2.0)"."""
    kind, low, high = (
        check.criterion.kind,
        _end(check, check.low),
        _end(check, check.high),
    )
    side = "at least" if check.criterion.least else "at most"
    bound = check.criterion.shown(check.threshold)
    spread = ""
    if check.of_seeds is not None:
        spread = f"; {_spread(check.of_seeds)}"
    measured = (
        f"{check.criterion.text}{_where(check)} {kind.shown(check.value)} ({low} to"
        f" {high}; {side} {bound}{spread})"
    )
    if check.excess is None or check.floor is None:
        return measured
    low = kind.shown(check.floor.lower(ALPHA / 2), unit=False)
    high = kind.shown(check.floor.upper(ALPHA / 2), unit=False)
    return (
        f"{measured}, {kind.shown(check.excess)} above the noise of"
        f" {kind.shown(check.floor.value)} ({low} to {high}, from {check.floor.n:,}"
        f" {check.criterion.counted})"
    )


def _end(check: Check, end: float | None) -> str:
    """An end of the interval, with enough digits to tell it from the tolerance."""
    kind, per, bound = check.criterion.kind, check.criterion.per, check.threshold
    shown, digits = kind.shown(end, unit=False), 1
    if end is None or math.isclose(end, bound, abs_tol=1e-9):
        return shown
    while shown in (rounded(per * bound, digits), kind.shown(bound, unit=False)):
        digits += 1
        shown = rounded(per * end, digits)
    return shown


def _spread(ends: Iterable[float]) -> str:
    return f"by seed {' to '.join(POINTS.shown(each, unit=False) for each in ends)}"


def _where(check: Check) -> str:
    return "" if check.language == ALL else f" in {_named([check.language])}"


def _named(languages: Sequence[str]) -> str:
    """Names as in the data sets. Longer names start with a capital; codes and groups do
    not."""
    names = [
        name if len(name) <= 3 or is_group(name) else name[:1].upper() + name[1:]
        for name in languages[:_NAMES]
    ]
    rest = len(languages) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest else "")


def document(
    verdicts: Sequence[Verdict],
    policy: Policy,
    failures: Sequence[Failure] = (),
    lacking: Sequence[str] = (),
) -> Json:
    """RUN/gate.json, shares as fractions of 1. `verdict` is the worst of any
    checkpoint; WARN without any, and at best WARN if a checkpoint or one of its
    tasks failed, as nothing judged it. `lacking`: as `verdicts.not_in_run`."""
    verdicts = worst_first(verdicts)
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
        "words": words(verdicts),
        "thresholds": {
            **dict(policy.default),
            "max_drop_language": policy.default.drop_language,
        },
        "policy": policy.document,
        "checkpoints": list(map(_row, verdicts)),
        "not_judged": not_judged,
        "not_in_this_run": [*lacking],
    }


def in_short(verdict: Verdict) -> Json:
    """The row of a checkpoint and task, without its checks."""
    return {
        "task": verdict.task,
        **({"measure": verdict.measure} if verdict.measure else {}),
        "checkpoint": verdict.checkpoint,
        "base": verdict.base,
        "verdict": verdict.outcome,
        "advisory": verdict.advisory,
        "usable": usable(verdict),
        "why": why(verdict),
        "planned": verdict.planned,
        "unjudged": verdict.unjudged,
        "differences": [*verdict.differences],
    }


def _row(verdict: Verdict) -> Json:
    checks = []
    for check in verdict.checks:
        numbers = {name: getattr(check, name) for name in _NUMBERS}
        row = {"criterion": check.criterion.name, **numbers}
        row |= {"enough_items": check.enough, "noisy": check.noisy}
        if check.floor is not None:
            low, high = (
                end(ALPHA / 2) for end in (check.floor.lower, check.floor.upper)
            )
            row["floor"] = {"value": check.floor.value, "low": low, "high": high}
            row["excess"] = check.excess
        if check.of_seeds is not None:
            row["of_seeds"] = list(check.of_seeds)
        checks.append(row)
    return {**in_short(verdict), "checks": checks}
