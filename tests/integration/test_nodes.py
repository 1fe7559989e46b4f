"""Engines and prune tasks in a real Ray: on two nodes, and several on a GPU, where
there are GPUs by name only."""

import contextlib
import json
import os
import stat
import time
from pathlib import Path

import pytest
import ray
import yaml

from evaluator.checkpoints.manifests import PruneManifest, read_manifest
from evaluator.engine.config import EngineConfig
from launch.run.decide.assignments import EngineSetup
from launch.run.decide.nodes import compress_options, place_engines
from launch.run.work.actors import EngineActor, start_actor
from launch.run.work.cluster import Cluster
from launch.status import read_status
from tests.support import pruning as tiny
from tests.support.kills import ENGINE, Desk, check_same, family, parts, when
from tests.support.models import save_tiny_model
from tests.support.ray_nodes import FIRST_GPU, gpus_by_name, in_own_process, ray_cluster
from tests.support.runs import finish, records

pytestmark = [pytest.mark.slow, pytest.mark.more]


@contextlib.contextmanager
def _machines():
    cluster = Cluster(local=False)
    try:
        yield cluster
    finally:
        cluster.closed.set()


@pytest.mark.long
def test_two_engines_share_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an nvidia-smi that knows nothing but 80 GB. The second one, which Ray does
    not count, sees the GPU of the first. The records are those of one engine on the
    CPU."""
    desk, run, program = (
        Desk(tmp_path),
        tmp_path / "run",
        tmp_path / "bin" / "nvidia-smi",
    )
    desk.finish(desk.sweep(), tmp_path / "undisturbed")
    program.parent.mkdir()
    program.write_text("#!/bin/sh\ncase $1 in *memory*) echo 81559;; esac\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    gpu = f": {FIRST_GPU}"
    with ray_cluster([(tmp_path, {"num_cpus": 4, "num_gpus": 1})]) as nodes:
        sweep = desk.sweep(shard_items=1, engines=None, engines_per_gpu=2)
        driver = desk.start(sweep, run, variables={"RAY_ADDRESS": nodes.address})

        def both():
            return (
                found
                if len(found := family(nodes.raylet(0), ENGINE)) > 1 and parts(run)
                else []
            )

        first = when(driver, both, desk.log(run))
        shown = when(
            driver,
            lambda: [each for each in read_status(run).engines[1:] if each.gpu],
            desk.log(run),
        )
        first[0].kill()
        when(
            driver,
            lambda: [each for each in both() if each not in first],
            desk.log(run),
        )
        assert driver.wait() == 0, desk.log(run).read_text()
    assert "starting it again" in desk.log(run).read_text()
    assert [each.gpu.endswith(gpu) for each in shown] == [True]
    check_same(run, records(tmp_path / "undisturbed"))
    document = json.loads((run / "run.json").read_text())
    assert {each["engine"] for each in document["engine_stats"]} >= {0, 1}
    assert all(each["gpu"].endswith(gpu) for each in document["engine_stats"])
    assert all(
        gpu in (run / "logs" / f"engine-{number}.log").read_text() for number in (0, 1)
    )


@pytest.fixture
def one_gpu():
    with gpus_by_name(1):
        ray.init(
            address="local",
            num_cpus=1,
            num_gpus=1,
            include_dashboard=False,
            log_to_driver=False,
        )
        yield
        ray.shutdown()


def _of_this_process():
    return os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.usefixtures("one_gpu")
def test_prune_jobs_return_their_gpu() -> None:
    task = ray.remote(**compress_options(gpu=True))(_of_this_process)
    (first, given), (second, _) = ray.get(task.remote()), ray.get(task.remote())
    assert given == str(FIRST_GPU)
    assert first != second
    while Path(f"/proc/{first}").exists() or Path(f"/proc/{second}").exists():
        time.sleep(0.05)
    _, seen = ray.get(
        ray.remote(**compress_options(gpu=False))(_of_this_process).remote()
    )
    assert seen == ""


# ---- two nodes: what is sent is found from another directory, and engines stand where
# they should


def _write_sweep(directory, **more):
    save_tiny_model(directory / "model")
    (directory / "text.txt").write_text("\n".join(tiny.lines(8)), encoding="utf-8")
    document = {
        "models": {"dense": "model"},
        "prune": [{"method": "wanda", "sparsity": 0.5}],
        "calibration": {"source": "text:text.txt", "samples": 8, "sequence_length": 32},
        "tasks": [
            {
                "task": "gazetteer",
                "items": 2,
                "languages": ["english"],
                "probes": ["greedy", "choice"],
            }
        ],
        "engine": {"kind": "torch"},
    }
    (directory / "sweep.yaml").write_text(
        yaml.safe_dump(document | more), encoding="utf-8"
    )


@pytest.mark.long
def test_relative_paths_on_another_node(tmp_path):
    """The head has no GPU, so that the prune task and the engine run on the other
    node."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    _write_sweep(here)
    with ray_cluster(
        [(here, {"num_cpus": 1}), (there, {"num_cpus": 1, "num_gpus": 1})]
    ) as nodes:
        finish("sweep", "sweep.yaml", "--out", "run", cwd=here, cluster=nodes.address)
    found = records(here / "run")
    assert (set(found["checkpoint"]), set(found["status"])) == (
        {"dense", "wanda-0.5"},
        {"ok"},
    )
    assert set(found[found["checkpoint"] == "wanda-0.5"]["calibration"]) == {
        "text:text.txt"
    }
    manifest = read_manifest(here / "run" / "checkpoints" / "wanda-0.5", PruneManifest)
    assert manifest.config["calibration"]["source"] == "text:text.txt"
    assert not list(there.iterdir())
    identity = json.loads((here / "run" / "run.json").read_text())["identity"]
    assert (
        identity["checkpoints"][0]["prune"]["calibration"]["source"] == "text:text.txt"
    )
    assert str(tmp_path) not in json.dumps(identity)


def _placed(folder):
    with (
        ray_cluster([(folder, {"num_cpus": 4}), (folder, {"num_cpus": 1})]) as nodes,
        ray.init(address=nodes.address, log_to_driver=False),
        _machines() as machines,
    ):
        places = place_engines(machines.nodes(), 1, 3)
        setups = [
            EngineSetup(config=EngineConfig(), log_path=folder / "log", place=place)
            for place in places
        ]
        actors = [start_actor(EngineActor, setup) for setup in setups]
        stand = [
            where.node_id
            for where in ray.get([actor.where.remote() for actor in actors])
        ]
    return [place.node_id for place in places], stand


def test_engines_spread_over_cpu_nodes(tmp_path):
    """The third one stands on the first node again, where there would be room for
    all."""
    places, stand = in_own_process(_placed, tmp_path)
    assert stand == places
    assert stand[0] != stand[1]
    assert stand[0] == stand[2]


@pytest.mark.long
def test_joining_node_gets_an_engine(tmp_path):
    """The first node's engine is paused until the second has a process, since it
    might be done before that."""
    desk, run = Desk(tmp_path), tmp_path / "run"
    desk.finish(desk.sweep(), tmp_path / "undisturbed")
    with ray_cluster([(tmp_path, {"num_cpus": 4})]) as nodes:
        sweep = desk.sweep(shard_items=1, engines=None)
        driver = desk.start(sweep, run, variables={"RAY_ADDRESS": nodes.address})
        first = when(
            driver,
            lambda: parts(run) and family(nodes.raylet(0), ENGINE),
            desk.log(run),
        )
        for process in first:
            process.suspend()
        nodes.add(tmp_path / "other", {"num_cpus": 4})
        when(driver, lambda: family(nodes.raylet(1), ENGINE), desk.log(run))
        for process in first:
            process.resume()
        assert driver.wait() == 0, desk.log(run).read_text()
    assert "has joined" in desk.log(run).read_text()
    check_same(run, records(tmp_path / "undisturbed"))
    stats = json.loads((run / "run.json").read_text())["engine_stats"]
    assert len({each["node_id"] for each in stats}) == 2, stats
