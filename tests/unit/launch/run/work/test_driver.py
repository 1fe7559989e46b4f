"""When engines start beside prune jobs, what ends a run, and that all paths which are
sent are absolute."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from evaluator.core.errors import EngineError, InputError
from evaluator.deciding.thresholds import Thresholds
from evaluator.engine.config import EngineConfig
from evaluator.store.records import RecordStore
from evaluator.store.run_json import Failure
from launch.run.decide.failures import Ledger
from launch.run.decide.nodes import FreeGpus, Node, Placement, compress_options
from launch.run.events import Event, GaveUp
from launch.run.work import compress_tasks, driver
from launch.run.work.compress_tasks import CompressTasks
from launch.sweep.config import Resources, load_sweep
from launch.sweep.preflight import Inspections, prepare
from tests.support import pruning as tiny
from tests.support.board import finish, make_assignment
from tests.support.models import save_tiny_model

EVENTS: list[str] = []
LOST: list[Failure] = []  # what cannot be made


class Pruning:
    """Takes the place of the prune tasks: a job ends when the driver has looked
    twice."""

    def __init__(
        self, jobs: list[str], *_: object, free: FreeGpus | None, **__: object
    ):
        self.waiting, self.running, self._free = list(jobs), [], free

    @property
    def unfinished(self) -> int:
        return len(self.waiting) + len(self.running)

    @property
    def short(self) -> bool:
        return self._free is not None and bool(self.waiting)

    def start(self, cpus: int) -> None:
        while self.waiting and (self._free is None or (node := self._free.take_one())):
            job = self.waiting.pop(0)
            self.running.append((job, self._free and node, iter(range(1))))
            EVENTS.append(f"prune {job}")

    def ended(self, seconds: float) -> tuple[list[str], list[Failure]]:
        job, node_id, looks = self.running[0]
        if next(looks, None) is not None:
            return [], []
        self.running.pop(0)
        if self._free is not None:
            self._free.give_back(node_id)
        EVENTS.append(f"pruned {job}")
        lost = [each for each in LOST if each.checkpoint == job]
        return [] if lost else [job], lost


class Worker:
    failure = retired = None
    where = "there"

    def __init__(self, number: int, setup: Any, *, board: Any, **_: object) -> None:
        self._board, self._left = board, 2
        self.number, self.place, self.node_id = number, setup.place, setup.place.node_id

    def served(self) -> list[object]:
        return []

    def start(self) -> None:
        EVENTS.append(f"engine on {self.node_id}")

    def is_alive(self) -> bool:
        """What there is to evaluate is done whenever the driver looks."""
        while self._board.has_work and self._left > 0:
            EVENTS.append(f"eval {finish(self._board, self.number).checkpoint.name}")
        return self._left > 0

    @property
    def serving(self) -> bool:
        return self.is_alive()

    def join(self, timeout: float) -> None:
        self._left -= 1


class Inspected(list[str]):
    """Takes the place of the inspections: each ends at once."""

    def begin(self, *jobs: str) -> None:
        self.extend(jobs)

    def ended(self) -> list[str]:
        return [self.pop(0) for _ in range(len(self))]


def _run(monkeypatch: pytest.MonkeyPatch, tensor_parallel: int = 1) -> driver._Run:
    EVENTS.clear()
    monkeypatch.setattr(driver, "CompressTasks", Pruning)
    monkeypatch.setattr(driver, "EngineWorker", Worker)
    engine = SimpleNamespace(
        tensor_parallel=tensor_parallel, gpu_memory_utilization=0.9
    )
    config = SimpleNamespace(engine=engine, resources=Resources(), gate=Thresholds())
    prepared = SimpleNamespace(
        config=config, jobs=(), tasks=(), engine=None, held_out={}
    )
    return _of(prepared)


def _of(prepared: Any, store: Any = None, path: Path = Path("run")) -> driver._Run:
    directory = SimpleNamespace(
        path=path,
        check=lambda: None,
        mark=lambda state, **more: None,
        note_failures=lambda failures: None,
    )
    live = SimpleNamespace(poll=lambda served: None)
    reuse: Any = SimpleNamespace(rows=[], into=lambda *given: None)
    return driver._Run(prepared, directory, store, lambda event: None, live, [], reuse)


def _events(
    monkeypatch, jobs, gpus, tensor_parallel=1, dense=False, to_evaluate=False
) -> tuple[str, list[Failure]]:
    """What happened, in order, in a run with prune `jobs` on nodes with so many `gpus`,
    and what was set aside. `dense`: there is something to evaluate from the beginning;
    `to_evaluate`: what is pruned is evaluated."""
    run = _run(monkeypatch, tensor_parallel)

    def enqueue(job: str, inspected: Inspected) -> None:
        run._board.add([make_assignment(job, 1)] if to_evaluate else [])
        run._to_make.discard(job)

    monkeypatch.setattr(run, "_enqueue", enqueue)
    run._to_make.update(jobs)
    run._board.add([make_assignment("dense", int(dense))])
    nodes = [Node(node_id=each, name=each, cpus=2, gpus=gpus[each]) for each in gpus]
    machines = SimpleNamespace(nodes=lambda: nodes, check=lambda: None)
    run._work_until_done(machines, jobs, Inspected())
    return ", ".join(EVENTS), run._board.failures


def test_last_engine_fails_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run(monkeypatch)
    monkeypatch.setattr(driver, "_NODES_SECONDS", -1.0)
    looks = iter(range(10))

    def look() -> list[Node]:
        if next(looks) == 3:  # the run has just been looked after
            monkeypatch.setattr(Worker, "failure", EngineError("at the end"))
            monkeypatch.setattr(Worker, "is_alive", lambda self: False)
            run._board.stop()
        return [Node(node_id="a", name="a", cpus=2, gpus=0)]

    machines = SimpleNamespace(nodes=look, check=lambda: None)
    with pytest.raises(EngineError, match="at the end"):
        run._work_until_done(machines, [], Inspected())


@pytest.mark.parametrize(
    ("jobs", "gpus", "more", "happened"),
    [
        ("xy", {"a": 1}, {}, "prune x, pruned x, prune y, pruned y, engine on a"),
        ("x", {"a": 2, "b": 1}, {}, "prune x, engine on a, engine on a, pruned x, engine on b"),
        # An engine of two GPUs waits for two on one node.
        ("xy", {"a": 2, "b": 2}, {"tensor_parallel": 2},
         "prune x, prune y, engine on b, pruned x, pruned y, engine on a"),
        ("x", {"a": 0, "b": 0}, {}, "prune x, engine on a, engine on b, pruned x"),
        # If there is something to evaluate, one engine starts before the jobs, unless
        # it would take all GPUs.
        ("xyz", {"a": 2}, {"dense": True}, "engine on a, prune x, eval dense, pruned x, prune y, "),
        ("xy", {"a": 1}, {"dense": True}, "prune x, pruned x, prune y, pruned y, engine on a, eval dense"),
        # A pruned checkpoint is evaluated while others are being pruned.
        ("xyz", {"a": 2}, {"to_evaluate": True}, "prune x, prune y, pruned x, engine on a, eval x, pruned y, "),
    ],
)  # fmt: skip
def test_when_jobs_and_engines_start(monkeypatch, jobs, gpus, more, happened) -> None:
    found, _ = _events(monkeypatch, [*jobs], gpus, **more)
    assert found.startswith(happened) if happened.endswith(", ") else found == happened


def test_failed_job_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Failure(checkpoint="y", stage="prune", reason="no such file")
    monkeypatch.setitem(globals(), "LOST", [lost])
    found, failures = _events(monkeypatch, [*"xyz"], {"a": 1}, to_evaluate=True)
    assert found.endswith("pruned y, prune z, pruned z, engine on a, eval x, eval z")
    assert failures == [lost]


@pytest.mark.parametrize(
    ("mendable", "kind"), [(True, InputError), (False, EngineError)]
)
def test_run_without_any_record_failed(tmp_path, monkeypatch, mendable, kind) -> None:
    """Its failures are told once."""
    run = _run(monkeypatch)
    run._store = RecordStore(tmp_path)
    events: list[Event] = []
    run._report = events.append
    run._need_something()
    failure = Failure(
        checkpoint="dense", stage="load", reason="no kernel", mendable=mendable
    )
    run._board.abandon(failure)
    for _ in range(2):
        run._note_failures()
    assert (run.failures, events) == ([failure], [GaveUp(failure)])
    with pytest.raises(kind, match=f"nothing could be evaluated: {failure.text}"):
        run._need_something()
    run._store = SimpleNamespace(tables=lambda: ["a table"])
    run._need_something()


def test_sent_paths_are_absolute(monkeypatch, tmp_path: Path) -> None:
    """Other processes are in other directories."""
    monkeypatch.chdir(tmp_path)
    save_tiny_model(Path("model"))
    Path("text.txt").write_text("\n".join(tiny.lines(8)), encoding="utf-8")
    document = {
        "models": {"dense": "model"},
        "prune": [{"method": "wanda", "sparsity": 0.5}],
        "calibration": {"source": "text:text.txt", "samples": 8, "sequence_length": 32},
        "tasks": [{"task": "gazetteer", "items": 2, "languages": ["english"]}],
    }
    Path("sweep.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    prepared = prepare(load_sweep(Path("sweep.yaml")), Path("run"))
    run = _of(prepared, RecordStore(Path("run")))
    sent: list[object] = []
    task = SimpleNamespace(remote=lambda *arguments: sent.extend(arguments))
    fake = SimpleNamespace(remote=lambda **_: lambda function: task, put=sent.append)
    monkeypatch.setattr(compress_tasks, "ray", fake)
    dense, to_prune = prepared.jobs
    logs, options = Path("run/logs"), compress_options(gpu=False)
    CompressTasks(
        [to_prune], prepared, logs, free=None, options=options, ledger=Ledger(),
        report=lambda event: None,
    ).start(1)  # fmt: skip
    with Inspections(trust=False) as inspected:
        run._enqueue(dense, inspected)
    worker = run._worker(0, Placement(node_id="n", gpus=1, threads=1), {})
    sent += [run._board.take(0, None, None), worker._setup]
    paths = {Path(path) for path in re.findall(r"PosixPath\('(.*?)'\)", repr(sent))}
    assert {path.relative_to(tmp_path).as_posix() for path in paths} >= {
        "model", "run/checkpoints/wanda-0.5", "run/logs/engine-0.log",
        "run/logs/prune-wanda-0.5.log", "run/logs/prune-wanda-0.5.pulse",
    }  # fmt: skip
    assert sent[1].calibration.files == [("text.txt", tmp_path / "text.txt")]


@pytest.mark.parametrize(("sharing", "share"), [(1, 0.9), (2, 0.45)])
def test_engines_share_the_memory(monkeypatch, sharing: int, share: float) -> None:
    run = _run(monkeypatch)
    run._prepared.engine = EngineConfig()
    monkeypatch.setattr(driver, "EngineWorker", lambda _, setup, **more: setup.config)
    place = Placement(node_id="n", gpus=1, threads=1, sharing=sharing)
    config = run._worker(0, place, {})
    assert (config.gpu_memory_utilization, config.shared_gpu) == (share, sharing > 1)
