"""The verdict on each compressed checkpoint of a run: the decision on its items, and
doubts about the measurement."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from evaluator.core.errors import mapping_at
from evaluator.deciding.criteria import CRITERIA, EXTREMES, Paired, Reported, paired_of
from evaluator.deciding.decision import (
    FEWEST,
    IMPLAUSIBLE,
    Check,
    Name,
    Verdict,
    decide,
)
from evaluator.deciding.thresholds import Thresholds
from evaluator.metrics.columns import rows_with
from evaluator.metrics.inputs import Comparison, Inputs
from evaluator.metrics.tables import TABLES
from evaluator.store.run_json import Failure, Screened, screened_of


def judge(inputs: Inputs, thresholds: Thresholds) -> list[Verdict]:
    """A verdict for each checkpoint and task of questions that has a base, in
    display order."""
    screened = {(each.task, each.checkpoint): each for each in screened_of(inputs.run)}
    reported = _reported(inputs, thresholds)
    return [
        _verdict(
            inputs, comparison, thresholds, screened.get(key), reported.get(key, {})
        )
        for key, comparison in inputs.comparisons().items()
    ]


def _verdict(
    inputs: Inputs,
    comparison: Comparison,
    thresholds: Thresholds,
    screened: Screened | None,
    reports: Mapping[Name, Reported],
) -> Verdict:
    subject = comparison.subject
    verdict = Verdict(
        task=subject.task, checkpoint=subject.checkpoint, base=subject.base or ""
    )
    if comparison.reason is not None:
        return verdict
    sizes, passed = (
        ((1,), ()) if screened is None else (screened.looks, screened.passed)
    )
    stated = mapping_at(inputs.run, "planned", subject.checkpoint).get(subject.task)
    planned = (
        screened.asked
        if screened is not None
        else stated
        if isinstance(stated, int)
        else None
    )
    paired = paired_of(inputs, comparison, planned)
    contexts = len(np.unique(paired.contexts))
    reports = {
        key: replace(each, contexts=min(each.contexts, contexts))
        for key, each in reports.items()
    }
    decision = decide(paired, thresholds, sizes=sizes, passed=passed, reports=reports)
    outcome, checks = decision.outcome, decision.checks
    incomparable = inputs.incomparable.get(subject.key)
    anomaly = _guessing(paired, checks) or (
        None if outcome == "BLOCK" else _implausible(checks)
    )
    unjudged = (
        max((check.missing for check in checks), default=0)
        if outcome in ("PASS", "BLOCK")
        else 0
    )
    if unjudged:
        extremes = (
            decide(paired, thresholds, sizes=sizes, reports=reports, absent=each)
            for each in EXTREMES
        )
        unjudged = unjudged if any(each.outcome != outcome for each in extremes) else 0
    return replace(
        verdict,
        outcome=(
            "BLOCK"
            if incomparable
            else "ANOMALOUS"
            if anomaly
            else "WARN"
            if unjudged
            else outcome
        ),
        checks=checks,
        planned=len(paired.contexts),
        incomparable=incomparable,
        anomaly=anomaly,
        unjudged=unjudged,
        early=inputs.decided_early.get(subject.key),
    )


def unfinished(inputs: Inputs, failures: Sequence[Failure]) -> list[Failure]:
    """Planned checkpoints and tasks without records, except those that failed:
    nothing judged them."""
    failed = {(each.checkpoint, task) for each in failures for task in (each.task, "")}
    measured = {
        (subject.checkpoint, subject.task)
        for subject in (*inputs.checkpoints, *inputs.readers)
    }
    return [
        Failure(
            checkpoint=checkpoint,
            task=task,
            stage="evaluate",
            reason="the run is not finished: it has no record",
        )
        for checkpoint in sorted(mapping_at(inputs.run, "planned"))
        for task in sorted(mapping_at(inputs.run, "planned", checkpoint))
        if not {(checkpoint, task), (checkpoint, "")} & failed
        and (checkpoint, task) not in measured
    ]


def _guessing(paired: Paired, checks: tuple[Check, ...]) -> str | None:
    """The anomaly of a base whose accuracy is at most that of guessing, over enough
    contexts: comparing its guesses shows nothing. A check of another kind that is
    beyond its tolerance still blocks."""
    beyond = {check.criterion.shows for check in checks if check.state == "beyond"}
    for what, shows, right, due, floor, first in (
        (
            "says",
            "saying",
            paired.base_said,
            paired.open,
            0.0,
            "its prompt and chat template",
        ),
        (
            "picks",
            "recognising",
            paired.base_picked,
            paired.choice,
            paired.floor,
            "the task's options and its prompt",
        ),
    ):
        judged = due & ~np.isnan(right)
        if beyond - {shows} or not any(
            check.criterion.shows == shows for check in checks
        ):
            continue
        if (
            len(np.unique(paired.contexts[judged])) < FEWEST
            or right[judged].mean() > floor
        ):
            continue
        share = f"{100 * right[judged].mean():.1f} % of {int(judged.sum()):,} answers"
        guessed = f", and guessing {what} {100 * floor:.1f} %" if floor else ""
        return f"the base {what} {share}{guessed}: inspect {first} first"
    return None


def _implausible(checks: tuple[Check, ...]) -> str | None:
    """A gain that no compression explains."""
    for check in checks:
        if check.pooled and check.contexts >= FEWEST and check.gain > IMPLAUSIBLE:
            word = check.criterion.name.removesuffix("_drop")
            return (
                f"{word} accuracy gained"
                f" {check.criterion.kind.shown(-(check.value or 0.0))}, at least"
                f" {check.criterion.kind.shown(check.gain)}: inspect first whether both"
                " have the same chat template, and whether the checkpoint was trained"
                " on these items"
            )
    return None


def _reported(
    inputs: Inputs, thresholds: Thresholds
) -> dict[tuple[str, str], dict[Name, Reported]]:
    """The tables' numbers of the judged criteria, by task and checkpoint. Each item
    counts as a context so far."""
    found: dict[tuple[str, str], dict[Name, Reported]] = {}
    for criterion in CRITERIA:
        if not criterion.table or criterion.threshold(thresholds) is None:
            continue
        names = [f"{criterion.column}{end}" for end in ("", "_low", "_high")]
        for row in rows_with(TABLES[criterion.table].rows(inputs), criterion.where):
            if any(row[name] is None for name in (*names, "base")):
                continue
            value, low, high = (float(row[name]) for name in names)
            report = Reported(
                value=value, low=low, high=high, n=int(row["n"]), contexts=int(row["n"])
            )
            found.setdefault((row["task"], row["checkpoint"]), {})[
                criterion.name, str(row["language"])
            ] = report
    return found
