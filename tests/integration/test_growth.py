"""A run that grows call by call in a random order, on a real engine, is the run that
had everything from the start."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from tests.support.kills import check_tables, tables
from tests.support.models import save_tiny_model
from tests.support.runs import assert_alike, finish, records

pytestmark = [pytest.mark.slow, pytest.mark.long]
# the first of each is there from the start
LISTS: dict[str, list[Any]] = {
    "models": ["a", "b"],
    "prune": [{"method": "magnitude", "sparsity": 0.5}],
    "languages": ["english", "korean"],
    "probes": ["sample", "greedy", "choice", "rank"],
    "tasks": ["first", "second"],
}
START = dict.fromkeys(("languages", "probes", "models", "tasks", "items", "seeds"), 1)
FULL = {name: len(values) for name, values in LISTS.items()} | {"items": 3, "seeds": 2}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(LISTS["models"]):
        save_tiny_model(folder / name, seed=seed)
    return folder


def _run(models: Path, size: Mapping[str, int], run: Path) -> None:
    """With the first of everything."""
    some = {name: values[: size[name]] for name, values in LISTS.items()}
    task = {
        "task": "gazetteer",
        "items": size["items"],
        "seeds": list(range(size["seeds"])),
        "languages": some["languages"],
        "probes": some["probes"],
        "max_new_tokens": 4,
        "samples": 2,
    }
    document = {
        "models": {name: str(models / name) for name in some["models"]},
        "base": "a",
        "prune": some["prune"],
        "tasks": [task | {"name": name} for name in some["tasks"]],
        "engine": {"kind": "torch"},
        "resources": {"shard_items": 2},
    }
    file = run.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    finish("sweep", file, "--out", run)


@pytest.fixture(scope="module")
def whole(models: Path) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    run = models / "whole"
    _run(models, FULL, run)
    return records(run), tables(run)


@pytest.mark.parametrize("seed", range(3))
def test_any_growth_ends_the_same(
    models: Path,
    whole: tuple[pd.DataFrame, dict[str, pd.DataFrame]],
    tmp_path: Path,
    seed: int,
) -> None:
    draw, run = random.Random(seed), tmp_path / "run"
    size = START | {"prune": 0}
    _run(models, size, run)
    while size != FULL:
        left = [name for name in sorted(FULL) if size[name] < FULL[name]]
        for name in draw.sample(left, min(len(left), draw.randint(2, 5))):
            size[name] = draw.randint(size[name] + 1, FULL[name])
        _run(models, size, run)
    rows, expected = whole
    assert_alike(records(run), rows)
    check_tables(run, expected)
