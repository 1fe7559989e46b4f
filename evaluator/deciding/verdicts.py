"""The verdict on each compressed checkpoint of a run: the decision on its items, and
doubts about the measurement."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evaluator.core.errors import mapping_at
from evaluator.deciding.criteria import (
    CRITERIA,
    EXTREMES,
    Paired,
    Probe,
    Reported,
    Shows,
    paired_of,
)
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
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.tables import TABLES
from evaluator.store.run_json import Failure, Screened, screened_of

_OPTIONS_FIRST = "the task's options and its prompt"


def judge(inputs: Inputs, thresholds: Thresholds) -> list[Verdict]:
    """A verdict for each checkpoint and task of questions that has a base, in
    display order."""
    screened = {(row.task, row.checkpoint): row for row in screened_of(inputs.run)}
    reported = _reported(inputs, thresholds)
    verdicts = []
    for key, comparison in inputs.comparisons().items():
        subject = comparison.subject
        verdict = Verdict(
            task=subject.task, checkpoint=subject.checkpoint, base=subject.base or ""
        )
        if comparison.reason is None:
            row = screened.get(key)
            planned = mapping_at(inputs.run, "planned", subject.checkpoint)
            due = planned.get(subject.task) if row is None else row.asked
            paired = paired_of(
                inputs, comparison, due if isinstance(due, int) else None
            )
            verdict = replace(
                verdict,
                planned=len(paired.contexts),
                incomparable=inputs.incomparable.get(key),
                early=inputs.decided_early.get(key),
                **_decided(paired, thresholds, row, reported.get(key, {})),
            )
            if verdict.incomparable:
                verdict = replace(verdict, outcome="BLOCK")
        verdicts.append(verdict)
    return verdicts


def _decided(
    paired: Paired,
    thresholds: Thresholds,
    screened: Screened | None,
    reports: Mapping[Name, Reported],
) -> dict[str, Any]:
    """The fields of a verdict that follow from its items."""
    contexts = len(np.unique(paired.contexts))
    how: dict[str, Any] = {"reports": {}}
    for name, report in reports.items():
        how["reports"][name] = replace(report, contexts=min(report.contexts, contexts))
    passed: Collection[Name] = ()
    if screened is not None:
        how["sizes"], passed = screened.looks, screened.passed
    decision = decide(paired, thresholds, passed=passed, **how)
    outcome, checks = decision.outcome, decision.checks
    anomaly = _guessing(paired, checks)
    if anomaly is None and outcome != "BLOCK":
        anomaly = _implausible(checks)
    unjudged = 0
    if outcome in ("PASS", "BLOCK"):
        missing = max((check.missing for check in checks), default=0)
        for absent in EXTREMES if missing else ():
            extreme = decide(paired, thresholds, absent=absent, **how)
            if extreme.outcome != outcome:
                unjudged = missing
    if anomaly:
        outcome = "ANOMALOUS"
    elif unjudged:
        outcome = "WARN"
    return {
        "outcome": outcome,
        "checks": checks,
        "anomaly": anomaly,
        "unjudged": unjudged,
    }


def unfinished(inputs: Inputs, failures: Sequence[Failure]) -> list[Failure]:
    """Planned checkpoints and tasks without records, except those that failed:
    nothing judged them."""
    known = set()
    for failure in failures:
        known |= {(failure.checkpoint, failure.task), (failure.checkpoint, "")}
    for subject in (*inputs.checkpoints, *inputs.readers):
        known.add((subject.checkpoint, subject.task))
    reason = "the run is not finished: it has no record"
    return [
        Failure(checkpoint=checkpoint, task=task, stage="evaluate", reason=reason)
        for checkpoint in sorted(mapping_at(inputs.run, "planned"))
        for task in sorted(mapping_at(inputs.run, "planned", checkpoint))
        if known.isdisjoint([(checkpoint, task), (checkpoint, "")])
    ]


def _guessing(paired: Paired, checks: tuple[Check, ...]) -> str | None:
    """The anomaly of a base whose accuracy is at most that of guessing, over enough
    contexts: comparing its guesses shows nothing. A check of another kind that is
    beyond its tolerance still blocks."""
    shown = {check.criterion.shows for check in checks}
    beyond = {check.criterion.shows for check in checks if check.state == "beyond"}
    probes: tuple[tuple[Probe, Shows, str, float, str], ...] = (
        ("open", "saying", "says", 0.0, "its prompt and chat template"),
        ("choice", "recognising", "picks", paired.floor, _OPTIONS_FIRST),
    )
    for probe, shows, what, floor, first in probes:
        right, _, due = paired.answers(probe)
        judged = due & ~np.isnan(right)
        if shows not in shown or beyond - {shows}:
            continue
        if len(np.unique(paired.contexts[judged])) < FEWEST:
            continue
        accuracy = right[judged].mean()
        if accuracy <= floor:
            share = f"{100 * accuracy:.1f} % of {int(judged.sum()):,} answers"
            guessed = f", and guessing {what} {100 * floor:.1f} %" if floor else ""
            return f"the base {what} {share}{guessed}: inspect {first} first"
    return None


def _implausible(checks: tuple[Check, ...]) -> str | None:
    """A gain that no compression explains."""
    for check in checks:
        if check.pooled and check.contexts >= FEWEST and check.gain > IMPLAUSIBLE:
            shown = check.criterion.kind.shown
            return (
                f"{check.criterion.name.removesuffix('_drop')} accuracy gained {shown(-(check.value or 0.0))}, at least"
                f" {shown(check.gain)}: inspect first whether both have the same chat"
                " template, and whether the checkpoint was trained on these items"
            )
    return None


def _reported(
    inputs: Inputs, thresholds: Thresholds
) -> dict[tuple[str, str], dict[Name, Reported]]:
    """The tables' numbers of the judged criteria, by task and checkpoint. Each item
    counts as a context so far."""
    reports: dict[tuple[str, str], dict[Name, Reported]] = {}
    for criterion in CRITERIA:
        if not criterion.table or criterion.threshold(thresholds) is None:
            continue
        names = [f"{criterion.column}{end}" for end in ("", "_low", "_high")]
        for row in rows_with(TABLES[criterion.table].rows(inputs), criterion.where):
            if any(row[name] is None for name in (*names, "base")):
                continue
            value, low, high = (float(row[name]) for name in names)
            n = int(row["n"])
            report = Reported(value=value, low=low, high=high, n=n, contexts=n)
            of_checkpoint = reports.setdefault((row["task"], row["checkpoint"]), {})
            of_checkpoint[criterion.name, str(row["language"])] = report
    return reports
