"""A run that grows by a random programme, with two kills, is the run that had everything
from the start: tasks, items, seeds, probes, formats, checkpoints, names and orders.

Driver, store, probes and pruning are real; the engine is pretended. A seed that fails
fails again: it is in the test's name, and its programme is printed."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evaluator.metrics import TABLES
from evaluator.report import read_inputs
from tests.support.models import save_tiny_model
from tests.support.pretended_engine import SHORT, run_here
from tests.support.runs import records

# the first of each is there from the start
LISTS: dict[str, list[Any]] = {
    "models": ["a", "b", "copy"],
    "languages": ["english", "korean"],
    "probes": ["greedy", "choice", "sample", "rank", "aligned_rank", "fidelity"],
    # without `one_shot`: its example belongs to the task's content, so a task that is
    # renamed as its example moves is another task, and the former one stays beside it
    "formats": ["open", "shown", "open_capped"],
    "tasks": ["first", "second", "other"],
}
FULL = {name: len(values) for name, values in LISTS.items()}
FULL |= {"prune": 1, "items": 3, "seeds": 2}
WITHIN = 8  # shards, of which a kill takes any
TABLES_OF = ("accuracy", "fates", "seeds", "rank", "fidelity")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate("ab"):
        save_tiny_model(folder / name, seed=seed)
    shutil.copytree(folder / "a", folder / "copy")
    return folder


def _sweep(draw: random.Random, size: dict[str, int], models: Path) -> dict[str, Any]:
    """The first of everything, in any order, under any names."""
    some = {name: LISTS[name][: size[name]] for name in LISTS}
    end, task_end = (draw.choice(["", "-x"]) for _ in range(2))
    task = {
        "task": "gazetteer",
        "items": size["items"],
        "languages": draw.sample(some["languages"], size["languages"]),
        "probes": draw.sample(some["probes"], size["probes"]),
        "formats": draw.sample(some["formats"], size["formats"]),
        **SHORT,
    }
    if "sample" in some["probes"]:
        task["seeds"] = draw.sample(range(size["seeds"]), size["seeds"])
    tasks = []
    for name in draw.sample(some["tasks"], size["tasks"]):
        # two have equal content
        own = {"name": name + task_end, "grading": "strict"}
        tasks.append(task | own | ({"max_new_tokens": 3} if name == "other" else {}))
    chosen = draw.sample(some["models"], size["models"])
    prune = [{"method": "magnitude", "sparsity": 0.5}]
    return {
        "models": {name + end: str(models / name) for name in chosen},
        "base": "a" + end,
        "prune": prune if size["prune"] else [],
        "tasks": tasks,
        "controls": "none",
        "resources": {"shard_items": draw.randint(1, 3)},
    }


def _sizes(draw: random.Random) -> Iterator[dict[str, int]]:
    size = dict.fromkeys(FULL, 1) | {"prune": 0}
    yield size
    while left := [name for name in sorted(FULL) if size[name] < FULL[name]]:
        size = dict(size)
        for name in draw.sample(left, min(len(left), draw.randint(2, 5))):
            size[name] = draw.randint(size[name] + 1, FULL[name])
        yield size


def _stated(run: Path) -> Any:
    """What tables read beside the records."""
    document = json.loads((run / "run.json").read_text())
    made = {row["name"]: row["weights_digest"] for row in document["checkpoints"]}
    return made, document["planned"], document["identity"]


@pytest.mark.parametrize(
    "seed",
    [*range(3), *(pytest.param(n, marks=pytest.mark.more) for n in range(3, 20))],
)
def test_any_programme_ends_the_same(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draw = random.Random(f"programme {seed}")
    run, whole = tmp_path / "run", tmp_path / "whole"
    sweeps = [_sweep(draw, size, models) for size in _sizes(draw)]
    kills = [draw.randrange(len(sweeps)) for _ in range(2)]
    for number, document in enumerate(sweeps):
        moments = [draw.randrange(WITHIN) for _ in range(kills.count(number))]
        print(f"seed {seed}, call {number}, kills after {moments} shards: {document}")
        for moment in moments:
            run_here(monkeypatch, document, run, shards=moment)
        if not moments or number == len(sweeps) - 1 or draw.random() < 0.5:
            run_here(monkeypatch, document, run)
    run_here(monkeypatch, sweeps[-1], whole)
    pd.testing.assert_frame_equal(records(run), records(whole))
    assert _stated(run) == _stated(whole)
    found, expected = (read_inputs(each) for each in (run, whole))
    for table in map(TABLES.__getitem__, TABLES_OF):
        frames = table.fill(found).frame, table.fill(expected).frame
        pd.testing.assert_frame_equal(*frames, obj=table.name)
    assert run_here(monkeypatch, sweeps[-1], run).asked == []
