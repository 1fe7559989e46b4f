"""A made-up sweep of any size: a dense checkpoint and its compressed versions, asked the bundled task. No file of any
of them exists; what preflight would have found is said here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evaluator.asking.questions import Question
from evaluator.checkpoints.info import CheckpointInfo
from evaluator.core.errors import InputError
from evaluator.probes.config import EvalConfig
from launch.sweep.config import Resources, SweepConfig
from launch.sweep.jobs import CheckpointJob
from launch.sweep.preflight import Prepared
from launch.sweep.tasks import PreparedTask, TaskPreparation

TASK, BASE = "gazetteer", "dense"
_METHODS = ("magnitude", "wanda", "sparsegpt", "ria")
_LANGUAGES = 9  # of the task
_POSITIONS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a sweep is."""

    engines: int = 100
    checkpoints: int = 1000
    items: int = 1800  # of each checkpoint
    shard_items: int = 20


def made_up(size: Size) -> Prepared:
    """Raises InputError for more items than the task has."""
    config = EvalConfig(task=TASK, items=-(-size.items // _LANGUAGES))
    whole = _asked(config)
    if size.items > len(whole.questions):
        raise InputError(f"--items {size.items}: task {TASK} has {len(whole.questions)}")
    task = PreparedTask(name=whole.name, key=whole.key, config=config, questions=whole.questions[: size.items])
    infos = {info.name: info for info in map(_info, range(size.checkpoints))}
    jobs = tuple(
        CheckpointJob(name=name, path=info.path, model=BASE, base=BASE if info.method else None, tasks={TASK: config})
        for name, info in infos.items()
    )
    sweep = SweepConfig(
        models={name: name for name in infos},
        tasks=(config,),
        resources=Resources(engines=size.engines, shard_items=size.shard_items),
    )
    return Prepared(
        config=sweep,
        jobs=jobs,
        dense=infos,
        tasks=(task,),
        asked=dict.fromkeys(infos, (task,)),
        held_out={},
        engine=sweep.engine,
        identity={"models": {name: info.weights_digest for name, info in infos.items()}, "items": size.items},
        disk_bytes=0,
        other_tokenizer=frozenset(),
        served=(),
        unusable=(),
    )


def questions_of(prepared: Prepared) -> tuple[Question, ...]:
    """What every checkpoint is asked."""
    return tuple(each for each in prepared.tasks[0].questions if isinstance(each, Question))


def _asked(config: EvalConfig) -> PreparedTask:
    job = CheckpointJob(name=BASE, path=Path(BASE), model=BASE, base=None, tasks={TASK: config})
    return TaskPreparation(_POSITIONS, {}).tasks_of(job)[0]


def _info(number: int) -> CheckpointInfo:
    """The base is number 0; no two others have the same setting."""
    method = None if number == 0 else _METHODS[number % len(_METHODS)]
    sparsity = None if number == 0 else round(0.1 + 0.8 * (number / 1000 % 1), 4)
    name = BASE if number == 0 else f"{method}-{sparsity:g}-{number:04d}"
    return CheckpointInfo(
        name=name,
        path=Path(name),
        weights_digest=f"{number:064x}",
        architecture="one",
        tensors=1,
        bytes=1,
        dtype="float32",
        method=method,
        pattern=None if method is None else "unstructured",
        sparsity=sparsity,
        calibration=None if method is None else "c4",
    )
