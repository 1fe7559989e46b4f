"""All checks of a sweep, before Ray or an engine starts."""

import importlib
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.pool import AsyncResult, ThreadPool
from pathlib import Path
from typing import Any

from evaluator.asking.questions import Question
from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.info import CheckpointInfo, inspect_checkpoint
from evaluator.checkpoints.tokenizer import eos_ids_of, load_tokenizer, tokenise_alike
from evaluator.core.errors import InputError, one_line
from evaluator.core.grading import contains
from evaluator.core.records import Item
from evaluator.core.text import is_known
from evaluator.engine.config import EngineConfig
from evaluator.store.run_json import Failure
from launch.sweep import preflight_checks as checks
from launch.sweep.config import SweepConfig
from launch.sweep.jobs import CheckpointJob, check_screening, expand
from launch.sweep.models import vocabulary_of
from launch.sweep.preflight_checks import keeps_references, reference_bytes
from launch.sweep.prepared_tasks import PreparedTask, TaskPreparation, today
from pruning.calibration import text_digest

# A generous measured size of one record in a part, for the estimate of disk space; more
# for each token of an answer.
Asked = Mapping[str, Sequence[PreparedTask]]  # by job name
_BYTES_PER_RECORD, _BYTES_PER_TOKEN = 400, 8
_OTHER_RECORDS = 15  # of an item, beside its samples
_AT_ONCE = 8  # inspections; some 40 MB each
_NO_LIMIT = 2**20  # positions of a model whose configuration names none
_OTHER_BYTES = 32 * 2**20  # logs, tables, report


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A sweep that passed every check."""

    config: SweepConfig
    jobs: tuple[CheckpointJob, ...]
    # by job name: the checkpoints that exist before the run
    dense: Mapping[str, CheckpointInfo]
    # each once; two checkpoints may have different tasks of one name
    tasks: tuple[PreparedTask, ...]
    asked: Mapping[str, tuple[PreparedTask, ...]]  # by job name
    # digest of a context -> its item; no calibration passage may equal one
    held_out: Mapping[str, str]
    engine: EngineConfig
    identity: Mapping[str, Any]
    disk_bytes: int
    # jobs that need a base's answers but have another tokenizer
    other_tokenizer: frozenset[str]
    served: tuple[str, ...]  # notes on how the engine serves checkpoints, a line each
    # damaged checkpoints and everything made from them; not in `jobs`
    unusable: tuple[Failure, ...]

    @property
    def largest(self) -> int:
        """The bytes of the largest checkpoint's weights in an engine; a made one is
        not larger than its source."""
        wide = self.engine.dtype == "float32"
        return max(
            info.bytes * (2 if wide and info.dtype != "float32" else 1)
            for info in self.dense.values()
        )

    @cached_property
    def questions_by_task(self) -> Mapping[str, tuple[Question, ...]]:
        """Every question, by task name. It has options if any probe needs them."""
        items: dict[str, dict[tuple[str, str], Question]] = {}
        for task in self.tasks:
            known = items.setdefault(task.name, {})
            for question in task.questions:
                key = (question.item.language, question.item.item_id)
                if isinstance(question, Question) and (
                    key not in known or known[key].options is None
                ):
                    known[key] = question
        return {
            name: tuple(questions.values())
            for name, questions in items.items()
            if questions
        }

    def notes(self) -> Iterator[str]:
        """A sentence for each task with options that contain a gold answer, for each
        language that is not in the table of languages, and for each that has fewer
        items than requested."""
        for name, questions in self.questions_by_task.items():
            configs = [task.config for task in self.tasks if task.name == name]
            wanted = configs[0].items
            languages = Counter(question.item.language for question in questions)
            for language, count in languages.items():
                if count < wanted:
                    note = (
                        f"{name}: {language} has {count} items, not {wanted}; the run"
                        " uses all"
                    )
                    if any("one_shot" in config.formats for config in configs):
                        note += "; none is left as the example of one_shot"
                    yield note
                if not is_known(language):
                    yield (
                        f"{name}: {language!r} is no known language: graded as one with"
                        " spaces between words"
                    )
            if loose := list(filter(None, map(_loose_option, questions))):
                yield (
                    f"{name}: {len(loose)} items have a wrong option that contains a"
                    f" gold answer: {loose[0]}"
                )


def _loose_option(question: Question) -> str:
    """An item and its own wrong option that would be graded as right; empty for
    none."""
    item = question.item
    for option in question.option_texts if item.options else ():
        if option not in item.answers and contains(option, item.answers, item.language):
            return f"{item.item_id!r} has {one_line(option, 60)!r}"
    return ""


class Inspections(AbstractContextManager["Inspections"]):
    """Inspects several checkpoints at a time in the background, in order. The end of
    its block starts no more.

    One thread digests a few GB a second, too few for a hundred checkpoints. Daemons: a
    stopping process does not wait.
    """

    def __init__(self, jobs: Sequence[CheckpointJob] = (), *, trust: bool) -> None:
        self._trust = trust
        # a ThreadPoolExecutor's are no daemons
        self._pool = ThreadPool(min(_AT_ONCE, len(os.sched_getaffinity(0))))
        self._found: dict[str, AsyncResult[CheckpointInfo]] = {}  # by name
        self._begun: list[CheckpointJob] = []  # without those that `ended` returned
        self.begin(*jobs)

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()

    def begin(self, *jobs: CheckpointJob) -> None:
        """Inspect these after the earlier ones."""
        if any(job.path.is_dir() for job in jobs):
            # transformers imports lazily, which several threads must not do at once.
            importlib.import_module("transformers").CONFIG_MAPPING  # noqa: B018
        for job in jobs:
            self._found[job.name] = self._pool.apply_async(self._inspect, (job,))
        self._begun += jobs

    def _inspect(self, job: CheckpointJob) -> CheckpointInfo:
        try:
            return inspect_checkpoint(job.path, job.name, trust_remote_code=self._trust)
        except (
            SystemExit,
            KeyboardInterrupt,
        ) as error:  # of its own code: a pool would never end it
            raise InputError(
                f"checkpoint {job.path}: its code ended with {error!r}"
            ) from error

    def result(self, name: str) -> CheckpointInfo:
        """Wait for a checkpoint's result. Raises InputError as `inspect_checkpoint`
        does."""
        return self._found[name].get()

    def ended(self) -> list[CheckpointJob]:
        """The checkpoints that ended since the last call."""
        ended = [job for job in self._begun if self._found[job.name].ready()]
        self._begun = [job for job in self._begun if job not in ended]
        return ended


def prepare(config: SweepConfig, run_dir: Path) -> Prepared:
    """Read and check all inputs, set damaged checkpoints aside. May fetch a model.
    Raises InputError."""
    # a cluster has other machines
    trust, here = config.engine.trust_remote_code, not os.environ.get("RAY_ADDRESS")
    jobs = expand(config, run_dir)
    check_screening(jobs, config.screen)
    existing = [job for job in jobs if not job.is_made and not job.is_variant]
    refused = checks.check_files(existing)
    _unusable(jobs, refused)
    whole = [job for job in jobs if not job.is_variant and job.name not in refused]
    engine, dtype_notes = checks.engine_of(config.engine, whole, here=here)
    config = config.model_copy(update={"engine": engine})
    dense, tokenizers, damage, eos_notes = _read_checkpoints(existing, trust=trust)
    positions = _fewest_positions(existing, dense)
    refused |= damage
    refused |= checks.damaged(
        [job for job in jobs if job.is_made and job.model not in refused]
    )
    unusable = _unusable(jobs, refused)
    lost = {failure.checkpoint for failure in unusable}
    jobs = tuple(job for job in jobs if job.name not in lost)
    config, asked, task_notes = _asked_of(config, jobs, positions, tokenizers, run_dir)
    by_key = {task.key: task for tasks in asked.values() for task in tasks}
    tasks = tuple(by_key.values())
    held_out = _contexts(tasks)
    checks.check_jobs(engine, jobs, dense, tasks, held_out)
    longest = min(positions, max(task.longest_request for task in tasks))
    # longer requests are refused one by one
    if "max_model_len" in engine.model_fields_set:
        longest = min(longest, engine.max_model_len)
    # These two may take minutes, so they come last.
    served_notes = checks.served_here(engine, jobs, dense, here=here)
    checks.check_environments(jobs)
    remarks = checks.remarks(engine, dense.values(), longest)
    return Prepared(
        config=config,
        jobs=jobs,
        dense=dense,
        tasks=tasks,
        asked=asked,
        held_out=held_out,
        engine=engine.model_copy(update={"max_model_len": longest}),
        identity=_identity(config, jobs, dense, asked),
        disk_bytes=_disk_bytes(jobs, dense, asked, engine.dtype),
        served=(*dtype_notes, *eos_notes, *task_notes, *served_notes, *remarks),
        unusable=unusable,
        other_tokenizer=_with_other_tokenizer(jobs, tokenizers),
    )


def _asked_of(
    config: SweepConfig,
    jobs: Sequence[CheckpointJob],
    positions: int,
    tokenizers: Mapping[str, Any],
    run_dir: Path,
) -> tuple[SweepConfig, dict[str, tuple[PreparedTask, ...]], list[str]]:
    """The sweep with the date of its prompts, if one reads it; the tasks by job name;
    and notes. Raises InputError."""
    # pandas: earlier errors must not wait for it
    from evaluator.store.reading import day_of

    day = config.date or day_of(run_dir) or today()
    preparation = TaskPreparation(positions, tokenizers, day)
    asked = {job.name: preparation.tasks_of(job) for job in jobs}
    notes = []
    if any(task.config.date for tasks in asked.values() for task in tasks):
        config = config.model_copy(update={"date": day})
        notes.append(f"date: the chat template takes {day} for today")
    elif config.date is not None:
        notes.append(f"date: {day}: no prompt of this run reads it")
    return config, asked, [*notes, *preparation.notes]


def _with_other_tokenizer(
    jobs: Sequence[CheckpointJob], tokenizers: Mapping[str, Any]
) -> frozenset[str]:
    """The jobs that need a base's answers but have another tokenizer."""
    names = set()
    for job in jobs:
        # The run copies the base's tokenizer into each checkpoint that it makes.
        if job.base in (None, job.model):
            continue
        needs_base = any(task.after_base for task in job.tasks.values())
        if needs_base and not tokenise_alike(
            tokenizers[job.model], tokenizers[job.base]
        ):
            names.add(job.name)
    return frozenset(names)


def _read_checkpoints(
    existing: Sequence[CheckpointJob], *, trust: bool
) -> tuple[dict[str, CheckpointInfo], dict[str, Any], dict[str, str], list[str]]:
    """The checkpoints that are sound, the tokenizers, why the others are refused,
    each by name; and notes."""
    sound: dict[str, CheckpointInfo] = {}
    tokenizers: dict[str, Any] = {}
    refused: dict[str, str] = {}
    notes: list[str] = []
    with Inspections(existing, trust=trust) as inspections:
        for job in existing:
            try:
                info = inspections.result(job.name)
                tokenizers[job.name] = load_tokenizer(job.path, trust_remote_code=trust)
                notes += _stray_eos(info, tokenizers[job.name])
                sound[job.name] = info
            except InputError as error:
                refused[job.name] = str(error)
    return sound, tokenizers, refused, notes


def _fewest_positions(existing: Sequence[CheckpointJob], sound: Collection[str]) -> int:
    """The fewest positions of any checkpoint. A refused one counts too: its repair
    must not change windows."""
    fewest = _NO_LIMIT
    for job in existing:
        try:
            positions = Checkpoint(job.path).positions(unknown=_NO_LIMIT)
        except (InputError, ValueError):
            if job.name in sound:
                raise
        else:
            fewest = min(fewest, positions)
    return fewest


def _stray_eos(info: CheckpointInfo, tokenizer: Any) -> list[str]:
    """A note on the first id that is to end an answer and is no token's. Raises
    InputError for what is no id."""
    known = range(vocabulary_of(info.path) or _NO_LIMIT)
    for number in eos_ids_of(tokenizer):
        if number not in known:
            return [
                f"{info.name}: eos_token_id: {number}, which ends no answer, is no id of"
                " the vocabulary"
            ]
    return []


def _unusable(
    jobs: Sequence[CheckpointJob], refused: Mapping[str, str]
) -> tuple[Failure, ...]:
    """The refused checkpoints and those made from them. Raises InputError if none
    remains or one lacks its base."""
    failures: dict[str, Failure] = {}
    for job in jobs:
        lost = [name for name in (job.model, job.after) if name in failures]
        if job.name in refused:
            failures[job.name] = Failure(
                checkpoint=job.name,
                stage="load",
                reason=refused[job.name],
                mendable=True,
            )
        elif lost and (job.is_made or job.is_variant):
            failures[job.name] = Failure(
                checkpoint=job.name,
                stage="prune",
                reason=f"{lost[0]}, its source, cannot be used",
                mendable=True,
            )
    left = [job for job in jobs if job.name not in failures]
    needed = {job.base for job in left}
    for name, reason in refused.items():
        if name in needed or not left:
            raise InputError(reason)
    return tuple(failures.values())


def _identity(
    config: SweepConfig,
    jobs: Sequence[CheckpointJob],
    dense: Mapping[str, CheckpointInfo],
    asked: Asked,
) -> Mapping[str, Any]:
    """All that records depend on. A run directory accepts only sweeps with this
    identity's digest."""
    pruned, quantised = [], []
    for job in jobs:
        if job.prune is not None:
            settings = job.prune.model_dump(mode="json", exclude={"source", "device"})
            pruned.append({"name": job.name, "prune": settings})
        if job.quantise is not None:
            settings = job.quantise.model_dump(mode="json", exclude={"source"})
            quantised.append(
                {"name": job.name, "quantise": settings, "after": job.after}
            )
    keys, settings_by_job = {}, {}
    for name, tasks in asked.items():
        keys[name] = {task.name: task.key for task in tasks}
        settings_by_job[name] = {task.name: task.config.identifying() for task in tasks}
    known = {"kind", "dtype", "scoring", "trust_remote_code"}
    engine = config.engine.model_dump(mode="json", include=known)
    if config.engine.deterministic:
        engine["deterministic"] = True
    identity: dict[str, Any] = {
        "models": {name: " ".join(info.engine_keys) for name, info in dense.items()},
        "bases": {job.name: job.base for job in jobs},
        "checkpoints": [*pruned, *quantised],
        "tasks": keys,
        "task_settings": settings_by_job,
        "engine": engine,
    }
    caches = {job.name: job.kv_cache for job in jobs if job.is_variant}
    return {**identity, "kv_cache": caches} if caches else identity


def _disk_bytes(
    jobs: Sequence[CheckpointJob],
    dense: Mapping[str, CheckpointInfo],
    asked: Asked,
    dtype: str,
) -> int:
    """The approximate bytes of a new run directory."""
    checkpoints = sum(
        checks.bytes_of(job, dense[job.model].bytes) for job in jobs if job.is_made
    )
    records = sum(_bytes_of_records(task) for tasks in asked.values() for task in tasks)
    references = 0
    for job in jobs:
        if job.is_made or not keeps_references(job, jobs):
            continue
        vocabulary = vocabulary_of(job.path)
        for task in asked[job.name]:
            if task.config.references:
                positions = _compared_positions(task)
                references += reference_bytes(task.config, positions, vocabulary, dtype)
    return checkpoints + records + _OTHER_BYTES + references


def _compared_positions(task: PreparedTask) -> int:
    """As many as there are if every answer runs to its token cap."""
    if task.windows:
        return sum(len(window.token_ids) for window in task.windows)
    probes = task.config.item_probes
    return len(task.questions) * sum(
        probe.cost(task.config).compared for probe in probes
    )


def _bytes_of_records(task: PreparedTask) -> int:
    config = task.config
    records = _OTHER_RECORDS + config.samples * len(config.seeds)
    each = _BYTES_PER_RECORD + _BYTES_PER_TOKEN * config.max_new_tokens
    return len(task.questions) * records * each


def _contexts(tasks: Iterable[PreparedTask]) -> dict[str, str]:
    """A name for every context of the tasks, by the context's digest. It names the
    first item."""
    first: dict[str, Item] = {}
    for task in tasks:
        for question in task.questions:
            if isinstance(question, Question):
                first.setdefault(question.item.context, question.item)
    named = {}
    for context, item in first.items():
        if digest := text_digest(context):
            named[digest] = (
                f"the context of item {item.item_id!r} of task {item.task!r}"
            )
    return named
