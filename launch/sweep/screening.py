"""Which checkpoints a screened sweep may stop early: on each task, those of one base. The settings alone say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evaluator.core.errors import InputError
from evaluator.probes.config import EvalConfig
from evaluator.screen import Screen
from launch.sweep.jobs import CheckpointJob

Group = tuple[str, str]  # base, task


def screened_groups(jobs: Sequence[CheckpointJob]) -> dict[Group, tuple[str, ...]]:
    """The checkpoints that the gate may decide early, by base and task: those that are no base themselves."""
    bases = {job.name: job for job in jobs if any(other.base == job.name for other in jobs)}
    found: dict[Group, tuple[str, ...]] = {}
    for job in jobs:
        base = bases.get(job.base or "")
        if base is None or job.name in bases:
            continue
        for name, task in job.tasks.items():
            if name in base.tasks and _is_judged(task) and _is_judged(base.tasks[name]):
                found[base.name, name] = (*found.get((base.name, name), ()), job.name)
    return found


def check_screening(jobs: Sequence[CheckpointJob], rule: Screen | None) -> None:
    """Raises InputError where a screened sweep has nothing to screen."""
    if rule is not None and not screened_groups(jobs):
        raise InputError(
            "screen: there is nothing to screen: no compressed checkpoint and its base share a task with open answers "
            "(probe greedy, format open)"
        )


def most_saved(groups: Mapping[Group, Sequence[str]], items: Mapping[str, int], rule: Screen) -> int:
    """How many items a screened sweep saves at most. `items`: of each task."""
    return sum(len(names) * max(0, items[task] - rule.items) for (_, task), names in groups.items())


def _is_judged(task: EvalConfig) -> bool:
    """The gate passes nothing whose open answers were not measured."""
    return not task.is_text and "greedy" in task.probes and "open" in task.formats
