"""All checks of a sweep, before Ray or an engine starts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evaluator.asking.questions import Question
from evaluator.checkpoints.info import CheckpointInfo, read_positions
from evaluator.checkpoints.tokenizer import load_tokenizer, tokenise_alike
from evaluator.core.errors import InputError
from evaluator.core.records import Item
from evaluator.engine.config import EngineConfig
from evaluator.store.failures import Failure
from launch.sweep.checks import (
    bytes_of,
    check_distinct,
    check_divided,
    check_dtypes,
    check_environments,
    check_quantisations,
    check_references,
    damaged,
    served_here,
)
from launch.sweep.compress import SOURCES
from launch.sweep.config import SweepConfig
from launch.sweep.estimate import keeps, positions_prepared, reference_bytes, vocabulary_of
from launch.sweep.inspection import Inspections
from launch.sweep.jobs import CheckpointJob, check_screening, expand
from launch.sweep.tasks import PreparedTask, TaskPreparation
from pruning.calibration.passages import text_digest
from pruning.output.manifest import read_manifest

_BYTES_PER_RECORD = 400  # a generous measured size of one record in a part, for the estimate of disk space
_RECORDS_PER_ITEM = 25
_NO_LIMIT = 2**20  # positions of a model whose configuration names none
_OTHER_BYTES = 32 * 2**20  # logs, tables, report


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A sweep that passed every check."""

    config: SweepConfig
    jobs: tuple[CheckpointJob, ...]
    dense: Mapping[str, CheckpointInfo]  # by job name: the checkpoints that exist before the run
    tasks: tuple[PreparedTask, ...]  # each once; two checkpoints may have different tasks of one name
    asked: Mapping[str, tuple[PreparedTask, ...]]  # by job name
    held_out: Mapping[str, str]  # digest of a context -> its item; no calibration passage may equal one
    engine: EngineConfig
    identity: Mapping[str, Any]
    disk_bytes: int
    other_tokenizer: frozenset[str]  # jobs that need a base's answers but have another tokenizer
    served: tuple[str, ...]  # notes on how the engine serves checkpoints, a line each
    unusable: tuple[Failure, ...]  # damaged checkpoints and everything made from them; not in `jobs`

    @cached_property
    def questions_by_task(self) -> Mapping[str, tuple[Question, ...]]:
        """Every question, by task name. It has options if any probe needs them."""
        items: dict[str, dict[tuple[str, str], Question]] = {}
        for task in self.tasks:
            known = items.setdefault(task.name, {})
            for question in task.questions:
                key = (question.item.language, question.item.item_id)
                if isinstance(question, Question) and (key not in known or known[key].options is None):
                    known[key] = question
        return {name: tuple(questions.values()) for name, questions in items.items() if questions}

    def short_languages(self) -> list[str]:
        """A sentence for each language that has fewer items than requested."""
        notes = []
        for name, questions in self.questions_by_task.items():
            wanted = next(task.config.items for task in self.tasks if task.name == name)
            one_shot = any("one_shot" in task.config.formats for task in self.tasks if task.name == name)
            for language, count in Counter(question.item.language for question in questions).items():
                if count < wanted:
                    lost = "; none is left as the example of one_shot" if one_shot else ""
                    notes.append(f"{name}: {language} has {count} items, not {wanted}; the run uses all{lost}")
        return notes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Models:
    """The checkpoints that exist before the run, by name."""

    infos: Mapping[str, CheckpointInfo]  # usable ones only, as in `tokenizers`
    tokenizers: Mapping[str, Any]
    positions: int  # the fewest of any checkpoint, refused ones included
    refused: Mapping[str, str]  # the reason by name


def prepare(config: SweepConfig, run_dir: Path) -> Prepared:
    """Read and check models, tasks and pruning settings. May fetch a model from the hub.

    Sets a damaged checkpoint aside, with everything made from it, if others remain.

    Raises InputError for the first mistake.
    """
    jobs = expand(config, run_dir)
    check_screening(jobs, config.screen)
    models = _inspected([job for job in jobs if not job.is_made], trust=config.engine.trust_remote_code)
    refused = {**models.refused, **damaged(job for job in jobs if job.is_made and job.model not in models.refused)}
    unusable = _unusable(jobs, refused)
    jobs = _without(jobs, unusable)
    preparation = TaskPreparation(models.positions, models.tokenizers)
    asked = {job.name: preparation.tasks_of(job) for job in jobs}
    tasks = tuple({task.key: task for prepared in asked.values() for task in prepared}.values())
    held_out = _contexts(tasks)
    for job in jobs:
        _check_pruning(job, held_out)
    check_distinct(jobs)
    check_divided(config.engine, jobs)
    check_dtypes(config.engine, jobs, models.infos)
    check_quantisations(jobs, held_out)
    check_references(config.engine, tasks)
    longest = max(task.longest_request for task in tasks)
    # These two may take minutes, so they come last. A cluster's engines run on other machines.
    served = served_here(config.engine, jobs, models.infos, here=not os.environ.get("RAY_ADDRESS"))
    check_environments(jobs)
    return Prepared(
        config=config,
        jobs=jobs,
        dense=models.infos,
        tasks=tasks,
        asked=asked,
        held_out=held_out,
        engine=config.engine.model_copy(update={"max_model_len": min(longest, models.positions)}),
        identity=_identity(config, jobs, models, asked),
        disk_bytes=_disk_bytes(jobs, models, asked, config.engine.dtype),
        served=served,
        unusable=unusable,
        other_tokenizer=frozenset(
            job.name
            for job in jobs
            # The run copies the base's tokenizer into each checkpoint that it makes.
            if not job.is_made
            and job.base is not None
            and any(task.after_base for task in job.tasks.values())
            and not tokenise_alike(models.tokenizers[job.name], models.tokenizers[job.base])
        ),
    )


def _inspected(dense: Sequence[CheckpointJob], *, trust: bool) -> _Models:
    infos: dict[str, CheckpointInfo] = {}
    tokenizers: dict[str, Any] = {}
    refused: dict[str, str] = {}
    positions = [_NO_LIMIT]
    with Inspections(dense, trust=trust) as inspections:
        for job in dense:
            try:
                info = inspections.result(job.name)
                tokenizer = load_tokenizer(job.path, trust_remote_code=trust)
            except InputError as error:
                refused[job.name] = str(error)
                with suppress(InputError, ValueError):  # its limit counts too: a repair must not change windows
                    positions.append(read_positions(job.path, unknown=_NO_LIMIT))
                continue
            infos[job.name], tokenizers[job.name] = info, tokenizer
            positions.append(read_positions(job.path, unknown=_NO_LIMIT))
    return _Models(infos=infos, tokenizers=tokenizers, positions=min(positions), refused=refused)


def _unusable(jobs: Sequence[CheckpointJob], refused: Mapping[str, str]) -> tuple[Failure, ...]:
    """The checkpoints that are set aside: the refused ones, and those made from them.

    Raises InputError if no checkpoint remains, or if a remaining one has a refused base.
    """
    found: list[Failure] = []
    for job in jobs:
        source = job.model if job.model in refused else job.after
        if job.name in refused:
            found.append(Failure(checkpoint=job.name, stage="load", reason=refused[job.name]))
        elif job.is_made and source in refused:
            reason = f"{source}, its source, cannot be used"
            found.append(Failure(checkpoint=job.name, stage="prune", reason=reason))
    left = _without(jobs, found)
    needed = {job.base for job in left}
    blocking = [name for name in refused if name in needed or not left]
    if blocking:
        raise InputError(refused[blocking[0]])
    return tuple(found)


def _without(jobs: Sequence[CheckpointJob], unusable: Sequence[Failure]) -> tuple[CheckpointJob, ...]:
    names = {each.checkpoint for each in unusable}
    return tuple(job for job in jobs if job.name not in names)


def _identity(
    config: SweepConfig,
    jobs: Sequence[CheckpointJob],
    models: _Models,
    asked: Mapping[str, Sequence[PreparedTask]],
) -> Mapping[str, Any]:
    """All that records depend on. A run directory accepts only sweeps with this identity's digest."""
    return {
        "models": {name: info.weights_digest for name, info in models.infos.items()},
        "bases": {job.name: job.base for job in jobs},
        "checkpoints": [
            {"name": job.name, "prune": job.prune.model_dump(mode="json", exclude={"source", "device"})}
            for job in jobs
            if job.prune is not None
        ]
        + [
            {"name": job.name, "quantise": job.quantise.model_dump(mode="json", exclude={"source"}), "after": job.after}
            for job in jobs
            if job.quantise is not None
        ],
        "tasks": {name: {task.name: task.key for task in tasks} for name, tasks in asked.items()},
        "task_settings": {
            name: {task.name: task.config.identifying() for task in tasks} for name, tasks in asked.items()
        },
        "engine": {
            **config.engine.model_dump(mode="json", include={"kind", "dtype", "scoring", "trust_remote_code"}),
            **({"deterministic": True} if config.engine.deterministic else {}),
        },
    }


def _disk_bytes(
    jobs: Sequence[CheckpointJob], models: _Models, asked: Mapping[str, Sequence[PreparedTask]], dtype: str
) -> int:
    """The approximate bytes of a new run directory."""
    checkpoints = sum(bytes_of(job, models.infos[job.model].bytes) for job in jobs if job.is_made)
    items = sum(len(task.questions) for tasks in asked.values() for task in tasks)
    references = sum(
        reference_bytes(task.config, positions_prepared(task), vocabulary_of(job.path), dtype)
        for job in jobs
        for task in asked[job.name]
        if task.config.references and not job.is_made and keeps(job, jobs)
    )
    return checkpoints + items * _RECORDS_PER_ITEM * _BYTES_PER_RECORD + _OTHER_BYTES + references


def _contexts(tasks: Iterable[PreparedTask]) -> dict[str, str]:
    """A name for every context of the tasks, by the context's digest. It names the first item."""
    first: dict[str, Item] = {}
    for task in tasks:
        for question in task.questions:
            if isinstance(question, Question):
                first.setdefault(question.item.context, question.item)
    digests = {text_digest(context): item for context, item in first.items()}
    return {
        digest: f"the context of item {item.item_id!r} of task {item.task!r}"
        for digest, item in digests.items()
        if digest
    }


def _check_pruning(job: CheckpointJob, held_out: Mapping[str, str]) -> None:
    """Raises InputError for an impossible pruning, or if its calibration text contains a context of the tasks."""
    try:
        if job.prune is not None:
            from pruning.run import check  # imports torch: earlier errors must not wait for it

            check(job.prune, job.path, sources=SOURCES, held_out=held_out)
            return
        if job.quantise is not None:
            return
        manifest = read_manifest(job.path)
        if manifest is not None and manifest.calibration is not None:
            manifest.calibration.check_disjoint(held_out)
    except InputError as error:
        raise InputError(f"{job.name}: {error}") from error
