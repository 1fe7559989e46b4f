"""A whole sweep through the real driver, with engines that are only pretended: whoever dies, the records are all there,
each once, and as they would have been."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.cluster.answers import Answers
from benchmarks.cluster.pretended_ray import Deaths, PretendedRay
from benchmarks.cluster.simulation import mistakes, simulate
from benchmarks.cluster.sweep import BASE, TASK, Size, made_up, questions_of
from launch.run.status import read_status

SIZE = Size(engines=8, checkpoints=20, items=40, shard_items=10)
PREPARED = made_up(SIZE)
SHARDS = SIZE.checkpoints * SIZE.items // SIZE.shard_items


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers(questions_of(PREPARED))


def _ray(answers: Answers, deaths: Deaths) -> PretendedRay:
    return PretendedRay(nodes=4, gpus=2, answers=answers, deaths=deaths)


def test_engines_and_nodes_that_die_change_no_record(answers: Answers, tmp_path: Path) -> None:
    ray = _ray(answers, Deaths(actors=8, nodes=2, within=SHARDS, seed=1))
    cost = simulate(PREPARED, ray, tmp_path)
    assert ray.died["actors"] + ray.died["nodes"] == 10
    assert ray.died["nodes"] > 0
    assert cost.outcome.failures == ()
    assert cost.outcome.items == SIZE.checkpoints * SIZE.items
    assert mistakes(PREPARED, answers, tmp_path) == {}
    status = read_status(tmp_path)
    assert (status.state, status.done, status.count("done")) == ("finished", cost.outcome.items, SIZE.checkpoints)


def test_an_undisturbed_run_and_what_is_found_wrong_with_a_disturbed_one(answers: Answers, tmp_path: Path) -> None:
    simulate(PREPARED, _ray(answers, Deaths()), tmp_path)
    assert mistakes(PREPARED, answers, tmp_path) == {}
    folder = tmp_path / "records" / BASE / TASK
    first, second, third, _ = sorted(folder.glob("*.parquet"))
    first.unlink()
    pq.write_table(pq.read_table(second).slice(0, 1), folder / "more.parquet")  # an item's first record again
    third.replace(tmp_path / "records" / PREPARED.jobs[1].name / TASK / third.name)
    assert mistakes(PREPARED, answers, tmp_path) == {"missing": 20, "twice": 1, "different": 2}
