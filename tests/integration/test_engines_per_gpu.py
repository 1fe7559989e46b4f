"""Engines that share a GPU, and prune tasks, in a real Ray that has GPUs by name only."""

import contextlib
import json
import os
import stat
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from evaluator.engine.config import EngineConfig
from launch.run.decide.assignments import EngineSetup
from launch.run.decide.nodes import GPU_SHARE, Place, place_engines, prune_options
from launch.run.work.actors import GROUPS, EngineActor, start_actor
from launch.run.work.cluster import Cluster
from launch.status import read_status
from tests.support.kills import ENGINE, Desk, check_same, family, parts, when
from tests.support.ray_nodes import FIRST_GPU, gpus_by_name, in_own_process, ray_cluster
from tests.support.runs import records

pytestmark = pytest.mark.slow


def _given() -> tuple[str, str]:
    return os.environ["CUDA_VISIBLE_DEVICES"], os.environ[GPU_SHARE]


def _fill(folder: Path) -> tuple[list[str], str, list[str], str]:
    """GPUs of five engines on two for three each, of a prune task and its share, and of two engines after that."""
    with (
        ray_cluster([(folder, {"num_cpus": 2, "num_gpus": 2})]) as nodes,
        ray.init(address=nodes.address, log_to_driver=False),
        contextlib.closing(Cluster(local=False)) as machines,
    ):
        nodes = [replace(node, sharing=3) for node in machines.nodes()]
        *five, sixth = place_engines(nodes, 1, None, spare=1)

        def start(places: list[Place]) -> tuple[list[Any], list[str]]:
            setups = [EngineSetup(config=EngineConfig(), log_path=folder / "log", place=place) for place in places]
            actors = [start_actor(EngineActor, setup, concurrency_groups=GROUPS) for setup in setups]
            return actors, [where.gpu.split(": ")[1] for where in ray.get([actor.where.remote() for actor in actors])]

        actors, stand = start(five)
        seen, share = ray.get(ray.remote(**prune_options(gpu=True, sharing=3, memory=0.9))(_given).remote())
        ray.kill(actors[0])
        actors[:1], more = start([five[0], sixth])
        return stand, seen, more, share


def test_thirds_of_two_gpus_are_all_found_and_one_that_is_free_again_is_taken(tmp_path: Path) -> None:
    """Five engines and a prune task: a part that Ray rounded up would leave no room for the last of three."""
    stand, seen, more, share = in_own_process(_fill, tmp_path)
    thirds = [f"{gpu} (1/3)" for gpu in (FIRST_GPU, FIRST_GPU + 1)]
    assert sorted([*stand, f"{seen} (1/3)"]) == sorted(thirds * 3)
    assert float(share) == 0.3
    assert sorted(more) == sorted([stand[0], f"{seen} (1/3)"])


@pytest.mark.long
def test_two_engines_share_a_gpu_and_a_dead_one_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto`, with an nvidia-smi that knows nothing but 80 GB. The records are those of one engine on the CPU."""
    desk, run, program = Desk(tmp_path), tmp_path / "run", tmp_path / "bin" / "nvidia-smi"
    desk.finish(desk.sweep(), tmp_path / "undisturbed")
    program.parent.mkdir()
    program.write_text("#!/bin/sh\ncase $1 in *memory*) echo 81559;; esac\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    gpu = f": {FIRST_GPU} (1/2)"
    with ray_cluster([(tmp_path, {"num_cpus": 4, "num_gpus": 1})]) as nodes:
        sweep = desk.sweep(shard_items=1, engines=None, engines_per_gpu="auto")
        driver = desk.start(sweep, run, variables={"RAY_ADDRESS": nodes.address})

        def both():
            return found if len(found := family(nodes.raylet(0), ENGINE)) > 1 and parts(run) else []

        first = when(driver, both, desk.log(run))
        shown = when(driver, lambda: read_status(run).engines[1:], desk.log(run))
        first[0].kill()
        when(driver, lambda: [each for each in both() if each not in first], desk.log(run))
        assert driver.wait() == 0, desk.log(run).read_text()
    assert "resources.engines_per_gpu: auto: 2 on each GPU" in desk.log(run).read_text()
    assert "starting it again" in desk.log(run).read_text()
    assert [each.gpu.endswith(gpu) for each in shown] == [True]
    check_same(run, records(tmp_path / "undisturbed"))
    document = json.loads((run / "run.json").read_text())
    assert document["engines_per_gpu"] == 2
    assert all(each["gpu"].endswith(gpu) for each in document["engine_stats"])
    assert all(gpu in (run / "logs" / f"engine-{number}.log").read_text() for number in (0, 1))


@pytest.fixture
def one_gpu():
    with gpus_by_name(1):
        ray.init(address="local", num_cpus=1, num_gpus=1, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


def _of_this_process():
    return os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.usefixtures("one_gpu")
def test_the_process_of_a_prune_task_is_gone_when_the_next_one_has_its_gpu() -> None:
    task = ray.remote(**prune_options(gpu=True))(_of_this_process)
    (first, given), (second, _) = ray.get(task.remote()), ray.get(task.remote())
    assert given == str(FIRST_GPU)
    assert first != second
    while Path(f"/proc/{first}").exists() or Path(f"/proc/{second}").exists():
        time.sleep(0.05)


@pytest.mark.usefixtures("one_gpu")
def test_a_prune_task_on_a_cpu_does_not_see_the_gpus_of_its_node() -> None:
    _, seen = ray.get(ray.remote(**prune_options(gpu=False))(_of_this_process).remote())
    assert seen == ""
