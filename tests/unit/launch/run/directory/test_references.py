"""Where bases keep their distributions, who keeps any, how much place they take, and
what cannot have them."""

from pathlib import Path

import pytest

from evaluator.engine import ENGINES
from evaluator.engine.config import EngineConfig, EngineKind
from evaluator.probes.config import EvalConfig
from launch.run.decide.assignments import NO_BASE, BaseSource
from launch.run.directory.rundir import references_of
from launch.sweep.config import SweepConfig
from launch.sweep.estimate import estimate
from launch.sweep.jobs import CheckpointJob
from launch.sweep.preflight import prepare
from launch.sweep.preflight_checks import check_references, keeps_references
from launch.sweep.prepared_tasks import PreparedTask
from tests.support.fake import FakeEngine, FakeLM
from tests.support.registries import temporarily
from tests.support.sweeps import refused

TASK = EvalConfig(
    task="gazetteer",
    languages=("english",),
    items=4,
    probes=("greedy", "fidelity"),
    max_new_tokens=11,
)
POSITIONS = 4 * (11 + 9)  # greedy answers at their cap, and gold answers
BYTES = 2 * 192 + 4  # a position of the bundled model


def job(name: str, base: str | None = None) -> CheckpointJob:
    return CheckpointJob(name=name, path=Path(name), model=name, base=base, tasks={})


def prepared(config: EvalConfig = TASK) -> PreparedTask:
    return PreparedTask(name="gazetteer", key="k", config=config, questions=())


@pytest.mark.parametrize(
    ("number", "base", "keep", "compare", "missing"),
    [
        (0, None, "dense", "dense", None),
        (1, BaseSource(key="dense", path="/dense"), "middle", "dense", None),
        (2, BaseSource(key="middle", path="/middle"), "", "middle", None),
        (3, BaseSource(missing=NO_BASE), "", "", NO_BASE),
    ],
)
def test_base_keeps_distributions(tmp_path, number, base, keep, compare, missing):
    """Under its key: a checkpoint of another name and equal content has them too."""
    bases = {"dense": None, "middle": "dense", "last": "middle", "lost": "absent"}
    jobs = [job(name, bases[name]) for name in bases]
    name, kept = jobs[number].name, {"dense", "middle"}
    found = references_of(tmp_path, name, Path(f"/{name}"), base, kept)
    assert found.base == (f"/{compare}" if compare else "")
    folders = [each and str(tmp_path / "references" / each) for each in (keep, compare)]
    assert [found.keep, found.compare, found.missing] == [*folders, missing]
    assert keeps_references(jobs[number], jobs) == bool(keep)


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
    assert (of_base.reference_bytes, of_pruned.reference_bytes) == (
        POSITIONS * BYTES,
        0,
    )
    assert [each.reference_bytes for each in estimate(sweeps[1])] == [0, 0]
    disk = [prepare(sweep, tmp_path).disk_bytes for sweep in sweeps]
    assert disk[0] - disk[1] == POSITIONS * BYTES


def test_blind_engine_is_refused():
    blind = EngineKind(
        name="blind", help="", build=lambda _: FakeEngine(FakeLM().answer)
    )
    with temporarily(ENGINES, blind):
        told = refused(check_references, EngineConfig(kind="blind"), [prepared()])
        greedy = TASK.model_copy(update={"probes": ("greedy",)})
        check_references(EngineConfig(kind="blind"), [prepared(greedy)])
    assert "'blind' cannot compare distributions" in told
    check_references(EngineConfig(kind="torch"), [prepared()])
