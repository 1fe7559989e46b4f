"""A verdict in plain words: whether a checkpoint is usable, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from evaluator.metrics.gate.decision import OUTCOMES, Check, Verdict
from evaluator.metrics.inputs import ALL

_MOST = 2  # reasons that a sentence names
_NAMES = 3  # languages


def usable(verdict: Verdict) -> str:
    """Usable for what, in one clause."""
    if verdict.incomparable:
        return "not decided"
    crossed = {check.criterion.shows for check in verdict.having("crossed") if check.pooled}
    if crossed and _well_elsewhere(verdict, crossed - {"probabilities"}):
        return _places(verdict)
    if "recognising" in crossed:
        return "not usable"
    if "saying" in crossed:
        recognised = any(check.pooled and _seen(check) for check in verdict.of("choice_drop"))
        return "usable for recognition only" if recognised else "not usable for open answers"
    places = _places(verdict)
    if "changing" in crossed:
        worse = _places(verdict, changing=False)
        return "right about as often, on other questions" + (f"; {worse}" if worse else "")
    if "probabilities" in crossed:
        return "usable by its answers, not by its probabilities" + (f"; {places}" if places else "")
    if places:
        return places
    if apart := verdict.having("crossed"):  # in languages, by their probabilities
        where = _named(list(dict.fromkeys(check.language for check in apart)))
        return f"usable by its answers, not by its probabilities in {where}"
    if verdict.outcome == "PASS":
        return "usable"
    if verdict.having("failed"):
        return "undecided: the engine failed on too many items"
    if _nothing_to_lose(verdict):
        return "undecided: too few right answers of the base"
    if verdict.underpowered:
        return "undecided: too few items"
    return "usable, with doubts" if verdict.having("over") else "undecided: open answers were not measured"


def why(verdict: Verdict, most: int = _MOST) -> str:
    """The reason in one clause, and whether it was asked a few items only."""
    told = _why(verdict, most)
    return told if verdict.screened_out is None else f"{told}; {verdict.screened_out}"


def _why(verdict: Verdict, most: int) -> str:
    """What was crossed, the `most` most telling, or what is lacking."""
    if verdict.incomparable:
        return verdict.incomparable
    crossed = [check for check in verdict.having("crossed") if check.pooled]
    apart = sorted((check for check in verdict.having("crossed") if not check.pooled), key=_badness, reverse=True)
    if crossed:
        return _listed(crossed, most)
    if apart:
        return _listed(apart, most)
    if failing := verdict.having("failed"):
        check = max(failing, key=lambda each: each.failed)
        return f"the engine failed on {check.failed:,} of {check.n + check.failed:,} items"
    if verdict.having("over"):
        over = f"{_listed(verdict.having('over'), most)}, which may be chance"
        return over + (f"; {_lacking(verdict)}" if verdict.underpowered else "")
    if verdict.underpowered:
        return _lacking(verdict)
    if all(check.state == "unmeasured" for check in verdict.checks):
        return "nothing was measured of both it and its base"
    lacking = [check.criterion.told for check in verdict.having("unmeasured") if check.criterion.power == "difference"]
    held = f"within every threshold that was measured, on {_items(verdict)}"
    return held + (f"; not measured: {', '.join(lacking)}" if lacking else "")


def paragraph(verdicts: Sequence[Verdict]) -> str:
    """Every verdict in one paragraph."""
    if not verdicts:
        return "No checkpoint of this run has a base to compare it with."
    tasks = {verdict.task for verdict in verdicts}
    sentences = []
    for verdict in verdicts:
        where = f" on {verdict.task}" if len(tasks) > 1 else ""
        sentences.append(f"{verdict.checkpoint}{where}: {usable(verdict)} ({why(verdict)}).")
    return " ".join(sentences)


def summary(verdicts: Sequence[Verdict]) -> str:
    """One sentence over all verdicts: how many are usable for what."""
    if not verdicts:
        return "No checkpoint of this run has a base to compare it with."
    if len(verdicts) == 1:
        return f"{verdicts[0].checkpoint}: {usable(verdicts[0])}."
    found: dict[str, int] = {}
    for verdict in sorted(verdicts, key=lambda each: OUTCOMES.index(each.outcome)):
        found[usable(verdict)] = found.get(usable(verdict), 0) + 1
    tasks = len({verdict.task for verdict in verdicts})
    counted = f"{len(verdicts)} compressed checkpoints" if tasks == 1 else f"{len(verdicts)} verdicts on {tasks} tasks"
    if len(found) == 1:
        return f"All {counted}: {next(iter(found))}."
    told = "; ".join(f"{count} {what}" for what, count in found.items())
    return f"Of {counted}: {told}."


def _seen(check: Check) -> bool:
    """Whether a drop would have been seen among so many items: one that may be chance is no better than none."""
    return check.state == "ok" or (check.state == "over" and check.n >= (check.enough or 0))


def _places(verdict: Verdict, *, changing: bool = True) -> str:
    """Where it is not usable though it is on the whole: "not usable in bengali"; without `changing`, other answers that
    are right as often are not told."""
    suffers: dict[str, set[str]] = {}  # by language
    for check in sorted(verdict.having("crossed"), key=_badness, reverse=True):
        if not check.pooled and check.criterion.shows != "probabilities":
            suffers.setdefault(check.language, set()).add(check.criterion.shows)
    gone = [language for language, what in suffers.items() if "recognising" in what]
    silent = [language for language, what in suffers.items() if "saying" in what and language not in gone]
    others = [language for language, what in suffers.items() if changing and what == {"changing"}]
    told = {"not usable": gone, "usable for recognition only": silent, "right on other questions": others}
    return "; ".join(f"{what} in {_named(languages)}" for what, languages in told.items() if languages)


def _well_elsewhere(verdict: Verdict, shown: Collection[str]) -> bool:
    """Whether all that is crossed, which shows `shown`, comes from some languages, and the others lose no more than all
    may together."""
    apart = [check for check in verdict.checks if not check.pooled and check.criterion.shows != "probabilities"]
    there = [check for check in apart if check.state == "crossed"]
    if not {*shown} <= {check.criterion.shows for check in there}:
        return False
    bad = {check.language for check in there}
    most = {check.criterion.name: check.threshold for check in verdict.checks if check.pooled}
    drops = [check for name in ("open_drop", "choice_drop") for check in verdict.of(name) if not check.pooled]
    others = [check for check in drops if check.language not in bad]
    return bool(bad and others) and all((check.value or 0.0) <= most[check.criterion.name] for check in others)


def _badness(check: Check) -> float:
    """By how much of its threshold a check is beyond it."""
    assert check.value is not None
    return abs(check.value - check.threshold) / (check.threshold or 1.0)


def _listed(checks: Sequence[Check], most: int) -> str:
    told = [_told(check) for check in checks[:most]]
    more = len(checks) - len(told)
    return ", ".join(told) + (f", and {more} more" if more else "")


def _told(check: Check) -> str:
    """A check as "open accuracy lost 12.3 pp (8.0 to 16.1; at most 2.0)"."""
    kind = check.criterion.kind
    interval = ""
    if check.low is not None and check.high is not None:
        interval = f"{kind.shown(check.low, unit=False)} to {kind.shown(check.high, unit=False)}; "
    bound = f"{'at least' if check.criterion.least else 'at most'} {kind.shown(check.threshold, unit=False)}"
    where = "" if check.language == ALL else f" in {_named([check.language])}"
    return f"{check.criterion.told}{where} {kind.shown(check.value)} ({interval}{bound})"


def _lacking(verdict: Verdict) -> str:
    """Too few of what, and how many would be enough."""
    pooled = [check for check in verdict.having("underpowered") if check.pooled]
    if nothing := _nothing_to_lose(verdict):
        return nothing
    if pooled:
        check = max(pooled, key=lambda each: (each.enough or 0) / max(each.n, 1))
        what = "known answers" if check.criterion.power == "share" else "items"
        found = f"{check.n:,} {what} are too few to exclude {_bound(check)}"
        return found + (f": about {check.enough:,} would do" if check.enough else "")
    apart = sorted(verdict.having("underpowered"), key=lambda each: each.enough or 0, reverse=True)
    names = list(dict.fromkeys(check.language for check in apart))
    enough = f": about {apart[0].enough:,} would do in {_named([apart[0].language])}" if apart[0].enough else ""
    return f"too few items in {_named(names)} to exclude {_bound(apart[0])}{enough}"


def _nothing_to_lose(verdict: Verdict) -> str:
    """Of which right answers the base has none, so that no loss can be seen; empty where it has some."""
    empty = [check for check in verdict.having("underpowered") if check.value is None]
    if any(check.criterion.least for check in empty):
        return "the base is never right: there is nothing that it could lose"
    enough = max((check.enough or 0 for check in empty), default=0)
    return f"the base both says and picks no answer: about {enough:,} would do" if empty else ""


def _bound(check: Check) -> str:
    return f"{check.criterion.told} of {check.criterion.kind.shown(check.threshold)}"


def _items(verdict: Verdict) -> str:
    return f"{max((check.n for check in verdict.checks if check.pooled), default=0):,} items"


def _named(languages: Sequence[str]) -> str:
    """Names as data sets spell them, in capitals where they are words."""
    names = [name if len(name) <= 3 else name[:1].upper() + name[1:] for name in languages[:_NAMES]]
    more = len(languages) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
