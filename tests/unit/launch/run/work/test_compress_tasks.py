"""Prune jobs: how they wait for GPUs, what becomes of those that fail, and of those
that hang."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayTaskError, TaskCancelledError, WorkerCrashedError

from evaluator.core.errors import InputError
from evaluator.store.run_json import Failure
from launch.run.decide.assignments import Where
from launch.run.decide.nodes import FreeGpus, Node
from launch.run.events import Event, Retried
from launch.run.state import Bus
from launch.run.work import compress_tasks
from launch.run.work.compress_tasks import CompressTasks
from launch.sweep.config import Resources

A, B = "0a" * 28, "0b" * 28  # nodes
NODES = [Node(node_id=name, name=name, cpus=4, gpus=0) for name in (A, B)]
DIED = WorkerCrashedError()


def failed(cause: Exception) -> RayTaskError:
    return RayTaskError("make_checkpoint", "Traceback", cause)


class Ray:
    """Takes Ray's place and its processes': a task ends as the next of its job's
    outcomes says; None: well. An outcome may be a function, which is called when the
    task begins, and then it goes on until `end` is called.
    """

    def __init__(self, outcomes: dict[str, list[Any]]) -> None:
        self.outcomes = outcomes
        self.begun: list[tuple[str, Any]] = []  # jobs, with their scheduling strategies
        self.cancelled: list[str] = []
        self._running: dict[int, tuple[str, Any]] = {}

    def remote(self, **_: object) -> Any:
        def with_options(scheduling_strategy: Any = None) -> Any:
            return SimpleNamespace(
                remote=lambda *arguments: self._begin(scheduling_strategy, *arguments)
            )

        return lambda function: SimpleNamespace(
            remote=with_options().remote, options=with_options
        )

    def _begin(self, strategy: Any, config: str, out: Path, *_: object) -> int:
        self.begun.append((out.name, getattr(strategy, "node_id", strategy)))
        outcome = self.outcomes[out.name].pop(0)
        *_, log, pulse = _
        self._running[len(self.begun)] = out.name, outcome
        if callable(outcome):
            outcome(log, pulse)
        return len(self.begun)

    def put(self, value: object) -> object:
        return value

    def wait(self, pending: list[int], **_: object) -> tuple[list[int], list[int]]:
        ready = [each for each in pending if not callable(self._running[each][1])][:1]
        return ready, [each for each in pending if each not in ready]

    def get(self, pending: int) -> None:
        if (outcome := self._running[pending][1]) is not None:
            raise outcome

    def cancel(self, pending: int, *, force: bool) -> None:
        assert force
        self.cancelled.append(self._running[pending][0])

    def end(self, name: str, outcome: Exception | None) -> None:
        for pending, (job, _) in self._running.items():
            if job == name:
                self._running[pending] = job, outcome


@dataclasses.dataclass
class Desk:
    """What a test of prune tasks needs, and the clock."""

    ray: Ray
    tasks: CompressTasks
    warned: list[str]
    lost: list[Failure]
    ended: list[Where]  # processes
    slept: list[float]
    now: float = 0.0
    gone: set[str] = dataclasses.field(default_factory=set)  # nodes

    def turn(self, seconds: float = 3.0) -> list[str]:
        """What the driver does, and what ended well."""
        self.now += seconds
        self.tasks.start(NODES)
        made, given_up = self.tasks.ended()
        self.lost += given_up
        return [job.name for job in made]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def make(
        outcomes: dict[str, list[Any]],
        *,
        after: dict[str, str] | None = None,
        gpus: Sequence[str] = (),
    ) -> Desk:
        found = Desk(Ray(outcomes), SimpleNamespace(), [], [], [], [])
        clock = SimpleNamespace(monotonic=lambda: found.now, sleep=found.slept.append)
        fakes = {
            "ray": found.ray,
            "time": clock,
            "end_process": found.ended.append,
            "provenance": lambda: None,
            "lives": lambda node_id: node_id not in found.gone,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(compress_tasks, name, fake)
        nodes = [Node(node_id=name, name=name, cpus=1, gpus=1) for name in gpus]
        config = SimpleNamespace(absolute=lambda: "config", source=Path("m"))

        def note(event: Event, _: object) -> None:
            if isinstance(event, Retried):
                found.warned.append(event.text)

        resources = Resources(stall_seconds=60, load_seconds=300)
        found.tasks = CompressTasks(
            [
                SimpleNamespace(
                    name=name,
                    path=tmp_path / name,
                    after=(after or {}).get(name),
                    prune=config,
                    quantise=None,
                )
                for name in outcomes
            ],
            SimpleNamespace(config=SimpleNamespace(resources=resources), held_out={}),
            tmp_path,
            free=FreeGpus(nodes) if gpus else None,
            bus=Bus(note),
        )
        return found

    return make


def test_failed_job_goes_elsewhere(desk) -> None:
    at = desk({"x": [DIED, DIED, None]}, gpus=[A, B])
    assert [at.turn() for _ in range(3)] == [[], [], ["x"]]
    first, second, third = [node for _, node in at.ray.begun]
    assert ({first, second}, third) == ({A, B}, first)
    # every one of them was given back
    assert {at.tasks._free.take_one() for _ in range(2)} == {A, B}
    without_gpus = desk({"x": [DIED, DIED, None]})
    assert [without_gpus.turn() for _ in range(3)] == [[], [], ["x"]]
    assert [node for _, node in without_gpus.ray.begun] == [None, B, A]


def test_failed_source_fails_what_follows(desk) -> None:
    outcomes = {"x": [failed(InputError("bad"))], "x-rtn": [], "x-rtn-2": [], "y": [None], "y-rtn": [None]}  # fmt: skip
    at = desk(outcomes, after={"x-rtn": "x", "x-rtn-2": "x-rtn", "y-rtn": "y"})
    assert [name for _ in range(3) for name in at.turn()] == ["y", "y-rtn"]
    lost = [(each.checkpoint, each.attempts, each.reason) for each in at.lost]
    assert lost == [
        ("x", 1, "bad"),
        ("x-rtn", 0, "'x', its source, could not be made"),
        ("x-rtn-2", 0, "'x-rtn', its source, could not be made"),
    ]
    assert all(each.mendable for each in at.lost)
    assert (at.warned, at.tasks.unfinished) == ([], 0)


PROCESS = Where(node="a", node_id=A, device="", pid=7)


def alive(pulse: Path, beats: int, where: Where = PROCESS) -> None:
    """What a task's process writes."""
    pulse.write_text(
        json.dumps({"where": dataclasses.asdict(where), "beats": beats}),
        encoding="utf-8",
    )


@pytest.mark.parametrize(("gone", "attempts"), [({A}, 6), (set(), 3)])
def test_lost_nodes_count_apart(desk, gone: set[str], attempts: int) -> None:
    """A job may be what ends its nodes, or they may go for other reasons."""
    at = desk({"x": [lambda _, pulse: alive(pulse, 1)] * attempts})
    at.gone |= gone
    for _ in range(attempts):
        assert at.lost == []
        at.turn()
        at.ray.end("x", DIED)
        at.turn()
    assert [each.attempts for each in at.lost] == [attempts]
    assert at.tasks.unfinished == 0


def test_hung_job_is_ended(desk, tmp_path) -> None:
    at = desk({"x": [lambda _, pulse: alive(pulse, 1), None]})
    pulse = tmp_path / "prune-x.pulse"
    at.turn()
    alive(pulse, 2)
    assert at.turn(10.0) == []
    at.turn(59.0)
    assert at.ended == []
    at.turn(3.0)
    assert (at.ended, at.ray.cancelled) == ([PROCESS], ["x"])
    assert at.turn() == []  # Ray has not noticed that its process is gone
    at.ray.end("x", TaskCancelledError())
    assert [at.turn(), at.turn()] == [[], ["x"]]
    reason = "no sign of progress for 62 s"
    assert at.warned == [f"x could not be made ({reason}); trying it again"]
    assert not pulse.exists()


def test_process_that_cannot_be_ended(desk) -> None:
    """Its place is given back all the same."""
    at = desk({"x": [lambda _, pulse: alive(pulse, 1)] * 3}, gpus=[A])
    for _ in range(40):
        at.turn(100.0)
    assert len(at.ended) == 3
    assert (at.lost[0].attempts, at.tasks.running) == (3, {})
    assert at.tasks._free.take_one() == A
