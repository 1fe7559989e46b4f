"""Two Ray nodes on this machine: what is sent is found from another directory, and engines stand where they should."""

import contextlib
import json

import pytest
import ray
import yaml

from evaluator.engine.config import EngineConfig
from launch.run.decide.assignments import EngineSetup
from launch.run.decide.nodes import place_engines
from launch.run.work.actors import GROUPS, EngineActor, start_actor
from launch.run.work.cluster import Cluster
from pruning.output.manifest import read_manifest
from tests.support import pruning as tiny
from tests.support.kills import ENGINE, Desk, check_same, family, parts, when
from tests.support.models import save_tiny_model
from tests.support.ray_nodes import in_own_process, ray_cluster
from tests.support.runs import finish, records

pytestmark = pytest.mark.slow


def _write_sweep(directory, **more):
    """A sweep in which everything is named relative to `directory`."""
    save_tiny_model(directory / "model")
    (directory / "text.txt").write_text("\n".join(tiny.lines(8)), encoding="utf-8")
    document = {
        "models": {"dense": "model"},
        "prune": [{"method": "wanda", "sparsity": 0.5}],
        "calibration": {"source": "text:text.txt", "samples": 8, "sequence_length": 32},
        "tasks": [{"task": "gazetteer", "items": 2, "languages": ["english"], "probes": ["greedy", "choice"]}],
        "engine": {"kind": "torch"},
    }
    (directory / "sweep.yaml").write_text(yaml.safe_dump(document | more), encoding="utf-8")


@pytest.mark.long
def test_relative_paths_are_found_by_a_node_that_was_started_elsewhere(tmp_path):
    """The head has no GPU, so that the prune task and the engine run on the other node."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    _write_sweep(here)
    with ray_cluster([(here, {"num_cpus": 1}), (there, {"num_cpus": 1, "num_gpus": 1})]) as nodes:
        finish("sweep", "sweep.yaml", "--out", "run", cwd=here, cluster=nodes.address)
    found = records(here / "run")
    assert set(found["checkpoint"]) == {"dense", "wanda-0.5"}
    assert set(found["status"]) == {"ok"}
    assert set(found[found["checkpoint"] == "wanda-0.5"]["calibration"]) == {"text:text.txt"}
    manifest = read_manifest(here / "run" / "checkpoints" / "wanda-0.5")
    assert manifest.config["calibration"]["source"] == "text:text.txt"
    assert not list(there.iterdir())
    identity = json.loads((here / "run" / "run.json").read_text())["identity"]
    assert identity["checkpoints"][0]["prune"]["calibration"]["source"] == "text:text.txt"
    assert str(tmp_path) not in json.dumps(identity)


def _placed(folder):
    """The nodes that three engines were to have, and those that they have."""
    with (
        ray_cluster([(folder, {"num_cpus": 4}), (folder, {"num_cpus": 1})]) as nodes,
        ray.init(address=nodes.address, log_to_driver=False),
        contextlib.closing(Cluster(local=False)) as machines,
    ):
        places = place_engines(machines.nodes(), 1, 3, spare=1)
        setups = [EngineSetup(config=EngineConfig(), log_path=folder / "log", place=place) for place in places]
        actors = [start_actor(EngineActor, setup, concurrency_groups=GROUPS) for setup in setups]
        stand = [where.node_id for where in ray.get([actor.where.remote() for actor in actors])]
    return [place.node_id for place in places], stand


def test_two_engines_without_gpus_stand_on_two_nodes(tmp_path):
    """The third one stands on the first node again, where there would be room for all."""
    places, stand = in_own_process(_placed, tmp_path)
    assert stand == places
    assert stand[0] != stand[1]
    assert stand[0] == stand[2]


@pytest.mark.long
def test_a_run_outlives_one_of_its_nodes(tmp_path):
    """An engine on each node; the second node is killed while its engine answers."""
    desk, run = Desk(tmp_path), tmp_path / "run"
    desk.finish(desk.sweep(), tmp_path / "undisturbed")
    with ray_cluster([(tmp_path, {"num_cpus": 4}), (tmp_path / "other", {"num_cpus": 4})]) as nodes:
        sweep = desk.sweep(shard_items=1, engines=2)
        driver = desk.start(sweep, run, variables={"RAY_ADDRESS": nodes.address})
        raylet = nodes.raylet(1)
        when(driver, lambda: parts(run) and family(raylet, f"{ENGINE}.evaluate"), desk.log(run))
        done = len(parts(run))
        nodes.kill(1)
        assert driver.wait() == 0, desk.log(run).read_text()
    assert len(parts(run)) > done, "it was over before the node died"
    check_same(run, records(tmp_path / "undisturbed"))
    # Nothing counts against a checkpoint whose engine's node was lost.
    assert not (run / "tables" / "failures.csv").exists()


@pytest.mark.long
def test_a_node_that_joins_a_run_gets_an_engine(tmp_path):
    """The first node's engine is paused until the second has a process, since it might be done before that."""
    desk, run = Desk(tmp_path), tmp_path / "run"
    desk.finish(desk.sweep(), tmp_path / "undisturbed")
    with ray_cluster([(tmp_path, {"num_cpus": 4})]) as nodes:
        sweep = desk.sweep(shard_items=1, engines=None)
        driver = desk.start(sweep, run, variables={"RAY_ADDRESS": nodes.address})
        first = when(driver, lambda: parts(run) and family(nodes.raylet(0), ENGINE), desk.log(run))
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


@pytest.mark.long
def test_gpus_that_others_hold(tmp_path):
    """More engines than fit are refused; one that finds no GPU is done without; a run without any ends by itself."""
    _write_sweep(tmp_path, prune=[])
    document = yaml.safe_load((tmp_path / "sweep.yaml").read_text(encoding="utf-8"))
    for name, resources in (("three", {"engines": 3}), ("short", {"placement_seconds": 3})):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(document | {"resources": resources}), encoding="utf-8")

    class Holder:
        """Somebody else's program on a GPU."""

        def ready(self) -> None: ...

    holder = ray.remote(num_gpus=1, num_cpus=0)(Holder)
    with ray_cluster([(tmp_path, {"num_cpus": 1}), (tmp_path, {"num_cpus": 1, "num_gpus": 2})]) as nodes:
        where = {"cwd": tmp_path, "cluster": nodes.address}
        refused = finish("sweep", "three.yaml", "--out", "three", code=2, **where)
        with ray.init(address=nodes.address, log_to_driver=False):
            held = [holder.remote()]
            ray.get(held[0].ready.remote())
            finish("sweep", "sweep.yaml", "--out", "run", **where)
            held.append(holder.remote())
            ray.get(held[1].ready.remote())
            without = finish("sweep", "short.yaml", "--out", "short", code=1, **where)
    assert "error: resources.engines: 3: 2 fit: 0 in 0 GPUs on " in refused.stderr.replace("\n", " ")
    engines = json.loads((tmp_path / "run" / "run.json").read_text())["engine_stats"]
    assert len({each["engine"] for each in engines}) == 1
    assert "no engine has found 1 free GPU on one node for" in without.stderr.replace("\n", " ")
