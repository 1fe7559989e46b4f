"""What ends a run, and that all paths which are sent are absolute."""

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from evaluator.core.errors import EngineError, InputError
from evaluator.deciding.thresholds import Thresholds
from evaluator.engine.config import EngineConfig
from evaluator.store.cells import Cells
from evaluator.store.records import RecordStore
from evaluator.store.run_json import Failure
from launch.provenance import Room
from launch.run.decide.nodes import Node, Placement
from launch.run.decide.sharing import Trial
from launch.run.state import Bus
from launch.run.work import compress_tasks, driver
from launch.run.work.compress_tasks import CompressTasks
from launch.sweep.config import Resources, load_sweep
from launch.sweep.preflight import Inspections, prepare
from tests.support import pruning as tiny
from tests.support.models import save_tiny_model


def _run() -> driver._Run:
    engine = SimpleNamespace(gpu_memory_utilization=0.9)
    config = SimpleNamespace(engine=engine, resources=Resources(), gate=Thresholds())
    prepared = SimpleNamespace(
        config=config, jobs=(), tasks=(), engine=None, held_out={}, dense={}
    )
    return _of(prepared)


def _of(prepared: Any, store: Any = None, path: Path = Path("run")) -> driver._Run:
    directory = SimpleNamespace(
        path=path,
        check=lambda: None,
        write=lambda state: None,
        stated={},
        cells=Cells(path),
    )
    run = driver._Run(prepared, directory, store, Bus(), ())
    run._told = math.inf  # it writes no metrics.prom
    return run


@pytest.mark.parametrize(
    ("mendable", "kind"), [(True, InputError), (False, EngineError)]
)
def test_run_without_any_record_failed(tmp_path, mendable, kind) -> None:
    """Its failures are told once."""
    run = _run()
    run._store = RecordStore(tmp_path)
    run._need_something()
    failure = Failure(
        checkpoint="dense", stage="load", reason="no kernel", mendable=mendable
    )
    run._board.abandon(failure)
    for _ in range(2):
        run._note_failures()
    assert run._board.bus.state.failures == (failure,)
    with pytest.raises(kind, match=f"nothing could be evaluated: {failure.text}"):
        run._need_something()
    run._store = SimpleNamespace(every_part=lambda: ["a part"])
    run._need_something()


def test_run_json_is_written_now_and_then() -> None:
    """For those who read it meanwhile. The log has each shard."""
    run, written = _run(), []
    run._directory.write = written.append
    quiet = SimpleNamespace(check=lambda *_, **__: None, running=(), short=False)
    for seconds, count in ((2, 0), (20, 1), (2, 1)):
        run._written -= seconds
        run._look_after(quiet, quiet, quiet)
        assert len(written) == count


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
    logs = Path("run/logs")
    CompressTasks(
        [to_prune], prepared, logs, free=None, bus=Bus(),
    ).start(ON_A_GPU)  # fmt: skip
    with Inspections(trust=False) as inspected:
        run._enqueue([dense], inspected)
    worker = run._worker(0, Placement(node_id="n", gpus=1, threads=1), {})
    sent += [run._board.take(0, None, None), worker._setup]
    paths = {Path(path) for path in re.findall(r"PosixPath\('(.*?)'\)", repr(sent))}
    assert {path.relative_to(tmp_path).as_posix() for path in paths} >= {
        "model", "run/checkpoints/wanda-0.5", "run/logs/engine-0.log",
        "run/logs/prune-wanda-0.5.log", "run/logs/prune-wanda-0.5.pulse",
    }  # fmt: skip
    assert sent[1].calibration.files == [("text.txt", tmp_path / "text.txt")]


GIB = 2**30
H100 = Room(memory=78 * GIB, total=80 * GIB, cores=16, gpus=1, mps=False)
ON_A_GPU = [Node(node_id="n", name="n", cpus=16, gpus=1)]


@pytest.mark.parametrize(("sharing", "share"), [(1, 0.9), (2, 0.45)])
def test_engines_share_the_memory(monkeypatch, sharing: int, share: float) -> None:
    run = _run()
    run._prepared.engine = EngineConfig()
    run._trial = Trial(sharing, "")
    monkeypatch.setattr(driver, "EngineWorker", lambda _, setup, **more: setup.config)
    place = Placement(node_id="n", gpus=1, threads=1)
    config = run._worker(0, place, {})
    assert (config.gpu_memory_utilization, config.shared_gpu) == (share, sharing > 1)


@pytest.mark.parametrize(
    ("wanted", "room", "most", "engines"),
    [
        ("auto", {}, 4, 1),
        ("auto", {"memory": 20 * GIB}, 2, 1),
        ("auto", None, 1, 1),
        (3, {}, 3, 3),
        (3, {"memory": None}, 3, 3),
        (1, {}, 1, 1),
    ],
)
def test_trial_has_the_room_of_the_gpu(monkeypatch, wanted, room, most, engines):
    run = _shared(monkeypatch, wanted, room)
    trial = run._trial_on(ON_A_GPU)
    assert (trial.most, trial.engines) == (most, engines)
    if room and room.get("memory"):
        assert run._memory == 0.25  # the rest is others'
    assert run._trial_on([replace(ON_A_GPU[0], gpus=0)]).most == 1


def test_more_engines_than_fit_are_refused(monkeypatch):
    run = _shared(monkeypatch, 5, {"memory": 20 * GIB})
    with pytest.raises(InputError) as caught:
        run._trial_on(ON_A_GPU)
    assert str(caught.value).startswith(
        "resources.engines_per_gpu: 5: there is room for 2: 20 GiB are free, the"
        " weights take 1.0"
    )


def test_engine_that_does_not_start_beside_others_is_left_out():
    """The run goes on with one fewer, and says so."""
    run, shared, told = _run(), [], []
    run._trial, run._report = Trial.of(3), told.append
    worker = SimpleNamespace(refused="out of memory")
    fleet = SimpleNamespace(first=lambda: None, workers=[worker], share=shared.append)
    for _ in range(2):
        run._share(fleet)
    assert shared == [2, 2]
    assert [event.text for event in told] == [
        "resources.engines_per_gpu: 2 on each GPU: another did not start: out of memory"
    ]


def _shared(monkeypatch, wanted, room):
    run = _run()
    run._resources = Resources(engines_per_gpu=wanted)
    run._prepared.engine = EngineConfig(max_model_len=500)
    run._prepared.largest = GIB
    found = None if room is None else replace(H100, **room)
    monkeypatch.setattr(driver, "room_of_gpus", lambda nodes: found)
    return run
