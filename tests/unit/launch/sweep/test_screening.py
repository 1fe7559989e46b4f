"""Which checkpoints of a sweep are screened, what is wrong with `screen:`, and what a dry run says of it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from evaluator.errors import InputError
from evaluator.screen import Screen
from launch.commands.dry_run import print_estimate
from launch.sweep.config import SweepConfig, validated
from launch.sweep.jobs import expand
from launch.sweep.screening import check_screening, most_saved, screened_groups

SWEEP: dict[str, Any] = {
    "models": {"dense": "bundled"},
    "prune": [{"method": "magnitude", "sparsity": [0.5, 0.6]}, {"method": "magnitude", "pattern": "2:4"}],
    "tasks": [{"task": "gazetteer", "items": 40, "languages": ["english"], "probes": ["greedy", "choice"]}],
}


def config(**changes: Any) -> SweepConfig:
    return validated(SweepConfig, {**SWEEP, **changes}, "s.yaml")


def groups(rule: Screen, **changes: Any) -> dict[tuple[str, str], tuple[str, ...]]:
    return screened_groups(expand(config(**changes), Path("run"), resolve=Path), rule)


def test_the_compressed_checkpoints_of_a_base_on_a_task_are_screened_together():
    made = ("magnitude-0.5", "magnitude-0.6", "magnitude-2of4")
    assert groups(Screen()) == {("dense", "gazetteer"): made}
    two = groups(Screen(), models={"a": "bundled", "b": "x"})
    assert two == {(name, "gazetteer"): tuple(f"{name}-{each}" for each in made) for name in ("a", "b")}


def test_one_alone_is_the_best_and_may_still_be_blocked():
    one = [{"method": "magnitude", "sparsity": 0.5}]
    assert groups(Screen(), prune=one) == {}
    assert groups(Screen(against="gate"), prune=one) == {("dense", "gazetteer"): ("magnitude-0.5",)}


def test_a_task_needs_the_measure():
    rank = [{"task": "gazetteer", "items": 40, "probes": ["rank"]}]
    assert groups(Screen(), tasks=rank) == {}
    assert groups(Screen(measure="choice"), tasks=[{**SWEEP["tasks"][0], "probes": ["greedy"]}]) == {}
    with pytest.raises(InputError, match="screen: against: 'best': there is nothing to screen: no task with open or"):
        check_screening(expand(config(tasks=rank), Path("run"), resolve=Path), Screen())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"screen": {"item": 3}}, "s.yaml: unknown key 'item'; did you mean 'items'?"),
        ({"screen": {"against": "worst"}}, "s.yaml: screen.against: \"worst\": Input should be 'best' or 'gate'"),
        ({"screen": {"confidence": 1}}, "s.yaml: screen.confidence: 1: Input should be less than 1"),
        ({"screen": {"items": 0}}, "s.yaml: screen.items: 0: Input should be greater than or equal to 1"),
        ({"screen": {"against": "gate"}, "gate": {"max_drop": None}}, "s.yaml: screen: against: 'gate' needs a bound"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(changes, message):
    with pytest.raises(InputError) as caught:
        config(**changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_dry_run_says_the_fewest_and_the_most_items():
    # 4 checkpoints of 40 items; the best of three is asked everything, the others 10 at least.
    best, gate = _said(screen={"items": 10}), _said(screen={"items": 10, "against": "gate"})
    assert best.startswith("screening: from 100 to 160 items are asked; ")
    assert best.endswith("10 first, against the best, confidence 0.99")
    assert gate.startswith("screening: from 70 to 160 items are asked; ")
    assert most_saved({("dense", "t"): ("a", "b")}, {"t": 20}, Screen(items=100)) == 0


def _said(**changes: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_estimate(console, config(**changes))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return next((line for line in lines if line.startswith("screening")), "")
