"""The verdict on two logs of other programs: one for each task and measure.

A log feeds few criteria: accuracy lost and flips, of open answers or of options. A
measure between 0 and 1 that is no yes or no (F1) is judged by the difference of its
means. Others (perplexity) have no tolerance in points, and are not judged."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from evaluator.core.errors import InputError, Json, unknown
from evaluator.deciding.comparison import (
    KEY,
    Compared,
    PairedTask,
    paired_tasks,
    stated_differences,
)
from evaluator.deciding.criteria import CRITERIA, Paired
from evaluator.deciding.decision import Verdict
from evaluator.deciding.logged import LoggedSide
from evaluator.deciding.pairing import OF_B
from evaluator.deciding.policy import Policy
from evaluator.deciding.verdict_text import document
from evaluator.deciding.verdicts import decided, settled
from evaluator.logs.base import below
from evaluator.metrics.columns import plain_rows
from evaluator.metrics.intervals import Floats
from evaluator.metrics.measures import as_floats
from evaluator.store.run_json import Failure

_SIDES = ("_a", "_b")
_ROUNDED = 1e-9  # beyond 0 and 1
_NOTHING = "No measure of these logs could be judged."


@dataclass(frozen=True, kw_only=True)
class LogVerdicts:
    """`models`: the base's name and the candidate's. `not_judged`: tasks and measures.
    `absent`: criteria with a tolerance for which these logs have no numbers."""

    models: Mapping[str, str]
    verdicts: Sequence[Verdict]
    not_judged: Sequence[Failure]
    absent: Sequence[str]


def judge_logs(base: LoggedSide, candidate: LoggedSide, policy: Policy) -> LogVerdicts:
    """Raises InputError if a side has several models, or no task in common."""
    ours, theirs = base.names("task"), candidate.names("task")
    if not {*ours} & {*theirs} and max(len(ours), len(theirs)) > 1:
        names = f"{', '.join(ours)}; {', '.join(theirs)}"
        raise InputError(f"{base.name} and {candidate.name}: no common task ({names})")
    name_of_base, model = _model(base), _model(candidate)
    groups = dict(base.groups)
    for group, members in candidate.groups.items():
        groups[group] = {*groups.get(group, ()), *members}
    policy = _by_task(policy, groups)
    _need_metrics(policy, base, candidate)
    pair = {name_of_base: model}
    verdicts: list[Verdict] = []
    failures: list[Failure] = []
    identical = True
    pairs = list(paired_tasks(base, candidate, pair))
    for task in pairs:
        decisive = stated_differences(
            base.decisive[task.checkpoint, task.task],
            candidate.decisive[task.checkpoint_b, task.task_b],
        )
        items = _items(task)
        identical &= _identical(items)
        for measure, rows in items.groupby("measure", sort=False):
            better = _directions(base, candidate, task, str(measure), policy)
            verdict = _verdict(task, str(measure), rows, decisive, policy, better)
            if isinstance(verdict, Failure):
                failures.append(verdict)
            else:
                verdicts.append(settled(verdict, policy))
        for measure in sorted({*task.left["measure"]} - {*task.right["measure"]}):
            reason = f"{measure}: the candidate's log does not have it"
            failures.append(_failure(task.checkpoint_b, task.task, reason))
    verdicts = [replace(each, identical=identical) for each in verdicts]
    for name in sorted({*ours} - {task.task for task in pairs}):
        reason = f"the candidate's log has no such task: {candidate.name}"
        failures.append(_failure(model, name, reason))
    for name in sorted({*theirs} - {task.task_b for task in pairs}):
        reason = f"the base's log has no such task: {base.name}"
        failures.append(_failure(model, name, reason))
    for name, reason in base.unscored.items():
        if name not in ours:
            failures.append(_failure(model, name, reason))
    for name in sorted({*policy.required} - {verdict.task for verdict in verdicts}):
        verdicts.append(_unmet(name, pair, failures))
    return LogVerdicts(
        models=pair,
        verdicts=verdicts,
        not_judged=failures,
        absent=_absent(verdicts, policy),
    )


def document_of(found: LogVerdicts, compared: Compared, policy: Policy) -> Json:
    """What gate.json holds for a run, with the numbers of the comparison."""
    told = document(found.verdicts, policy, found.not_judged)
    if not found.verdicts:
        told |= dict.fromkeys(("summary", "words"), _NOTHING)
    return {
        **told,
        "not_in_these_logs": list(found.absent),
        "differences": compared.stated,
        "notes": list(compared.notes),
        "measures": plain_rows(compared.frame),
    }


def _by_task(policy: Policy, groups: Mapping[str, Collection[str]]) -> Policy:
    """A policy for groups of tasks, as one for their tasks: the innermost group that it
    names counts. Raises InputError where two of them differ, neither in the other."""
    held = {group: below(groups, group) for group in groups}
    tasks, required = dict(policy.tasks), list[str]()
    for task in sorted(set().union(*held.values()) - policy.tasks.keys()):
        named = {group for group in policy.tasks if task in held.get(group, ())}
        inner = sorted(group for group in named if not held[group] & named)
        for group in inner:
            if policy.tasks[group] != policy.tasks[inner[0]]:
                raise InputError(
                    f"policy: task {task!r} is in group {inner[0]!r} and in {group!r},"
                    " with other tolerances: name the task itself"
                )
            tasks[task] = policy.tasks[group]
    for name in policy.required:
        held_tasks = {each for each in held.get(name, ()) if not groups.get(each)}
        required += sorted(held_tasks) or [name]
    return policy.model_copy(update={"tasks": tasks, "required": tuple(required)})


def _directions(
    base: LoggedSide,
    candidate: LoggedSide,
    task: PairedTask,
    measure: str,
    policy: Policy,
) -> set[bool]:
    """Whether more is better, as either log and the policy state it."""
    names = {measure, measure.partition(",")[0]}
    stated = set[bool]()
    for name in names:
        for side, own in ((base, task.task), (candidate, task.task_b)):
            if (own, name) in side.more_is_better:
                stated.add(side.more_is_better[own, name])
    if names & {*policy.lower_is_better}:
        stated.add(False)
    if names & {*policy.higher_is_better}:
        stated.add(True)
    return stated


def _need_metrics(policy: Policy, *sides: LoggedSide) -> None:
    """Raises InputError for a direction of a metric that no log has."""
    known = set[str]()
    for side in sides:
        for measure in side.names("measure"):
            known |= {measure, measure.partition(",")[0]}
    for name in (*policy.lower_is_better, *policy.higher_is_better):
        if name not in known:
            raise InputError(f"policy: {unknown('metric', name, known)}")


def _unmet(
    task: str, models: Mapping[str, str], failures: Sequence[Failure]
) -> Verdict:
    """Of a required task that no measure judges."""
    why = (f"not judged: {each.reason}" for each in failures if each.task == task)
    ((base, model),) = models.items()
    return Verdict(
        task=task,
        checkpoint=model,
        base=base,
        outcome="BLOCK",
        unmet=next(why, "it is not in both logs"),
    )


def _model(side: LoggedSide) -> str:
    models = side.names("checkpoint")
    if len(models) > 1:
        raise InputError(f"{side.name}: logs of {', '.join(models)}: name those of one")
    return models[0]


def _items(task: PairedTask) -> pd.DataFrame:
    """A row for each measure and item of either side. What changed counts once, with
    the base's answer alone."""
    known = set(task.left["item_id"])
    changed = task.right["item_id"].map(
        lambda name: name.endswith(OF_B) and name.removesuffix(OF_B) in known
    )
    right = task.right[~changed.astype(bool)]
    items = task.left.merge(right, on=KEY, how="outer", suffixes=_SIDES)
    common = set(task.left["measure"]) & set(right["measure"])
    return items[items["measure"].isin(common)].reset_index(drop=True)


def _identical(items: pd.DataFrame) -> bool:
    same = items["response_a"] == items["response_b"]
    return bool((same & (items["value_a"] == items["value_b"])).all())


def _verdict(
    task: PairedTask,
    measure: str,
    rows: pd.DataFrame,
    decisive: Mapping[str, tuple[str, str]],
    policy: Policy,
    better: Collection[bool],
) -> Verdict | Failure:
    """Of one measure: `rows` has its items. A Failure if no tolerance judges it."""
    base, own = (_finite(rows[f"value{side}"]) for side in _SIDES)
    known = np.append(base, own)
    known = known[~np.isnan(known)]
    if np.isnan(base + own).all():
        return _failure(task.checkpoint_b, task.task, f"{measure}: no item in common")
    if known.min() < -_ROUNDED or known.max() > 1 + _ROUNDED:
        span = f"{known.min():g} to {known.max():g}"
        reason = f"{measure} is {span}: tolerances judge values from 0 to 1"
        return _failure(task.checkpoint_b, task.task, reason)
    base, own, known = (_clipped(values) for values in (base, own, known))
    is_yes_or_no = bool(np.isin(known, (0.0, 1.0)).all())
    # 1 may be right or an error: a fall is judged as a loss, a rise is not judged
    is_rise = bool(np.nanmean(own - base) > 0)
    if len(better) > 1 or (not better and (is_rise or not is_yes_or_no)):
        why = "contradict each other about" if better else "do not state"
        reason = (
            f"{measure}: the logs {why} whether more of it is better: state it in the"
            " policy's lower_is_better or higher_is_better"
        )
        return _failure(task.checkpoint_b, task.task, reason)
    if False in better:
        base, own = 1 - base, 1 - own
    thresholds = policy.of(task.task)
    if not is_yes_or_no:
        thresholds = thresholds.model_copy(update={"max_flips": None})
    verdict = Verdict(
        task=task.task,
        checkpoint=task.checkpoint_b,
        base=task.checkpoint,
        measure=measure,
        planned=len(rows),
        incomparable=_incomparable(decisive),
        **decided(_paired(rows, base, own), thresholds, {}),
    )
    measured = tuple(each for each in verdict.checks if each.state != "unmeasured")
    verdict = replace(verdict, checks=measured)
    both = rows[rows["prompt_a"].notna() & rows["prompt_b"].notna()]
    other = int((both["prompt_a"] != both["prompt_b"]).sum())
    if other and verdict.outcome != "BLOCK":
        anomaly = (
            f"prompts differ on {other:,} of {len(both):,} items: inspect first whether"
            " both have the same chat template, examples and sampling"
        )
        verdict = replace(verdict, outcome="ANOMALOUS", anomaly=anomaly)
    return verdict


def _incomparable(decisive: Mapping[str, tuple[str, str]]) -> str | None:
    parts = [f"{name} {ours} | {theirs}" for name, (ours, theirs) in decisive.items()]
    return f"settings differ: {'; '.join(parts)}" if parts else None


def _finite(values: pd.Series) -> Floats:
    floats = as_floats(values)
    return np.where(np.isfinite(floats), floats, np.nan)


def _clipped(values: Floats) -> Floats:
    """Without what rounding put beyond 0 and 1."""
    for bound in (0.0, 1.0):
        values = np.where(np.abs(values - bound) <= _ROUNDED, bound, values)
    return values


def _paired(rows: pd.DataFrame, base: Floats, own: Floats) -> Paired:
    """Answers to options are picked, and all others are said."""
    options = as_floats(rows["options_a"].fillna(rows["options_b"]))
    picks = bool((options > 0).any())
    clusters = rows["cluster_a"].fillna(rows["cluster_b"])
    return Paired.of_answers(
        rows["language"].to_numpy(object),
        pd.factorize(clusters)[0].astype(np.intp),
        {"choice" if picks else "open": (base, own, np.ones(len(rows), bool))},
        floor=float((1 / options[options > 1]).mean()) if (options > 1).any() else 0.0,
        only_options=picks,
    )


def _failure(checkpoint: str, task: str, reason: str) -> Failure:
    return Failure(checkpoint=checkpoint, task=task, stage="evaluate", reason=reason)


def _absent(verdicts: Sequence[Verdict], policy: Policy) -> list[str]:
    names = set()
    for verdict in verdicts:
        for check in verdict.checks:
            if check.value is not None:
                names.add(check.criterion.name)
    judged = [each for each in CRITERIA if each.threshold(policy.default)]
    return [each.text for each in judged if each.name not in names]
