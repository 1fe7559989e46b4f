"""What `resurface render slurm` writes, run by a real Slurm of two nodes."""

import json
import os
import shlex
import sys
import time
from pathlib import Path

import pytest

from evaluator.core.isolated import environment
from tests.support.kills import Desk, check_same, parts
from tests.support.runs import finish, records
from tests.support.slurm import lacking, slurm

_LACKING = lacking()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(_LACKING is not None, reason=str(_LACKING)),
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return Desk(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def undisturbed(desk):
    run = desk.directory / "undisturbed"
    desk.finish(desk.sweep(shard_items=1), run)
    return records(run)


@pytest.fixture(scope="module")
def nodes(desk):
    with slurm(desk.directory / "slurm") as made:
        yield made


def _rendered(sweep: Path, run: Path, *more: str) -> Path:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    packages = shlex.quote(environment()["PYTHONPATH"])
    setup = f"export HF_HUB_OFFLINE=1 PATH={shlex.quote(path)} PYTHONPATH={packages}"
    folder = run.with_suffix(".cluster")
    finish(
        "render",
        "slurm",
        sweep,
        "--out",
        run,
        "--to",
        folder,
        "--setup",
        setup,
        "--cpus",
        "2",
        *more,
    )
    return folder


def _begun(nodes, job: str, run: Path, folder: Path) -> None:
    while len(parts(run)) < 3:
        assert nodes.job(job)["JobState"] in ("PENDING", "CONFIGURING", "RUNNING"), (
            _said(folder)
        )
        time.sleep(0.1)


def _said(folder: Path) -> str:
    return "\n".join(
        file.read_text(errors="replace") for file in folder.glob("slurm-*.out")
    )


@pytest.mark.parametrize("mode", ["symmetric", "start"])
def test_sweep_uses_slurms_gpus(desk, nodes, mode):
    """GPUs by name: the engines take one each, and compute on the CPU. What is
    pruned is pruned where there is one."""
    sweep, run = desk.directory / "gpus.yaml", desk.directory / f"gpus-{mode}"
    sweep.write_text("""
models: {dense: model}
prune: [{method: magnitude, sparsity: [0.3, 0.5]}]
tasks: [{task: gazetteer, items: 300, languages: [english], probes: [greedy, choice]}]
engine: {kind: torch}
resources: {shard_items: 1}
""")
    folder = _rendered(sweep, run, "--nodes", "2", "--gpus", "2", "--mode", mode)
    ended = nodes.ended(nodes.submit(folder / "sweep.sbatch"))
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), _said(folder)
    assert set(records(run)["checkpoint"]) == {
        "dense",
        "magnitude-0.3",
        "magnitude-0.5",
    }
    stats = json.loads((run / "run.json").read_text())["engine_stats"]
    assert {each["node"] for each in stats} == {"n1", "n2"}
    assert "engine 3" in _said(folder)  # two nodes with two GPUs each


@pytest.mark.parametrize(("mode", "lost"), [("symmetric", "n2"), ("start", "n1")])
def test_a_node_goes_down(desk, nodes, undisturbed, mode, lost):
    """Without its first node a job begins again; without another it goes on until
    Slurm has it begin again."""
    run = desk.directory / f"{mode}-without-{lost}"
    folder = _rendered(
        desk.sweep(shard_items=1, engines=None), run, "--nodes", "2", "--mode", mode
    )
    job = nodes.submit(folder / "sweep.sbatch")
    _begun(nodes, job, run, folder)
    nodes.lose(lost)
    while (found := nodes.job(job))["JobState"] == "RUNNING" and found[
        "Restarts"
    ] == "0":
        time.sleep(0.5)
    nodes.add(lost)
    ended = nodes.ended(job)
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), _said(folder)
    assert lost == "n2" or ended["Restarts"] == "1"
    check_same(run, undisturbed)
    nodes.wait_for_nodes()


@pytest.mark.parametrize("mode", ["symmetric", "start"])
def test_job_restarts_at_time_limit(desk, nodes, undisturbed, mode):
    run = desk.directory / f"{mode}-limited"
    folder = _rendered(
        desk.sweep(shard_items=1, engines=None),
        run,
        "--nodes",
        "2",
        "--mode",
        mode,
        "--time",
        "60",
    )
    job = nodes.submit(folder / "sweep.sbatch")
    _begun(nodes, job, run, folder)
    hours, minutes, _ = map(int, nodes.job(job)["RunTime"].split(":"))
    # the warning comes now
    nodes.run(
        "scontrol", "update", f"JobId={job}", f"TimeLimit={hours * 60 + minutes + 2}"
    )
    while nodes.job(job)["Restarts"] == "0":
        assert nodes.job(job)["JobState"] in (
            "RUNNING",
            "COMPLETING",
            "PENDING",
            "REQUEUED",
        ), _said(folder)
        time.sleep(0.5)
    # in order
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted"
    nodes.run("scontrol", "update", f"JobId={job}", "TimeLimit=60")
    ended = nodes.ended(job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == (
        "COMPLETED",
        "0:0",
        "1",
    ), _said(folder)
    check_same(run, undisturbed)
    nodes.wait_for_nodes()
