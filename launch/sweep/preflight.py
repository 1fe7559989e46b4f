"""All checks of a sweep, before Ray or an engine starts."""

import importlib
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from multiprocessing.pool import AsyncResult, ThreadPool
from pathlib import Path
from typing import Any

from evaluator.asking.questions import NO_GOLD, Question
from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.info import CheckpointInfo, inspect_checkpoint
from evaluator.checkpoints.served import Endpoint
from evaluator.checkpoints.stated import generation_notes
from evaluator.checkpoints.tokenizer import load_tokenizer, tokenise_alike
from evaluator.core.errors import Document, InputError, counted, one_line
from evaluator.core.grading import contains
from evaluator.core.records import Item
from evaluator.core.text import UNKNOWN, is_known
from evaluator.deciding.policy import absent, as_policy, need_known, small
from evaluator.engine.config import EngineConfig
from evaluator.store.run_json import Failure, day_of
from evaluator.tasks.loading import is_here
from launch.provenance import count_gpus
from launch.sweep import preflight_checks as checks
from launch.sweep.config import SweepConfig
from launch.sweep.controls import with_controls
from launch.sweep.jobs import CheckpointJob, Jobs, expand, models_of
from launch.sweep.models import check_gguf, is_served, local_directory
from launch.sweep.preflight_checks import (
    Check,
    Findings,
    Infos,
    keeps_references,
    reference_bytes,
)
from launch.sweep.prepared_tasks import (
    Asked,
    PreparedTask,
    ReadTasks,
    TaskPreparation,
    Tokenizers,
    lengths,
    today,
)
from pruning.calibration import text_digest

# A generous measured size of one record in a part, for the estimate of disk space; more
# for each token of an answer.
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
    dense: Infos
    # each once; two checkpoints may have different tasks of one name
    tasks: tuple[PreparedTask, ...]
    asked: Mapping[str, tuple[PreparedTask, ...]]  # by job name
    # digest of a context -> its item; no calibration passage may equal one
    held_out: Mapping[str, str]
    engine: EngineConfig
    identity: Document
    disk_bytes: int
    # jobs that need a base's answers but have another tokenizer
    other_tokenizer: frozenset[str]
    findings: tuple[str, ...]  # notes of all checks, a line each
    # damaged checkpoints and everything made from them; not in `jobs`
    unusable: tuple[Failure, ...]
    # by job name: how existing checkpoints differ from their bases beside weights
    differences: Mapping[str, Sequence[str]]

    def without(self, names: Collection[str]) -> "Prepared":
        """The same without these checkpoints and their controls; bases of others
        stay."""
        bases = {job.base for job in self.jobs if not job.change}
        left_out = {*names} - bases
        for job in self.jobs:
            if job.change and job.base in left_out:
                left_out.add(job.name)
        jobs = tuple(job for job in self.jobs if job.name not in left_out)
        return replace(
            self,
            jobs=jobs,
            asked={job.name: self.asked[job.name] for job in jobs},
            unusable=tuple(
                each for each in self.unusable if each.checkpoint not in left_out
            ),
        )

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

    def notes(self) -> Iterator[tuple[str, bool]]:
        """A sentence, and whether it is a warning, for each task with too few items for
        the gate's PASS, for what its data lack, for each language that is not in the
        table of languages, and for each that has fewer items than requested; for a price
        without a GPU; then the findings of the checks."""
        from evaluator.deciding.reach import unreachable  # pandas

        policy = as_policy(self.config.gate)
        if told := small(policy):
            yield f"gate: {told}", True
        priced = self.config.resources.price_per_gpu_hour is not None
        if priced and "RAY_ADDRESS" not in os.environ and count_gpus() == 0:
            yield "resources.price_per_gpu_hour: no GPU here, so no cost", True
        for name, questions in self.questions_by_task.items():
            configs = [task.config for task in self.tasks if task.name == name]
            wanted = configs[0].items
            languages = Counter(question.item.language for question in questions)
            for language, count in languages.items():
                if count < wanted:
                    note = (
                        f"{name}: {language} has {counted(count, 'item')}, not"
                        f" {wanted}; the run uses all"
                    )
                    lacks = any("one_shot" in config.formats for config in configs)
                    if lacks:
                        note += "; none is left as the example of one_shot"
                    yield note, lacks
                if not is_known(language):
                    yield f"{name}: {language!r} {UNKNOWN}", True
            compared = any(
                job.base and not job.change and name in job.tasks for job in self.jobs
            )
            asked = [each for each in questions if compared and not each.excluded]
            items, probes = [each.item for each in asked], configs[0].probes
            several = "sample" in probes and len(configs[0].run_seeds) > 1
            drawn = [several and each.deep for each in asked]
            if reason := unreachable(
                items, policy.of(name), probes, drawn, policy.groups
            ):
                yield f"{name}: {reason} (see `resurface gate --plan`)", True
            yield from _data_notes(name, questions)
        for note in self.findings:
            yield note, False


def _data_notes(name: str, questions: Sequence[Question]) -> Iterator[tuple[str, bool]]:
    """As `Prepared.notes`, of what a task's data lack, and of their options."""
    if lacking := sum(each.excluded for each in questions):
        told = f"{lacking:,} of {len(questions):,} items have {NO_GOLD}"
        yield f"{name}: {told}: they are not asked", False
    columns = Counter[str]()
    for item in (each.item for each in questions):
        columns.update({cut.partition("=")[0] for cut in item.groups or ()})
    for column, count in columns.items():
        if lack := len(questions) - count:
            told = f"{lack:,} of {len(questions):,} items have no {column}"
            yield f"{name}: {told}: they are in no group of it", False
    spellings: dict[str, str] = {}
    for cut in sorted({cut for each in questions for cut in each.item.groups or ()}):
        first = spellings.setdefault(" ".join(cut.casefold().split()), cut)
        if first != cut:
            yield f"{name}: {first!r} and {cut!r} are two groups", True
    if loose := list(filter(None, map(_loose_option, questions))):
        wrong = (
            f"{name}: a gold answer is part of a wrong option of"
            f" {counted(len(loose), 'item')}: {loose[0]}"
        )
        yield wrong, True
    tied = [
        each.item.item_id
        for each in questions
        if (own := each.options) and own.texts.count(own.texts[own.gold]) > 1
    ]
    if tied:
        tie = (
            f"{name}: a wrong option equals the gold one in {counted(len(tied), 'item')},"
            f" as {tied[0]!r}: picked counts a tie as wrong, table suite as right"
        )
        yield tie, True


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

    def __init__(self, jobs: Jobs = (), *, trust: bool) -> None:
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
            info = inspect_checkpoint(job.path, job.name, trust_remote_code=self._trust)
            if job.is_made:
                checks.check_unchanged(job)
            return info
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


def jobs_here(
    config: SweepConfig, run_dir: Path, refused: dict[str, str]
) -> tuple[list[CheckpointJob], list[str]]:
    """The jobs that can be checked without the network, each with the tasks that can,
    and the models and tasks that cannot; adds to `refused` why a GGUF file cannot be
    used. Raises InputError as `expand` does."""
    models, jobs = models_of(config), []
    absent: dict[str, None] = {}
    for job in expand(config, run_dir):
        away = []
        for name in {job.model, job.base or job.model}:
            value = models[name]
            if isinstance(value, Endpoint):
                away.append(name)
            elif is_served(value):
                try:
                    check_gguf(value)
                except InputError as error:
                    refused[name] = str(error)
                away.append(value)
            elif local_directory(value) is None:
                away.append(value)
        tasks = {name: task for name, task in job.tasks.items() if is_here(task.task)}
        if not away:
            jobs.append(replace(job, tasks=tasks))
        absent |= dict.fromkeys([*away, *(job.tasks.keys() - tasks)])
    return jobs, list(absent)


def prepare(
    config: SweepConfig,
    run_dir: Path,
    dry: Jobs = (),
    *,
    strict: bool = False,
    step: checks.Step = lambda text, aloud: None,
) -> Prepared:
    """Read and check all inputs. Sets checkpoints aside that cannot be used; if
    `strict`, they refuse the sweep. May fetch a model. `dry`: check these jobs only,
    and start nothing. Raises InputError for what concerns the sweep or a base, or if
    nothing is left."""
    # a cluster has other machines
    here = not os.environ.get("RAY_ADDRESS")
    found = Findings(step, strict)
    every: Jobs = tuple(dry) or expand(config, run_dir, found.fetched)
    every = with_controls(every, config, on_gpus=not here or count_gpus() != 0)
    found.check("files", _existing(found.left(every)), checks.check_files)
    read, policy = ReadTasks(), as_policy(config.gate)
    # before all that takes longer
    whole = [read.check(job) for job in found.left(every)]
    if all(whole):
        need_known(policy, read.groups, "gate")
    plain = [job for job in found.left(every) if not job.is_variant]
    serve = partial(checks.check_engine, config.engine, here=here)
    quantised = found.check("quantisation", plain, serve)
    engine = checks.one_dtype(config.engine, quantised, found)
    config = config.model_copy(update={"engine": engine})
    dense, tokenizers = _read_checkpoints(found, every, config)
    made = [job for job in found.left(every) if job.is_made]
    found.check("files", made, checks.check_made)
    positions = _fewest_positions(found, every)
    config, asked = _asked_of(
        found, every, config, run_dir, tokenizers, positions, read
    )
    held_out = _contexts(_tasks_of(asked))
    need_known(policy, read.groups, "gate")
    if lacking := absent(policy, read.groups.union(*(job.tasks for job in every))):
        found.note([f"gate: not in this run: {', '.join(lacking)}"])
    checks.check_references(engine, _tasks_of(asked))
    for job in found.left(every):
        if job.change:
            checks.check_change(engine, job.change, asked[job.name], here=here)
    independent = independent_checks(
        engine, dense, tokenizers, asked, held_out, here=here, dry=bool(dry)
    )
    for what, check in independent.items():
        found.note(*found.check(what, found.left(every), check).values())
    jobs, unusable = found.sound(every)
    dense = {job.name: dense[job.name] for job in _existing(jobs)}
    asked = {job.name: asked[job.name] for job in jobs}
    tasks = _tasks_of(asked)
    requests = [task.longest_request for task in tasks]
    longest = min(positions, max(requests, default=positions))
    # longer requests are refused one by one
    if "max_model_len" in engine.model_fields_set:
        longest = min(longest, engine.max_model_len)
    differences = checks.differences_of(jobs, dense, tokenizers)
    found.note(
        checks.remarks(engine, dense.values(), longest),
        checks.calibration_notes(jobs),
        checks.difference_notes(differences),
    )
    return Prepared(
        config=config,
        jobs=jobs,
        dense=dense,
        tasks=tasks,
        asked=asked,
        held_out=held_out,
        engine=engine.model_copy(update={"max_model_len": longest}),
        identity=_identity(config, jobs, asked),
        disk_bytes=_disk_bytes(jobs, dense, asked, engine.dtype),
        findings=found.notes,
        unusable=unusable,
        differences=differences,
        other_tokenizer=_with_other_tokenizer(jobs, tokenizers),
    )


def independent_checks(
    engine: EngineConfig,
    dense: Infos,
    tokenizers: Tokenizers,
    asked: Asked,
    held_out: Mapping[str, str],
    *,
    here: bool,
    dry: bool,
) -> dict[str, Check]:
    """Checks of one checkpoint each, in words. Their order decides which of its faults
    is told; the last ones, not for `dry`, may take minutes."""
    quick: dict[str, Check] = {
        "tokens": partial(checks.check_tokens, tokenizers, asked),
        "compression": partial(checks.check_compression, dense, held_out),
        "sparsity": partial(checks.check_distinct, {}),
        "heads": partial(checks.check_divided, engine),
        "dtype": partial(checks.check_dtype, engine, dense),
        "control": partial(checks.check_control, engine, here=here),
    }
    slow: dict[str, Check] = {
        "load": partial(checks.check_architecture, engine, dense, set(), here=here),
        "tokenizer": partial(checks.other_tokens, dense, asked),
        "environment": partial(checks.check_environment, {}),
    }
    return quick if dry else quick | slow


def _existing(jobs: Jobs) -> list[CheckpointJob]:
    return [job for job in jobs if not job.is_made and not job.is_variant]


def _tasks_of(asked: Asked) -> tuple[PreparedTask, ...]:
    """Each once."""
    by_key = {task.key: task for tasks in asked.values() for task in tasks}
    return tuple(by_key.values())


def _asked_of(
    found: Findings,
    every: Jobs,
    config: SweepConfig,
    run_dir: Path,
    tokenizers: Tokenizers,
    positions: int,
    read: ReadTasks,
) -> tuple[SweepConfig, dict[str, tuple[PreparedTask, ...]]]:
    """The sweep with the date of its prompts, if one reads it; the tasks by job name.
    Raises InputError."""
    day = config.date or day_of(run_dir) or today()
    preparation = TaskPreparation(positions, tokenizers, day, read)
    found.check("chat template", found.left(every), preparation.check_templates)
    asked = {job.name: preparation.tasks_of(job) for job in found.left(every)}
    if any(task.config.date for tasks in asked.values() for task in tasks):
        config = config.model_copy(update={"date": day})
        found.note([f"date: the chat template takes {day} for today"])
    elif config.date is not None:
        found.note([f"date: {day}: no prompt of this run reads it"])
    found.note(read.notes, preparation.notes)
    return config, asked


def _with_other_tokenizer(jobs: Jobs, tokenizers: Tokenizers) -> frozenset[str]:
    """The jobs that need a base's answers but have another tokenizer."""
    # The run copies the base's tokenizer into each checkpoint that it makes, and a
    # control is compared with its own checkpoint.
    return frozenset(
        job.name
        for job in jobs
        if job.base not in (None, job.model)
        and not job.change
        and any(task.after_base for task in job.tasks.values())
        and not tokenise_alike(tokenizers[job.model], tokenizers[job.base])
    )


def _read_checkpoints(
    found: Findings, every: Jobs, config: SweepConfig
) -> tuple[dict[str, CheckpointInfo], dict[str, Any]]:
    """The checkpoints that exist and are sound, and their tokenizers, by name."""
    existing, tokenizers = _existing(found.left(every)), dict[str, Any]()
    trust = config.engine.trust_remote_code
    with Inspections(existing, trust=trust) as inspections:

        def read(job: CheckpointJob) -> CheckpointInfo:
            info = inspections.result(job.name)
            tokenizer = load_tokenizer(job.path, trust_remote_code=trust)
            Checkpoint(job.path).positions(unknown=_NO_LIMIT)
            notes = generation_notes(job.path, tokenizer)
            found.note(f"{job.name}: {note}" for note in notes)
            tokenizers[job.name] = tokenizer
            return info

        return found.check("weights", existing, read, aloud=True), tokenizers


def _fewest_positions(found: Findings, every: Jobs) -> int:
    """The fewest positions of any checkpoint with room for its tasks. A damaged one
    counts too: its repair must not change windows."""
    known = {}
    for job in _existing(every):
        with suppress(InputError, ValueError):
            known[job.name] = Checkpoint(job.path).positions(unknown=_NO_LIMIT)
    jobs = found.left(every)
    roomy = found.check(
        "room",
        jobs,
        lambda job: [lengths(task, known[job.model]) for task in job.tasks.values()],
    )
    short = {job.name for job in jobs} - roomy.keys()
    found.left(every)
    return min(count for name, count in known.items() if name not in short)


def _identity(config: SweepConfig, jobs: Jobs, asked: Asked) -> Document:
    """What run.json tells readers of the sweep's cells, but controls."""
    bases = {job.name: job.base for job in jobs if not job.change}
    keys, settings = {}, {}
    for name in bases:
        keys[name] = {task.name: task.key for task in asked[name]}
        settings[name] = {task.name: task.config.identifying() for task in asked[name]}
    known = {"kind", "dtype", "scoring", "trust_remote_code"}
    engine = config.engine.model_dump(mode="json", include=known)
    if config.engine.deterministic:
        engine["deterministic"] = True
    return {"bases": bases, "tasks": keys, "task_settings": settings, "engine": engine}


def _disk_bytes(jobs: Jobs, dense: Infos, asked: Asked, dtype: str) -> int:
    """The approximate bytes of a new run directory."""
    checkpoints = sum(
        checks.bytes_of(job.quantise, dense[job.model].bytes)
        for job in jobs
        if job.is_made
    )
    records = sum(_bytes_of_records(task) for tasks in asked.values() for task in tasks)
    references = sum(
        reference_bytes(task.config, _compared_positions(task), job.path, dtype)
        for job in jobs
        if not job.is_made and keeps_references(job, jobs)
        for task in asked[job.name]
        if task.config.references
    )
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
    records = _OTHER_RECORDS + config.samples * len(config.run_seeds)
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
    return {
        digest: f"the context of item {item.item_id!r} of task {item.task!r}"
        for context, item in first.items()
        if (digest := text_digest(context))
    }
