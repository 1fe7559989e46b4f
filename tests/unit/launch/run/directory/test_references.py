"""Where bases keep their distributions, who keeps any, how much place they take, and
what cannot have them."""

from pathlib import Path

import pytest

from evaluator.core.errors import InputError
from evaluator.engine import ENGINES
from evaluator.engine.config import EngineConfig, EngineKind
from evaluator.probes.config import EvalConfig
from launch.run.decide.assignments import NO_BASE, BaseSource
from launch.run.directory.rundir import drop_references, references_of
from launch.sweep.config import SweepConfig
from launch.sweep.estimate import estimate
from launch.sweep.jobs import CheckpointJob
from launch.sweep.preflight import prepare
from launch.sweep.preflight_checks import (
    check_references,
    keeps_references,
    reference_bytes,
)
from launch.sweep.prepared_tasks import PreparedTask
from tests.support.fake import FakeEngine, FakeLM

TASK = EvalConfig(
    task="gazetteer",
    languages=("english",),
    items=4,
    probes=("greedy", "fidelity"),
    max_new_tokens=11,
)
POSITIONS = 4 * (11 + 9)  # greedy answers at their cap, and gold answers
BUNDLED_VOCABULARY = 3072


def job(name: str, base: str | None = None) -> CheckpointJob:
    return CheckpointJob(name=name, path=Path(name), model=name, base=base, tasks={})


def prepared(config: EvalConfig = TASK) -> PreparedTask:
    return PreparedTask(name="gazetteer", key="k", config=config, questions=())


def test_base_keeps_distributions_until_dropped(tmp_path):
    jobs = [
        job("dense"),
        job("middle", "dense"),
        job("last", "middle"),
        job("lost", "absent"),
    ]
    folder = str(tmp_path / "references" / "dense" / "t")
    dense = references_of(tmp_path, jobs[0], "t", None, jobs)
    assert (dense.keep, dense.compare, dense.missing) == (folder, folder, None)
    middle = references_of(tmp_path, jobs[1], "t", BaseSource(name="dense"), jobs)
    assert (middle.keep, middle.compare) == (
        str(tmp_path / "references" / "middle" / "t"),
        folder,
    )
    last = references_of(tmp_path, jobs[2], "t", BaseSource(name="middle"), jobs)
    assert (last.keep, last.compare) == ("", middle.keep)
    lost = references_of(tmp_path, jobs[3], "t", BaseSource(missing=NO_BASE), jobs)
    assert (lost.keep, lost.compare, lost.missing) == ("", "", NO_BASE)
    assert [keeps_references(each, jobs) for each in jobs] == [True, True, False, False]
    file = tmp_path / "references" / "dense" / "t" / "one.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    drop_references(tmp_path)
    assert not (tmp_path / "references").exists()
    drop_references(tmp_path)  # there may be none


@pytest.mark.parametrize(
    ("top", "dtype", "bytes_each"),
    [
        (0, "auto", 4 * 1000),
        (0, "float32", 4 * 1000),
        (0, "bfloat16", 2 * 1000),
        (64, "auto", 8 * 64),
        (5000, "auto", 8000),
    ],
)
def test_their_size(top, dtype, bytes_each):
    config = TASK.model_copy(update={"fidelity_top": top})
    assert reference_bytes(config, 7, 1000, dtype) == 7 * bytes_each


def test_estimate_counts_distributions(tmp_path):
    without = TASK.model_copy(update={"probes": ("greedy",)})
    sweeps = [
        SweepConfig(
            models={"dense": "bundled"},
            prune=({"method": "magnitude", "sparsity": 0.5},),
            tasks=(each,),
        )
        for each in (TASK, without)
    ]
    of_base, of_pruned = estimate(sweeps[0])
    assert (of_base.references, of_pruned.references) == (
        POSITIONS * BUNDLED_VOCABULARY * 4,
        0,
    )
    assert [each.references for each in estimate(sweeps[1])] == [0, 0]
    disk = [prepare(sweep, tmp_path).disk_bytes for sweep in sweeps]
    assert disk[0] - disk[1] == POSITIONS * BUNDLED_VOCABULARY * 4
    blind = EngineKind(
        name="blind", help="", build=lambda _: FakeEngine(FakeLM().answer)
    )
    with ENGINES.temporarily(blind):
        with pytest.raises(
            InputError,
            match=r"'blind' cannot compare distributions.*fidelity.*use vllm or torch",
        ):
            check_references(EngineConfig(kind="blind"), [prepared()])
        check_references(
            EngineConfig(kind="blind"),
            [prepared(TASK.model_copy(update={"probes": ("greedy",)}))],
        )
    check_references(EngineConfig(kind="torch"), [prepared()])
