"""Everything that can be wrong with a sweep is found here, before Ray or an engine starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.checkpoint import CheckpointInfo, inspect_checkpoint, read_config
from evaluator.config import EngineConfig, EvalConfig
from evaluator.errors import InputError
from evaluator.prompts import load_tokenizer
from evaluator.questions import Question, questions_of
from evaluator.tasks import load_task
from launch.calibration import SOURCES
from launch.sweep import CheckpointJob, SweepConfig, digest, expand
from pruning.errors import PruneInputError
from pruning.run import check

_OPTION_TOKENS = 1024  # room for the longest gold answer of a byte-level vocabulary after a full prompt
_BYTES_PER_RECORD = 400  # a generous measured size of one record in a part, for the estimate of disk space
_RECORDS_PER_ITEM = 25
_OTHER_BYTES = 32 * 2**20  # logs, tables, report


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTask:
    name: str  # the directory of its records
    key: str  # identifies questions + config
    config: EvalConfig
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A sweep that is known to be sound."""

    config: SweepConfig
    jobs: tuple[CheckpointJob, ...]
    dense: Mapping[str, CheckpointInfo]  # by job name: every checkpoint that is there already
    tasks: tuple[PreparedTask, ...]
    engine: EngineConfig
    identity: Mapping[str, Any]
    disk_bytes: int


def prepare(config: SweepConfig, run_dir: Path) -> Prepared:
    """Read and check models, tasks and pruning settings. Raises InputError for the first thing that is wrong."""
    jobs = expand(config, run_dir)
    trust = config.engine.trust_remote_code
    dense = {
        job.name: inspect_checkpoint(job.path, job.name, trust_remote_code=trust) for job in jobs if job.prune is None
    }
    for job in jobs:
        if job.prune is not None:
            try:
                check(job.prune, job.path, sources=SOURCES)
            except PruneInputError as error:
                raise InputError(f"{job.name}: {error}") from error
        else:
            load_tokenizer(job.path, trust_remote_code=trust)
            if not trust:
                _known_model_type(job.path)
    limit = min(_positions(job.path) for job in jobs if job.prune is None)
    tasks = _tasks(config, limit)
    pruned_bytes = sum(dense[job.base].bytes for job in jobs if job.prune is not None and job.base is not None)
    items = sum(len(task.questions) for task in tasks)
    return Prepared(
        config=config,
        jobs=tuple(jobs),
        dense=dense,
        tasks=tasks,
        engine=config.engine.model_copy(update={"max_model_len": _model_length(tasks, limit)}),
        identity={
            "models": {name: info.weights_digest for name, info in dense.items()},
            "base": config.base,
            "checkpoints": [
                {"name": job.name, "prune": job.prune.model_dump(mode="json", exclude={"source", "device"})}
                for job in jobs
                if job.prune is not None
            ],
            "tasks": {task.name: task.key for task in tasks},
            "task_settings": {task.name: task.config.model_dump(mode="json", exclude={"task"}) for task in tasks},
            "engine": config.engine.model_dump(mode="json", include={"kind", "dtype", "trust_remote_code"}),
        },
        disk_bytes=pruned_bytes + len(jobs) * items * _RECORDS_PER_ITEM * _BYTES_PER_RECORD + _OTHER_BYTES,
    )


def _tasks(config: SweepConfig, limit: int) -> tuple[PreparedTask, ...]:
    prepared = []
    for given in config.tasks:
        changes: dict[str, Any] = {} if "seed" in given.model_fields_set else {"seed": config.seed}
        for cap in ("prompt_tokens", "one_shot_prompt_tokens"):
            changes[cap] = min(getattr(given, cap), limit - given.max_new_tokens)
            if changes[cap] < 1:
                raise InputError(
                    f"max_new_tokens: {given.max_new_tokens}: leaves no room for a prompt in {limit} positions"
                )
        task = given.model_copy(update=changes)
        data = load_task(task.task, task.languages)
        prepared.append(
            PreparedTask(
                name=data.name,
                key=digest([data.digest, task.model_dump(mode="json", exclude={"task"})]),
                config=task,
                questions=tuple(questions_of(data, task)),
            )
        )
    names = [task.name for task in prepared]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"tasks: {name!r} is asked for twice; records of one task lie in one directory")
    return tuple(prepared)


def _model_length(tasks: tuple[PreparedTask, ...], limit: int) -> int:
    longest = max(
        max(task.config.prompt_tokens, task.config.one_shot_prompt_tokens if "one_shot" in task.config.formats else 0)
        + max(task.config.max_new_tokens, _OPTION_TOKENS)
        for task in tasks
    )
    return min(longest, limit)


def _positions(checkpoint: Path) -> int:
    positions = read_config(checkpoint).get("max_position_embeddings") or 2**20
    if not isinstance(positions, int) or positions < 1:
        raise InputError(f"{checkpoint / 'config.json'}: field 'max_position_embeddings' is {positions!r}, not a count")
    return positions


def _known_model_type(checkpoint: Path) -> None:
    """Raises InputError for an architecture that transformers, from which engines take it, has never heard of."""
    from transformers import CONFIG_MAPPING

    model_type = read_config(checkpoint)["model_type"]
    if model_type not in CONFIG_MAPPING:
        raise InputError(f"{checkpoint / 'config.json'}: field 'model_type' is {model_type!r}, an unknown architecture")
