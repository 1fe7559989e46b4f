"""Everything that can be wrong with a sweep is found here, before Ray or an engine starts."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.asking.prompts import CAPPED_FORMATS, Prompter
from evaluator.asking.questions import Posed, Question, Window, questions_of
from evaluator.checkpoints.info import CheckpointInfo, inspect_checkpoint, read_config
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.engine.config import EngineConfig
from evaluator.errors import InputError
from evaluator.probes.config import EvalConfig
from evaluator.probes.perplexity import windows_of
from evaluator.records import Item
from evaluator.tasks import TaskData, load_task, spelled
from launch.sweep.calibration import SOURCES
from launch.sweep.config import SweepConfig, digest
from launch.sweep.jobs import CheckpointJob, expand
from pruning.calibration.disjoint import text_digest
from pruning.output.manifest import read_manifest

_OPTION_TOKENS = 1024  # room for the longest gold answer of a byte-level vocabulary after a full prompt
_BYTES_PER_RECORD = 400  # a generous measured size of one record in a part, for the estimate of disk space
_RECORDS_PER_ITEM = 25
_OTHER_BYTES = 32 * 2**20  # logs, tables, report


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTask:
    """What is asked of one or several checkpoints under one name."""

    name: str  # the directory of its records
    key: str  # identifies questions + config
    config: EvalConfig
    questions: tuple[Posed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A sweep that is known to be sound."""

    config: SweepConfig
    jobs: tuple[CheckpointJob, ...]
    dense: Mapping[str, CheckpointInfo]  # by job name: every checkpoint that is there already
    tasks: tuple[PreparedTask, ...]  # each once; several may share a name where checkpoints are asked differently
    asked: Mapping[str, tuple[PreparedTask, ...]]  # by job name
    held_out: Mapping[str, str]  # what no calibration passage may be: digest of a context -> whose context it is
    engine: EngineConfig
    identity: Mapping[str, Any]
    disk_bytes: int

    def items(self) -> Mapping[str, tuple[Question, ...]]:
        """By task name, every question that any checkpoint is asked, with its options where any probe needs them."""
        items: dict[str, dict[tuple[str, str], Question]] = {}
        for task in self.tasks:
            known = items.setdefault(task.name, {})
            for question in task.questions:
                key = (question.item.language, question.item.item_id)
                if isinstance(question, Question) and (key not in known or known[key].options is None):
                    known[key] = question
        return {name: tuple(questions.values()) for name, questions in items.items() if questions}

    def short_languages(self) -> list[str]:
        """In words, the languages that have fewer items than were asked for."""
        notes = []
        for name, questions in self.items().items():
            wanted = next(task.config.items for task in self.tasks if task.name == name)
            one_shot = any("one_shot" in task.config.formats for task in self.tasks if task.name == name)
            for language, count in Counter(question.item.language for question in questions).items():
                if count < wanted:
                    lost = "; none is left to be the example of one_shot" if one_shot else ""
                    notes.append(f"{name}: {language} has {count} items, not {wanted}: all of them are asked{lost}")
        return notes


def prepare(config: SweepConfig, run_dir: Path) -> Prepared:
    """Read and check models, tasks and pruning settings; a model may be fetched from the hub.

    Raises InputError for the first thing that is wrong.
    """
    jobs = expand(config, run_dir)
    trust = config.engine.trust_remote_code
    dense = {
        job.name: inspect_checkpoint(job.path, job.name, trust_remote_code=trust) for job in jobs if job.prune is None
    }
    tokenizers: dict[str, Any] = {}
    for job in jobs:
        if job.prune is None:
            tokenizers[job.name] = load_tokenizer(job.path, trust_remote_code=trust)
            if not trust:
                _known_model_type(job.path)
    limit = min(_positions(job.path) for job in jobs if job.prune is None)
    preparation = _Preparation(limit, tokenizers)
    asked = {job.name: tuple(preparation.task(job, name) for name in job.tasks) for job in jobs}
    tasks = tuple({task.key: task for prepared in asked.values() for task in prepared}.values())
    held_out = _contexts(tasks)
    for job in jobs:
        _check_pruning(job, held_out)
    pruned_bytes = sum(dense[job.model].bytes for job in jobs if job.prune is not None)
    items = sum(len(task.questions) for prepared in asked.values() for task in prepared)
    return Prepared(
        config=config,
        jobs=jobs,
        dense=dense,
        tasks=tasks,
        asked=asked,
        held_out=held_out,
        engine=config.engine.model_copy(update={"max_model_len": _model_length(tasks, limit)}),
        identity={
            "models": {name: info.weights_digest for name, info in dense.items()},
            "bases": {job.name: job.base for job in jobs},
            "checkpoints": [
                {"name": job.name, "prune": job.prune.model_dump(mode="json", exclude={"source", "device"})}
                for job in jobs
                if job.prune is not None
            ],
            "tasks": {name: {task.name: task.key for task in prepared} for name, prepared in asked.items()},
            "task_settings": {
                name: {task.name: task.config.model_dump(mode="json", exclude={"task"}) for task in prepared}
                for name, prepared in asked.items()
            },
            "engine": config.engine.model_dump(mode="json", include={"kind", "dtype", "scoring", "trust_remote_code"}),
        },
        disk_bytes=pruned_bytes + items * _RECORDS_PER_ITEM * _BYTES_PER_RECORD + _OTHER_BYTES,
    )


def _contexts(tasks: Iterable[PreparedTask]) -> dict[str, str]:
    """The first item of every context that the tasks ask about, by the context's digest."""
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
    """Raises InputError for a pruning that could not be done, or that sees or has seen what it is asked about."""
    from pruning.run import check  # torch: what is wrong with models and tasks is reported without it

    try:
        if job.prune is not None:
            check(job.prune, job.path, sources=SOURCES, held_out=held_out)
            return
        manifest = read_manifest(job.path)
        if manifest is not None and manifest.calibration is not None:
            manifest.calibration.check_disjoint(held_out)
    except InputError as error:
        raise InputError(f"{job.name}: {error}") from error


class _Preparation:
    """Makes the tasks of checkpoints; data is read once, and equal tasks are one."""

    def __init__(self, limit: int, tokenizers: Mapping[str, Any]) -> None:
        self._limit = limit  # positions that every model has
        self._tokenizers = tokenizers  # by the name of the dense model
        self._data: dict[tuple[object, ...], TaskData] = {}
        self._tasks: dict[tuple[str, str | None], PreparedTask] = {}

    def task(self, job: CheckpointJob, name: str) -> PreparedTask:
        """A task of a checkpoint. Windows of a text depend on the tokenizer, which is the dense model's."""
        config = self._fitting(job.tasks[name])
        if config.chat:
            self._check_chat(job.model)
        data = self._load(config, name)
        if config.languages is not None:  # "sw" and "swahili" are one task: questions have the spelling of the data
            languages = spelled(name, config.languages, data.every_pool)
            config = config.model_copy(update={"languages": languages})
        key = (name + config.model_dump_json(), job.model if config.is_text else None)
        if key not in self._tasks:
            make = self._windows if config.is_text else self._questions
            self._tasks[key] = make(data, config, job.model)
        return self._tasks[key]

    def _check_chat(self, model: str) -> None:
        """Raises InputError if the model's chat template is missing or does not leave a turn as it is."""
        prompter = Prompter(self._tokenizers[model], chat=True, prompt_tokens=4096, one_shot_prompt_tokens=4096)
        prompter.build(
            Item(task="", language="", item_id="", context="x", question="x", answers=("x",), cluster=""), "open"
        )

    def _load(self, config: EvalConfig, name: str) -> TaskData:
        key = (config.task, config.languages, name)
        if key not in self._data:
            self._data[key] = load_task(config.task, config.languages, name)
        return self._data[key]

    def _fitting(self, given: EvalConfig) -> EvalConfig:
        """The settings with the lengths that every model has positions for."""
        changes: dict[str, Any] = {"window": min(given.window, self._limit)}
        for cap in ("prompt_tokens", "one_shot_prompt_tokens"):
            changes[cap] = min(getattr(given, cap), self._limit - given.max_new_tokens)
            if changes[cap] < 1:
                raise InputError(
                    f"max_new_tokens: {given.max_new_tokens}: leaves no room for a prompt in {self._limit} positions"
                )
        return given.model_copy(update=changes)

    def _questions(self, data: TaskData, config: EvalConfig, model: str) -> PreparedTask:
        return PreparedTask(
            name=data.name,
            key=digest([data.name, data.digest, config.model_dump(mode="json", exclude={"task"})]),
            config=config,
            questions=tuple(questions_of(data, config.wanted)),
        )

    def _windows(self, data: TaskData, config: EvalConfig, model: str) -> PreparedTask:
        assert data.text is not None
        windows = windows_of(data.name, data.text, self._tokenizers[model], config.window, self._limit)
        ids = hashlib.sha256()
        for window in windows:
            ids.update(window.token_ids.tobytes() + b"|")
        settings = config.model_dump(mode="json", exclude={"task"})
        return PreparedTask(
            name=data.name,
            key=digest([data.name, data.digest, settings, ids.hexdigest()]),
            config=config,
            questions=tuple(windows),
        )


def _model_length(tasks: tuple[PreparedTask, ...], limit: int) -> int:
    return min(max(_longest(task) for task in tasks), limit)


def _longest(task: PreparedTask) -> int:
    """The most tokens of a request, prompt and continuation together."""
    config = task.config
    if config.is_text:
        return max(len(window.token_ids) for window in task.questions if isinstance(window, Window))
    capped = any(form in CAPPED_FORMATS for form in config.formats)
    prompt = max(config.prompt_tokens, config.one_shot_prompt_tokens if capped else 0)
    return prompt + max(config.max_new_tokens, _OPTION_TOKENS)


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
