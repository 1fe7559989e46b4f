"""The verdict on each compressed checkpoint of a run: the decision on its items, and
doubts about the measurement."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain

import numpy as np

from evaluator.core.controls import MARK
from evaluator.core.errors import Json, mapping_at, nearest
from evaluator.core.records import EngineStats, is_group
from evaluator.deciding.criteria import (
    ANSWERS,
    CRITERIA,
    EXTREMES,
    Criterion,
    Evidence,
    Paired,
    Probe,
    Reported,
    Shows,
    paired_of,
)
from evaluator.deciding.decision import (
    IMPLAUSIBLE,
    Check,
    Floors,
    Name,
    Verdict,
    decide,
)
from evaluator.deciding.policy import Policy, absent
from evaluator.deciding.thresholds import FEWEST, Thresholds, Tolerances
from evaluator.metrics.columns import Row, rows_with
from evaluator.metrics.inputs import Inputs, Subject
from evaluator.metrics.items import ALL
from evaluator.metrics.tables import TABLES
from evaluator.metrics.tables.length import unended
from evaluator.metrics.tables.recovery import SHARE, rows_of_seeds
from evaluator.store.run_json import Failure, Served, failures_of, rows_as

_OPTIONS_FIRST = "the task's options and its prompt"


def judge(inputs: Inputs, policy: Policy) -> list[Verdict]:
    """A verdict for each checkpoint and task of questions that has a base, in
    display order; then BLOCK for each one without records of a required task."""
    reported = _reported(inputs, policy)
    noise = TABLES["noise"].rows(inputs) if inputs.once_more else []
    digests = {each.key: each.weights_digest for each in inputs.checkpoints}
    failed = {each.checkpoint: each for each in reversed(not_judged(inputs))}
    verdicts = []
    for subject in inputs.compared:
        key, base = subject.key, (subject.task, subject.base or "")
        verdict = Verdict(
            task=subject.task, checkpoint=subject.checkpoint, base=base[1]
        )
        alone = inputs.alone(subject)
        if alone is None:
            planned = mapping_at(inputs.run, "planned", subject.checkpoint)
            due = planned.get(subject.task)
            paired = paired_of(inputs, subject, due if isinstance(due, int) else None)
            thresholds, different = policy.of(subject.task), inputs.incomparable
            drawn = bool(paired.items["sample"].any())
            if drawn and thresholds.max_sample_drop is not None:
                different = inputs.incomparable_drawn
            verdict = replace(
                verdict,
                planned=len(paired.items),
                incomparable=different.get(key),
                identical=_identical(inputs, subject),
                same_weights=subject.weights_digest == digests.get(base),
                differences=_stated(inputs, subject.checkpoint),
                remarks=tuple(_remarks(inputs, subject)),
                **decided(
                    paired,
                    thresholds,
                    reported.get(key, {}),
                    _floors(inputs, subject, noise),
                    policy.groups,
                ),
            )
            if drawn and key not in inputs.incomparable_drawn:
                verdict = _with_seeds(verdict, inputs, subject)
            verdict = settled(verdict, policy)
            if verdict.outcome == "PASS" and (lost := failed.get(subject.checkpoint)):
                what = ": ".join(filter(None, (lost.task, lost.reason)))
                verdict = replace(verdict, outcome="WARN", failed=what)
        elif subject.task in policy.required:
            verdict = replace(verdict, outcome="BLOCK", unmet=alone)
        verdicts.append(verdict)
    return [*verdicts, *_unmet(inputs, policy)]


def _with_seeds(verdict: Verdict, inputs: Inputs, subject: Subject) -> Verdict:
    """The verdict with the spread between seeds, judged or not."""
    spreads, sampled = {}, None
    for row in rows_with(rows_of_seeds(inputs, subject), {"probe": SHARE}):
        if "drop_lowest" in row:
            spreads[row["language"]] = row["drop_lowest"], row["drop_highest"]
            if row["language"] == ALL and not verdict.of("sample_drop"):
                sampled = row["drop"], *spreads[ALL]
    checks = []
    for check in verdict.checks:
        judged = check.criterion.name == "sample_drop"
        spread = spreads.get(check.language) if judged else None
        checks.append(replace(check, of_seeds=spread))
    return replace(verdict, checks=tuple(checks), sampled=sampled)


def settled(verdict: Verdict, policy: Policy) -> Verdict:
    """BLOCK if it is incomparable, and no BLOCK of an advisory task."""
    if verdict.incomparable:
        verdict = replace(verdict, outcome="BLOCK")
    if verdict.outcome == "BLOCK" and policy.is_advisory(verdict.task):
        verdict = replace(verdict, outcome="WARN", advisory=True)
    return verdict


def _identical(inputs: Inputs, subject: Subject) -> bool:
    """Whether every open answer equals the base's, and its log-probability too: after
    a compression, some always differ."""
    if subject.re_run:
        return False
    items = inputs.of(subject)
    answers = []
    for side in (items, items.of_base):
        answered = side.has("answer_said") & side.has("answer_logprob")
        columns = [side[name] for name in ("item", "answer_said", "answer_logprob")]
        answers.append(np.stack(columns)[:, answered])
    return answers[0].size > 0 and np.array_equal(answers[0], answers[1])


def _stated(inputs: Inputs, checkpoint: str) -> tuple[str, ...]:
    """How a checkpoint differs from its base beside weights, as run.json has it."""
    stated = mapping_at(inputs.run, "differences").get(checkpoint)
    return tuple(map(str, stated)) if isinstance(stated, list) else ()


def _remarks(inputs: Inputs, subject: Subject) -> Iterator[str]:
    """What the engines of a checkpoint and of its base counted over all calls that
    may make answers wrong: another model's, or half characters; then the lost answers
    that are cut or loop."""
    due = mapping_at(inputs.run, "planned", subject.checkpoint).get(subject.task)
    asked = int(inputs.of(subject)["asked"].sum())
    if isinstance(due, int) and asked < due:
        yield f"unfinished: {asked:,} of {due:,} items"
    for name in (subject.checkpoint, subject.base):
        rows = rows_as(inputs.run, "engine_stats", Served)
        rows = [row for row in rows if row.checkpoint == name]
        counted = reduce(EngineStats.plus, rows, EngineStats())
        for remark in counted.remarks.values():
            yield f"{name}: {remark}"
    if words := unended(inputs, subject):
        yield words


def _unmet(inputs: Inputs, policy: Policy) -> Iterator[Verdict]:
    """A verdict for each compressed checkpoint without records of a required task, or
    of any task with a required group."""
    bases = dict(mapping_at(inputs.run, "identity", "bases"))
    known = {each.key for each in (*inputs.checkpoints, *inputs.readers)}
    bases |= {each.checkpoint: each.base for each in inputs.checkpoints}
    groups = {*filter(is_group, chain(*inputs.cuts.values()))}
    tasks = groups.union(task for task, _ in known)
    for task in policy.required:
        hint = "" if task in tasks else nearest(task, sorted(tasks))
        for checkpoint, base in bases.items():
            if base and task not in groups and (task, checkpoint) not in known:
                yield Verdict(
                    task=task,
                    checkpoint=checkpoint,
                    base=base,
                    outcome="BLOCK",
                    unmet=f"it has no records of {task!r}{hint}",
                )


def not_in_run(inputs: Inputs, policy: Policy) -> list[str]:
    """The tasks with tolerances that the run has neither planned nor recorded, and the
    groups without records."""
    planned = mapping_at(inputs.run, "planned").values()
    return absent(policy, {*chain(inputs.cuts, *inputs.cuts.values(), *planned)})


def decided(
    paired: Paired,
    thresholds: Thresholds,
    reports: Mapping[Name, Reported],
    floors: Floors | None = None,
    groups: Mapping[str, Tolerances] | None = None,
) -> Json:
    """The fields of a verdict that follow from its items."""
    contexts = len(np.unique(paired.items["context"]))
    how: Json = {"reports": {}, "floors": floors, "groups": groups}
    for name, report in reports.items():
        how["reports"][name] = replace(report, contexts=min(report.contexts, contexts))
    decision = decide(paired, thresholds, **how)
    outcome, checks = decision.outcome, decision.checks
    anomaly = _guessing(paired, checks)
    if outcome != "BLOCK":
        anomaly = anomaly or _implausible(checks)
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


def _floors(inputs: Inputs, subject: Subject, noise: Sequence[Row]) -> Floors:
    """What the controls of a checkpoint and of its base show, by criterion. `noise`:
    the rows of the table."""
    floors: dict[str, list[Evidence]] = {}
    for checkpoint in (subject.base or "", subject.checkpoint):
        for control in inputs.controls_of.get((subject.task, checkpoint), ()):
            if inputs.alone(control):
                continue
            items = paired_of(inputs, control).items
            name = {"task": subject.task, "checkpoint": control.checkpoint}
            for criterion in CRITERIA:
                evidence: Evidence | None = None
                if criterion.measure is not None:
                    evidence = criterion.measure(items, "left out").evidence
                elif along := criterion.where.get("along"):
                    for row in rows_with(noise, {"along": along, **name}):
                        evidence = _report_of(row, criterion)
                if evidence is not None:
                    floors.setdefault(criterion.name, []).append(evidence)
    return floors


def not_judged(inputs: Inputs) -> list[Failure]:
    """The checkpoints and tasks that failed, and the planned ones without records; no
    control, which is no result. What failed may have records, which are judged."""
    subjects = (*inputs.checkpoints, *inputs.readers)
    known = {(each.checkpoint, each.task) for each in subjects}
    judged = known | {(each.checkpoint, "") for each in subjects}
    failures = []
    for each in failures_of(inputs.run):
        if each.lost and MARK not in each.checkpoint:
            key = each.checkpoint, each.task
            but = "all but the records that it has: " if key in judged else ""
            failures.append(replace(each, reason=but + each.reason))
            known |= {key, (each.checkpoint, "")}
    reason = "the run is not finished: it has no record"
    for checkpoint, tasks in mapping_at(inputs.run, "planned").items():
        for task in tasks if MARK not in checkpoint else ():
            if known.isdisjoint([(checkpoint, task), (checkpoint, "")]):
                failures.append(
                    Failure(
                        checkpoint=checkpoint,
                        task=task,
                        stage="evaluate",
                        reason=reason,
                    )
                )
    return failures


def _guessing(paired: Paired, checks: tuple[Check, ...]) -> str | None:
    """The anomaly of a base whose accuracy is at most that of guessing, over enough
    contexts: comparing its guesses shows nothing. A check of another kind that is
    beyond its tolerance still blocks."""
    shown = {check.criterion.shows for check in checks}
    beyond = {check.criterion.shows for check in checks if check.state == "beyond"}
    probes: tuple[tuple[Probe, Shows, str, float, str], ...] = (
        ("open", "saying", "says", 0.0, "its prompt, chat template and max_new_tokens"),
        ("choice", "recognising", "picks", paired.floor, _OPTIONS_FIRST),
    )
    for probe, shows, what, floor, first in probes:
        right = paired.items[f"base_{ANSWERS[probe]}"]
        judged = paired.items[probe] & ~np.isnan(right)
        if shows not in shown or beyond - {shows}:
            continue
        if len(np.unique(paired.items["context"][judged])) < FEWEST:
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
            gain = shown(-(check.value or 0.0))
            return (
                f"{check.criterion.heading} accuracy gained {gain}, at least {shown(check.gain)}:"
                " inspect first whether both have the same chat template, and whether"
                " the checkpoint was trained on these items"
            )
    return None


def _reported(
    inputs: Inputs, policy: Policy
) -> dict[tuple[str, str], dict[Name, Reported]]:
    """The tables' numbers of the judged criteria, by task and checkpoint. Each item
    counts as a context so far."""
    everywhere: list[Tolerances] = [policy.default, *map(policy.of, policy.tasks)]
    everywhere += policy.groups.values()
    reports: dict[tuple[str, str], dict[Name, Reported]] = {}
    for criterion in CRITERIA:
        bounds = {criterion.threshold(thresholds) for thresholds in everywhere}
        if not criterion.table or bounds == {None}:
            continue
        for row in rows_with(TABLES[criterion.table].rows(inputs), criterion.where):
            report = _report_of(row, criterion)
            if report is None or row["base"] is None:
                continue
            of_checkpoint = reports.setdefault((row["task"], row["checkpoint"]), {})
            of_checkpoint[criterion.name, str(row["language"])] = report
    return reports


def _report_of(row: Row, criterion: Criterion) -> Reported | None:
    """A criterion's number in a row of a table; None without an interval."""
    names = [f"{criterion.column}{end}" for end in ("", "_low", "_high")]
    if any(row[name] is None for name in names):
        return None
    value, low, high = (float(row[name]) for name in names)
    n = int(row["n"])
    return Reported(value=value, low=low, high=high, n=n, contexts=n)
