"""A verdict in plain words and as JSON (RUN/gate.json): the use that the checkpoint
is fit for, and why."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from evaluator.deciding.decision import FEWEST, OUTCOMES, Check, Outcome, Verdict
from evaluator.deciding.thresholds import Thresholds
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
    "language",
    "state",
    "value",
    "low",
    "high",
    "threshold",
    "n",
    "contexts",
    "missing",
)
NO_BASE = "No checkpoint of this run has a base to compare it with."


def usable(verdict: Verdict) -> str:
    """The use that the checkpoint is fit for, in one clause."""
    if verdict.incomparable:
        return "not comparable"
    if verdict.outcome == "ANOMALOUS":
        return "anomalous"
    if verdict.outcome == "WARN":
        return "undecided"
    if verdict.outcome == "PASS":
        return "usable, and better" if better(verdict) else "usable"
    beyond = verdict.having("beyond")
    shown = {check.criterion.shows for check in beyond if check.pooled}
    if not shown or _well_elsewhere(verdict):
        return _in_languages(beyond)
    if "recognising" in shown:
        return "not usable"
    if "saying" in shown:
        picks = any(
            check.pooled and check.state == "within"
            for check in verdict.of("choice_drop")
        )
        return "usable for recognition only" if picks else "not usable for open answers"
    if "changing" in shown:
        return "right about as often, on other questions"
    return "usable by its answers, not by its probabilities"


def why(verdict: Verdict, most: int = _MOST) -> str:
    """The reason in one clause, and whether the checkpoint stopped early."""
    if verdict.incomparable or verdict.anomaly:
        told = verdict.incomparable or verdict.anomaly or ""
    elif verdict.unjudged:
        told = (
            f"{verdict.unjudged:,} of {verdict.planned:,} planned items have no"
            " judgement: as losses or as gains, they would change the verdict"
        )
    elif verdict.outcome == "BLOCK":
        beyond = verdict.having("beyond")
        worst_first = [check for check in beyond if check.pooled] or sorted(
            beyond, key=_badness, reverse=True
        )
        told = ", ".join(map(_told, worst_first[:most]))
        told += (
            f", and {len(worst_first) - most} more" if len(worst_first) > most else ""
        )
    elif verdict.outcome == "WARN":
        told = _lacking(verdict)
    else:
        told = better(verdict)
        if not told:
            items = max(check.n for check in verdict.checks if check.pooled)
            told = f"within every tolerance, on {items:,} items"
        if unmeasured := [
            check.criterion.told for check in verdict.having("unmeasured")
        ]:
            told += f"; not measured: {', '.join(unmeasured)}"
    return told if verdict.early is None else f"{told}; {verdict.early}"


def better(verdict: Verdict) -> str:
    """The certain gains: "better by 3.0 pp (open)"; empty if there are none."""
    told = [
        f"{check.criterion.kind.shown(-(check.value or 0))} ({name.removesuffix('_drop')})"
        for name in ("open_drop", "choice_drop")
        for check in verdict.of(name)
        if check.pooled and check.gain
    ]
    return f"better by {' and '.join(told)}" if told else ""


def paragraph(verdicts: Sequence[Verdict]) -> str:
    several = len({verdict.task for verdict in verdicts}) > 1
    sentences = []
    for verdict in verdicts:
        where = f" on {verdict.task}" if several else ""
        sentences.append(
            f"{verdict.checkpoint}{where}: {usable(verdict)} ({why(verdict)})."
        )
    return " ".join(sentences) or NO_BASE


def summary(verdicts: Sequence[Verdict]) -> str:
    """All verdicts counted: "4 of 5 blocked, 1 undecided"."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    told = [
        f"{counts[outcome]:,} {word}"
        for outcome, word in _COUNTED.items()
        if counts[outcome]
    ]
    if not told:
        return NO_BASE
    count, _, rest = told[0].partition(" ")
    return ", ".join([f"{count} of {len(verdicts):,} {rest}", *told[1:]])


def _lacking(verdict: Verdict) -> str:
    """The reason for WARN: the undecided check that needs most items (pooled ones
    first), and the number of others."""
    undecided = verdict.having("undecided")
    if not verdict.checks:
        return "no item was measured in both it and its base"
    if not undecided:
        judged = any(check.criterion.shows == "saying" for check in verdict.checks)
        return (
            "open answers were not measured"
            if judged
            else "no tolerance judges open answers: a PASS needs one"
        )
    pooled = [check for check in undecided if check.pooled]
    hardest = max(
        pooled or undecided, key=lambda check: (check.enough is None, check.enough or 0)
    )
    more = len(undecided) - 1
    others = (
        f"; {_counted(more, 'more check')} {'is' if more == 1 else 'are'} undecided"
        if more
        else ""
    )
    return _undecided(hardest) + others


def _undecided(check: Check) -> str:
    counted = check.criterion.counted
    if check.value is None and check.criterion.table:
        return (
            f"{check.criterion.told} has no interval in table {check.criterion.table}"
        )
    if check.value is None:
        return (
            f"no {counted}{_place(check)} of both the base and the checkpoint can be"
            " judged"
        )
    if check.contexts < FEWEST:
        items, contexts = (
            _counted(check.n, counted.removesuffix("s")),
            _counted(check.contexts, "context"),
        )
        return (
            f"{items}{_place(check)} in {contexts}: a verdict needs {FEWEST} contexts"
        )
    if check.enough is None:
        return f"{_told(check)}; it would take more {counted} than a run can have"
    unit = 10 ** max(0, len(str(check.enough)) - 2)  # an estimate has two digits
    return (
        f"{_told(check)}; it would take about"
        f" {-(-check.enough // unit) * unit:,} {counted}{_place(check)}"
    )


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _well_elsewhere(verdict: Verdict) -> bool:
    """Whether the loss is limited to some languages. Each other language then stays
    within the pooled tolerance."""
    drops = [check for check in verdict.checks if not check.pooled]
    bad = {check.language for check in drops if check.state == "beyond"}
    most = {
        check.criterion.name: check.threshold
        for check in verdict.checks
        if check.pooled
    }
    others = [
        check
        for check in drops
        if check.language not in bad and check.value is not None
    ]
    return bool(bad and others) and all(
        (check.value or 0.0) <= most[check.criterion.name] for check in others
    )


def _in_languages(beyond: Sequence[Check]) -> str:
    """The languages in which an otherwise usable checkpoint fails: "not usable in
    Bengali"."""
    ranked = sorted(
        (check for check in beyond if not check.pooled), key=_badness, reverse=True
    )
    gone = list(
        dict.fromkeys(
            check.language for check in ranked if check.criterion.shows == "recognising"
        )
    )
    silent = [
        each
        for each in dict.fromkeys(check.language for check in ranked)
        if each not in gone
    ]
    told = {"not usable": gone, "usable for recognition only": silent}
    return "; ".join(
        f"{what} in {_named(languages)}"
        for what, languages in told.items()
        if languages
    )


def _badness(check: Check) -> float:
    """How far a check is beyond its tolerance, as a multiple of the tolerance."""
    assert check.value is not None
    return abs(check.value - check.threshold) / (check.threshold or 1.0)


def _told(check: Check) -> str:
    """A check as "open accuracy lost 12.3 pp (8.0 to 16.1; at most 2.0)"."""
    kind = check.criterion.kind
    low, high = (kind.shown(end, unit=False) for end in (check.low, check.high))
    bound = f"{'at least' if check.criterion.least else 'at most'} {kind.shown(check.threshold, unit=False)}"
    return (
        f"{check.criterion.told}{_place(check)} {kind.shown(check.value)} ({low} to"
        f" {high}; {bound})"
    )


def _place(check: Check) -> str:
    return "" if check.language == ALL else f" in {_named([check.language])}"


def _named(languages: Sequence[str]) -> str:
    """Names as in the data sets. Longer names start with a capital; codes do not."""
    names = [
        name if len(name) <= 3 else name[:1].upper() + name[1:]
        for name in languages[:_NAMES]
    ]
    more = len(languages) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def document(
    verdicts: Sequence[Verdict],
    thresholds: Thresholds,
    failures: Sequence[Failure] = (),
) -> dict[str, Any]:
    """RUN/gate.json, shares as fractions of 1. `verdict` is the worst of any
    checkpoint; WARN without any, and at best WARN if a checkpoint or one of its
    tasks failed, as nothing judged it."""
    worst = max(
        (verdict.outcome for verdict in verdicts), key=OUTCOMES.index, default="WARN"
    )
    return {
        "schema_version": 2,
        "verdict": "WARN" if failures and worst == "PASS" else worst,
        "summary": summary(verdicts),
        "words": paragraph(verdicts),
        "thresholds": dict(thresholds),
        "checkpoints": [
            {
                "task": verdict.task,
                "checkpoint": verdict.checkpoint,
                "base": verdict.base,
                "verdict": verdict.outcome,
                "usable": usable(verdict),
                "why": why(verdict),
                "planned": verdict.planned,
                "unjudged": verdict.unjudged,
                "decided_early": verdict.early is not None,
                "checks": [
                    {
                        "criterion": check.criterion.name,
                        **{name: getattr(check, name) for name in _NUMBERS},
                        "enough_items": check.enough,
                    }
                    for check in verdict.checks
                ],
            }
            for verdict in verdicts
        ],
        "not_judged": [
            {"checkpoint": each.checkpoint, "task": each.task, "why": each.reason}
            for each in failures
        ],
    }
