"""A whole run in this process: the real driver, board and store, one pretended
engine, and no Ray."""

import contextlib
import io
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.core.config import validated
from evaluator.engine.config import EngineConfig
from evaluator.store.run_json import Failure
from launch.run.decide.assignments import Assignment, BaseAnswers, Shards
from launch.run.directory.event_log import EventLog, clock, read_state
from launch.run.directory.lock import hold
from launch.run.directory.rundir import open_run
from launch.run.events import Started
from launch.run.state import Bus
from launch.run.work import driver
from launch.run.work.actors import EngineActor, NewTask
from launch.sweep.config import SweepConfig
from launch.sweep.preflight import prepare
from pruning.run import prune
from tests.support.fake import FakeEngine, FakeLM
from tests.support.models import VOCABULARY, save_tiny_model

PROBES = ("greedy", "choice", "sample", "beam", "rank", "aligned_rank", "fidelity")
LANGUAGES = ("swahili", "english")
SHORT = {"max_new_tokens": 2, "samples": 2, "beam_width": 2}
FULL = {"models": 2, "languages": 2, "items": 2, "probes": len(PROBES), "tasks": 2}
SMALL = {"models": 2, "languages": 1, "items": 1, "probes": 2, "tasks": 1}


def save_models(folder: Path) -> Path:
    for seed, name in enumerate("ab"):
        save_tiny_model(folder / name, seed=seed)
    return folder


def sweep(models: Path, size: dict[str, int], **settings: Any) -> dict[str, Any]:
    """The first of everything, in the order of the full sweep."""
    task = {
        "task": "gazetteer",
        "items": size["items"],
        "languages": sorted(LANGUAGES[: size["languages"]]),
        "probes": sorted(PROBES[: size["probes"]]),
        **SHORT,
    }
    again = {**task, "name": "again", "seed": 1}
    return {
        "models": {name: str(models / name) for name in "ab"[: size["models"]]},
        "base": "a",
        "tasks": [task | settings, again][: size["tasks"]],
        "resources": {"shard_items": 2},
    }


class PretendedEngine(EngineActor):
    """Evaluates as an engine's process does; each checkpoint has answers of its own."""

    def __init__(self) -> None:
        self._config = EngineConfig()
        self._tokenised = {}
        self._stream, self._tasks = 0, {}
        self._waiting = deque()
        self._lock = threading.Lock()
        self._items = 0
        self._on_gpu = False
        self.told: list[str] = []
        self.asked: list[tuple[str, str, int, tuple[str, ...]]] = []
        self.fails: set[str] = set()  # checkpoints that it does not load

    def note(self, assignment: Assignment, items: int) -> None:
        config, kept = assignment.config, assignment.kept
        names = None if kept is None else {probe for probe, *_ in kept}
        probes = [each for each in config.probes if names is None or each in names]
        self.asked.append((*assignment.part, items, tuple(probes)))

    def serve(self, checkpoint: CheckpointInfo) -> None:
        seed = zlib.crc32(checkpoint.weights_digest.encode())
        model = FakeLM(vocabulary=VOCABULARY, seed=seed)
        engine: Any = FakeEngine(model.answer)
        self._engine = engine


class _Stopped(Exception):
    """The run is killed here."""


def run_here(
    monkeypatch: pytest.MonkeyPatch,
    document: dict[str, Any],
    out: Path,
    *,
    shards: int | None = None,
    reuse: Sequence[Path] = (),
) -> PretendedEngine:
    """Run a sweep, without its report; `shards`: the driver is killed after so
    many. `reuse`: runs with records to take."""
    engine = pretend(monkeypatch, shards)
    config = validated(SweepConfig, document, "s.yaml")
    console = Console(file=io.StringIO())
    with hold(out) as lock, contextlib.suppress(_Stopped):
        prepared = prepare(config, out)
        directory = open_run(prepared, out, lock)
        bus = Bus(
            EventLog(out).on,
            lambda event, _: engine.told.append(str(getattr(event, "text", ""))),
            clock=clock(),
        )
        bus.state = read_state(out)
        bus.report(Started())
        driver.run_sweep(prepared, directory, bus, console, reuse)
    return engine


def _make(run: Any, jobs: Sequence[Any], inspected: Any) -> None:
    """Make the pruned checkpoints of a run."""
    for job in jobs:
        config, held_out = job.prune.absolute(), run._prepared.held_out
        prune(config, job.path.absolute(), held_out=held_out)
    inspected.begin(*jobs)
    while run.open:
        run._enqueue(inspected.ended(), inspected)


def pretend(
    monkeypatch: pytest.MonkeyPatch, shards: int | None = None
) -> PretendedEngine:
    """Let every driver of this process have one pretended engine, and no Ray."""
    engine = PretendedEngine()

    def work(run: Any, _: object, to_make: Sequence[Any], inspected: Any) -> None:
        board, left = run._board, shards
        _make(run, to_make, inspected)
        board.join(0)
        while (assignment := board.take(0, None, None)) is not None:
            if (name := assignment.checkpoint.name) in engine.fails:
                lost = Failure(
                    checkpoint=name, stage="load", reason="no", mendable=True
                )
                engine.note(assignment, assignment.items)
                board.failed(0, lost)
                continue
            engine.serve(assignment.checkpoint)
            tasks: dict[str, Assignment] = {}
            for result in engine.evaluate(
                1, *_fresh(run, engine, board.begin(0), tasks)
            ):
                if left == 0:
                    raise _Stopped
                left = None if left is None else left - 1
                if result.part:
                    run._store.append(tasks[result.shard.task].key, result.part)
                board.finished(0, result.shard)
                engine.feed(1, *_fresh(run, engine, board.more(0), tasks))
            board.end(0)

    @contextlib.contextmanager
    def cluster(*_: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(driver, "cluster", cluster)
    monkeypatch.setattr(driver, "remove_leftovers", lambda: ())
    monkeypatch.setattr(driver._Run, "_work_until_done", work)
    return engine


def _fresh(
    run: Any, engine: PretendedEngine, shards: Shards, tasks: dict[str, Assignment]
) -> list[Any]:
    """What a stream gets: shards, the tasks that it has not had, and the questions of
    each."""
    new, questions = list[NewTask](), list[Any]()
    for task in dict.fromkeys(shard.task for shard in shards):
        if task not in tasks:
            tasks[task] = assignment = run._board.assignment(0, task)
            engine.note(assignment, run._board.left(0, task))
            new.append((assignment, _answers(run, assignment)))
            questions.append(run._board.questions[assignment.task_key])
    return [shards, new, *questions]


def _answers(run: Any, assignment: Assignment) -> BaseAnswers | None:
    source = assignment.base
    if source is None:
        return None
    table = None
    if source.missing is None:
        table = run._store.greedy_answers(source.key)
    return BaseAnswers(source, table)
