"""Which checkpoints of a sweep are screened: on each task, those of one base. Decided from the settings alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evaluator.errors import InputError
from evaluator.probes.config import EvalConfig
from evaluator.screen import Measure, Screen
from launch.sweep.jobs import CheckpointJob

Group = tuple[str, str]  # base, task


def screened_groups(jobs: Sequence[CheckpointJob], rule: Screen) -> dict[Group, tuple[str, ...]]:
    """The checkpoints that are screened, by base and task: those that are no base, of a task that has a measure.

    Against the best, one alone is the best.
    """
    bases = {job.name: job for job in jobs if any(other.base == job.name for other in jobs)}
    found: dict[Group, tuple[str, ...]] = {}
    for job in jobs:
        base = bases.get(job.base or "")
        if base is None or job.name in bases:
            continue
        for name, task in job.tasks.items():
            if name in base.tasks and _is_measured(task, rule) and _is_measured(base.tasks[name], rule):
                found[base.name, name] = (*found.get((base.name, name), ()), job.name)
    least = 2 if rule.against == "best" else 1
    return {group: names for group, names in found.items() if len(names) >= least}


def check_screening(jobs: Sequence[CheckpointJob], rule: Screen | None) -> None:
    """Raises InputError where nothing of a sweep can be screened."""
    if rule is None or screened_groups(jobs, rule):
        return
    least = "two compressed checkpoints" if rule.against == "best" else "a compressed checkpoint"
    measure = rule.measure or "open or choice"
    raise InputError(
        f"screen: against: {rule.against!r}: there is nothing to screen: no task with {measure} answers has {least} of "
        "one base"
    )


def most_saved(groups: Mapping[Group, Sequence[str]], items: Mapping[str, int], rule: Screen) -> int:
    """How many items can be saved at most. `items`: of each task."""
    kept = 1 if rule.against == "best" else 0
    return sum((len(names) - kept) * max(0, items[task] - rule.items) for (_, task), names in groups.items())


def _is_measured(task: EvalConfig, rule: Screen) -> bool:
    measures: list[Measure] = []
    if not task.is_text:
        measures += ["open"] if "greedy" in task.probes and "open" in task.formats else []
        measures += ["choice"] if "choice" in task.probes else []
    return bool(measures) if rule.measure is None else rule.measure in measures
