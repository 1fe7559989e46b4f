"""When engines start beside prune jobs, what run.json says of them, and that all
paths which are sent are absolute."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from evaluator.core.errors import EngineError, InputError
from evaluator.engine.base import EngineStats, LoadReport
from evaluator.store.records import RecordStore
from evaluator.store.run_json import Failure
from launch.run.decide.assignments import EngineSetup, Where
from launch.run.decide.board import Board
from launch.run.decide.failures import Ledger
from launch.run.decide.nodes import FreeGpus, Node, Placement, compress_options
from launch.run.events import Event, GaveUp, Warned
from launch.run.work import compress_tasks, driver, workers
from launch.run.work.compress_tasks import CompressTasks
from launch.run.work.workers import EngineWorker
from launch.sweep.config import Resources, load_sweep
from launch.sweep.preflight import Inspections, prepare
from tests.support import pruning as tiny
from tests.support.board import finish, make_assignment
from tests.support.models import save_tiny_model
from tests.support.run_directories import opened


class Pruning:
    """Takes the place of the prune tasks: a job ends when the driver has looked
    twice."""

    def __init__(
        self, jobs: list[str], *_: object, free: FreeGpus | None, **__: object
    ) -> None:
        self._waiting, self._running, self._free = list(jobs), [], free

    @property
    def unfinished(self) -> int:
        return len(self._waiting) + len(self._running)

    @property
    def running(self) -> bool:
        return bool(self._running)

    @property
    def short(self) -> bool:
        return self._free is not None and bool(self._waiting)

    def start(self, cpus: int) -> None:
        while self._waiting and (
            self._free is None or (node_id := self._free.take_one()) is not None
        ):
            job = self._waiting.pop(0)
            self._running.append(
                (job, None if self._free is None else node_id, iter(range(1)))
            )
            EVENTS.append(f"prune {job}")

    def ended(self, seconds: float) -> tuple[list[str], list[Failure]]:
        job, node_id, looks = self._running[0]
        if next(looks, None) is not None:
            return [], []
        self._running.pop(0)
        if self._free is not None and node_id is not None:
            self._free.give_back(node_id)
        EVENTS.append(f"pruned {job}")
        lost = [each for each in LOST if each.checkpoint == job]
        return [] if lost else [job], lost


class Worker:
    failure = retired = None
    where = "there"

    def __init__(
        self, number: int, setup: EngineSetup, *, board: Board, **_: object
    ) -> None:
        self._board = board
        self.number, self.place, self._left = number, setup.place, 2
        self.node_id = setup.place.node_id

    def served(self) -> list[object]:
        return []

    def start(self) -> None:
        EVENTS.append(f"engine on {self.place.node_id}")

    def is_alive(self) -> bool:
        """What there is to evaluate is done whenever the driver looks."""
        while (board := self._board).has_work and self._left > 0:
            EVENTS.append(f"eval {finish(board, self.number).checkpoint.name}")
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


EVENTS: list[str] = []
LOST: list[Failure] = []  # what cannot be made


def _events(
    monkeypatch, jobs, gpus, tensor_parallel=1, dense=False, to_evaluate=False
) -> tuple[str, list[Failure]]:
    """What happened, in order, in a run with prune `jobs` on nodes with so many `gpus`,
    and what was set aside. `dense`: there is something to evaluate from the beginning;
    `to_evaluate`: what is pruned is evaluated.
    """
    EVENTS.clear()
    run = _faked(monkeypatch, tensor_parallel)

    def enqueue(job: str, inspected: Inspected) -> None:
        run._board.add([make_assignment(job, 1)] if to_evaluate else [])
        run._to_make.discard(job)

    monkeypatch.setattr(run, "_enqueue", enqueue)
    run._to_make.update(jobs)
    if dense:
        run._board.add([make_assignment("dense", 1)])
    nodes = [
        Node(node_id=name, name=name, cpus=2, gpus=count)
        for name, count in gpus.items()
    ]
    machines = SimpleNamespace(nodes=lambda: nodes, check=lambda: None)
    run._work_until_done(machines, jobs, Inspected())
    return ", ".join(EVENTS), run._board.failures


def _faked(monkeypatch: pytest.MonkeyPatch, tensor_parallel: int = 1) -> driver._Run:
    for name, fake in (
        ("CompressTasks", Pruning),
        ("EngineWorker", Worker),
        ("ray", SimpleNamespace(put=lambda it: it)),
    ):
        monkeypatch.setattr(driver, name, fake)
    live = SimpleNamespace(poll=lambda served: None)
    engine = SimpleNamespace(
        tensor_parallel=tensor_parallel, gpu_memory_utilization=0.9
    )
    config = SimpleNamespace(
        engine=engine, resources=Resources(), screen=None, gate=None
    )
    prepared = SimpleNamespace(
        config=config, jobs=(), tasks=(), engine=None, held_out={}
    )
    return driver._Run(prepared, _directory(), None, _ignore, live, [])


def _ignore(event: Event) -> None: ...


def _directory(path: Path = Path("run")) -> Any:
    return SimpleNamespace(
        path=path,
        check=lambda: None,
        mark=lambda state, **more: None,
        note_failures=lambda failures: None,
    )


def test_last_engine_fails_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _faked(monkeypatch)
    monkeypatch.setattr(driver, "_NODES_SECONDS", -1.0)
    nodes = [Node(node_id="a", name="a", cpus=2, gpus=0)]
    looks = iter(range(10))

    def look() -> list[Node]:
        if next(looks) == 1:  # the run has just been looked after
            monkeypatch.setattr(Worker, "failure", EngineError("at the end"))
            monkeypatch.setattr(Worker, "is_alive", lambda self: False)
            run._board.stop()
        return nodes

    machines = SimpleNamespace(nodes=look, check=lambda: None)
    with pytest.raises(EngineError, match="at the end"):
        run._work_until_done(machines, [], Inspected())


@pytest.mark.parametrize(
    ("jobs", "gpus", "more", "happened"),
    [
        ("xy", {"a": 1}, {}, "prune x, pruned x, prune y, pruned y, engine on a"),
        ("x", {"a": 2, "b": 1}, {}, "prune x, engine on a, engine on a, pruned x, engine on b"),
        ("xyz", {"a": 2}, {}, "prune x, prune y, pruned x, prune z, pruned y, engine on a, pruned z, engine on a"),
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
        ("xy", {"a": 0}, {"to_evaluate": True}, "prune x, prune y, engine on a, pruned x, eval x, pruned y, eval y"),
    ],
)  # fmt: skip
def test_when_jobs_and_engines_start(monkeypatch, jobs, gpus, more, happened) -> None:
    found, _ = _events(monkeypatch, [*jobs], gpus, **more)
    assert found.startswith(happened) if happened.endswith(", ") else found == happened


def test_failed_job_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Failure(checkpoint="y", stage="prune", reason="no such file")
    monkeypatch.setitem(globals(), "LOST", [lost])
    happened, failures = _events(
        monkeypatch, ["x", "y", "z"], {"a": 1}, to_evaluate=True
    )
    assert (
        happened
        == "prune x, pruned x, prune y, pruned y, prune z, pruned z, engine on a, eval"
        " x, eval z"
    )
    assert failures == [lost]


@pytest.mark.parametrize(
    ("mendable", "kind"), [(True, InputError), (False, EngineError)]
)
def test_run_without_any_record_failed(tmp_path, monkeypatch, mendable, kind) -> None:
    run = _faked(monkeypatch)
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
    assert run.failures == [failure]
    assert events == [GaveUp(failure)]
    with pytest.raises(kind, match=f"nothing could be evaluated: {failure.text}"):
        run._need_something()
    run._store = SimpleNamespace(tables=lambda: ["a table"])
    run._need_something()


@pytest.mark.parametrize("same_device", [False, True])
def test_records_bind_family_to_device(same_device: bool, tmp_path: Path) -> None:
    config = SimpleNamespace(
        resources=Resources(same_device=same_device), screen=None, gate=None
    )
    prepared = SimpleNamespace(
        config=config, other_tokenizer=(), asked={"dense": (), "wanda": ()}, tasks=()
    )
    store = SimpleNamespace(devices=lambda name: {"A100"} if name == "wanda" else set())
    run = driver._Run(
        prepared, _directory(tmp_path), store, _ignore, SimpleNamespace(), []
    )
    for name, base in (("dense", None), ("wanda", "dense")):
        assert (
            run._remaining_assignments(
                SimpleNamespace(name=name, base=base),
                make_assignment(name, 1).checkpoint,
            )
            == []
        )
    run._board.add([make_assignment("dense", 1)])
    run._board.join(0, "H100")
    assert run._board.lacks == ("A100" if same_device else None)


def test_loads_are_in_run_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fell back to the slow way to score, and one that is as it was asked
    for."""
    fake = SimpleNamespace(
        wait=lambda pending, timeout: (pending, []),
        get=lambda answer, timeout=None: answer,
    )
    monkeypatch.setattr(workers, "ray", fake)
    fallen = LoadReport(
        checkpoint=tmp_path, swapped=False, tensors=1, seconds=0.5, scoring="prompt_logprobs",
        notes=("forced scores are wrong here",), setup={"self-check": "failed"},
    )  # fmt: skip
    sound = LoadReport(checkpoint=tmp_path, swapped=True, tensors=1, seconds=0.1)
    events: list[Event] = []
    setup = EngineSetup(
        config=None,
        log_path=tmp_path / "log",
        place=Placement(node_id="a", gpus=1, threads=None),
    )
    worker = EngineWorker(
        3,
        setup,
        board=Board(),
        store=None,
        questions={},
        report=events.append,
        resources=Resources(),
    )
    worker.where = Where(node="a", node_id="a", device="a GPU")
    for name, report in (("dense", fallen), ("wanda-0.5", sound)):
        worker._actor = SimpleNamespace(
            load=SimpleNamespace(remote=lambda _, report=report: report)
        )
        worker._hold(make_assignment(name, 1).checkpoint)
        worker._note(name, EngineStats(requests=7), 2)
    with opened(
        tmp_path / "run", {"models": {"dense": "9f3c"}}, {"seed": 0}, 0
    ) as directory:
        directory.mark("finished", engine_stats=worker.served())
    rows = json.loads((tmp_path / "run" / "run.json").read_text())["engine_stats"]
    said = [
        (row["engine"], row["checkpoint"], row["scoring"], row["notes"], row["setup"])
        for row in rows
    ]
    assert said == [
        (
            3,
            "dense",
            "prompt_logprobs",
            ["forced scores are wrong here"],
            {"self-check": "failed"},
        ),
        (3, "wanda-0.5", "forced", [], {}),
    ]
    assert [each.text for each in events if isinstance(each, Warned)] == [
        "dense: forced scores are wrong here"
    ]


# ---- what is sent to other processes, which are in other directories


class Sent:
    def __init__(self) -> None:
        self.arguments: list[object] = []

    def remote(self, **_: object) -> Any:
        return lambda function: SimpleNamespace(
            remote=self.put, options=lambda **_: SimpleNamespace(remote=self.put)
        )

    def put(self, *arguments: object) -> object:
        self.arguments += arguments
        return object()


def _paths(value: object) -> Iterator[Path]:
    if isinstance(value, BaseModel):
        value = [
            *(getattr(value, name) for name in type(value).model_fields),
            *getattr(value, "files", ()),
        ]
    elif dataclasses.is_dataclass(value):
        value = [getattr(value, each.name) for each in dataclasses.fields(value)]
    elif isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, Path):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _paths(part)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> driver._Run:
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
    return driver._Run(
        prepared, _directory(), RecordStore(Path("run")), _ignore, SimpleNamespace(), []
    )


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_prune_task(
    run: driver._Run, gpus: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent = Sent()
    monkeypatch.setattr(compress_tasks, "ray", sent)
    to_prune = [job for job in run._prepared.jobs if job.prune is not None]
    free = (
        FreeGpus([Node(node_id="0f" * 28, name="n", cpus=1, gpus=gpus)])
        if gpus
        else None
    )
    tasks = CompressTasks(
        to_prune,
        run._prepared,
        Path("run/logs"),
        free=free,
        options=compress_options(gpu=bool(gpus)),
        ledger=Ledger(),
        report=_ignore,
    )
    tasks.start(1)
    found = set(_paths(sent.arguments))
    assert {
        tmp_path / "model",
        tmp_path / "text.txt",
        tmp_path / "run" / "checkpoints" / "wanda-0.5",
    } <= found
    assert {
        tmp_path / "run" / "logs" / f"prune-wanda-0.5.{kind}"
        for kind in ("log", "pulse")
    } <= found
    assert all(path.is_absolute() for path in found)


def test_an_engine_and_its_jobs(
    run: driver._Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(driver, "ray", Sent())
    dense = next(job for job in run._prepared.jobs if job.prune is None)
    with Inspections(trust=False) as inspected:
        run._enqueue(dense, inspected)
    worker = run._worker(0, Placement(node_id="n", gpus=1, threads=1, sharing=2), {})
    shared, alone = (
        worker._setup.config,
        run._worker(1, Placement(node_id="n", gpus=1, threads=1), {})._setup.config,
    )
    assert (shared.gpu_memory_utilization, shared.shared_gpu) == (0.45, True)
    assert (alone.gpu_memory_utilization, alone.shared_gpu) == (0.9, False)
    assignment = run._board.take(0, None, None)
    found = set(_paths([assignment, worker._setup]))
    assert {tmp_path / "model", tmp_path / "run" / "logs" / "engine-0.log"} <= found
    assert all(path.is_absolute() for path in found)
