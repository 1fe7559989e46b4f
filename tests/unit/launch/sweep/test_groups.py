"""A sweep in parts: which models belong together, and that a part has the names of the whole."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from evaluator.deciding.thresholds import Screen
from launch.commands.running import print_estimate
from launch.sweep.config import SweepConfig
from launch.sweep.document import validated
from launch.sweep.jobs import check_screening, expand, parts_of, screened_groups
from tests.support.sweeps import refused


def config(**changes: Any) -> SweepConfig:
    document = {
        "models": {"dense": "bundled"},
        "prune": [{"method": "magnitude", "sparsity": [0.5, 0.6]}, {"method": "magnitude", "pattern": "2:4"}],
        "tasks": [{"task": "gazetteer", "items": 40, "languages": ["english"], "probes": ["greedy", "choice"]}],
    }
    return validated(SweepConfig, document | changes, "s.yaml")


def sweep(**changes):
    return config(models={"a": "org/a", "b": "org/b", "c": "org/c"}, **changes)


def groups(**changes: Any) -> dict[tuple[str, str], tuple[str, ...]]:
    return screened_groups(expand(config(**changes), Path("run"), resolve=Path))


def jobs(config):
    """Without the hub."""
    asked = []
    expanded = expand(config, Path("RUN"), lambda value: asked.append(value) or Path(value))
    return {job.name: job for job in expanded}, asked


def test_what_is_compared_belongs_together_and_a_given_checkpoint_goes_with_its_base():
    assert parts_of(sweep(base="b", prune=[])) == (("a", "b", "c"),)
    given = [{"checkpoint": "org/a-int8", "label": "a-int8", "base": "a"}]
    assert parts_of(sweep(compress=given)) == (("a",), ("b",), ("c",))
    part, _ = jobs(sweep(compress=given, only=("a",)))
    assert [name for name, job in part.items() if not job.is_made] == ["a", "a-int8"]


def test_the_parts_together_are_the_whole():
    whole, _ = jobs(sweep())
    parts = {}
    for part in parts_of(sweep()):
        some, fetched = jobs(sweep(only=part))
        assert fetched == [f"org/{name}" for name in part]  # no other model is needed
        assert not parts.keys() & some.keys()
        parts |= some
    assert parts == whole
    assert "a-magnitude-0.5" in whole


def test_a_part_that_lacks_a_base_or_names_no_model_is_refused():
    assert "only: 'a' is compared with 'b', which is left out" in refused(jobs, sweep(base="b", prune=[], only=["a"]))
    assert "unknown model of `only`: 'd'" in refused(jobs, sweep(only=["d"]))


def test_the_compressed_checkpoints_of_a_base_on_a_task_are_screened():
    made = ("magnitude-0.5", "magnitude-0.6", "magnitude-2of4")
    assert groups() == {("dense", "gazetteer"): made}
    two = groups(models={"a": "bundled", "b": "x"})
    assert two == {(name, "gazetteer"): tuple(f"{name}-{each}" for each in made) for name in ("a", "b")}


def test_a_task_needs_open_answers():
    choice = [{"task": "gazetteer", "items": 40, "probes": ["choice"]}]
    assert groups(tasks=choice) == {}
    told = refused(check_screening, expand(config(tasks=choice), Path("run"), resolve=Path), Screen())
    assert told.startswith("screen: there is nothing to screen: no compressed checkpoint and its base")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"screen": {"item": 3}}, "s.yaml: unknown key 'item'; did you mean 'items'?"),
        ({"screen": {"items": 9}}, "s.yaml: screen.items: 9: Input should be greater than or equal to 10"),
        ({"gate": {"max_drop": 6, "max_drop_language": 5}}, "max_drop_language: 5 contradicts max_drop: 6: it must be"),
        ({"gate": {"languages": False, "max_drop_language": 3}}, "max_drop_language: 3 contradicts languages: false"),
        ({"gate": dict.fromkeys(("max_drop", "max_mc_only", "max_lost"))}, "every threshold is null: there is nothing"),
    ],
)
def test_bad_settings_are_refused_in_one_line(changes, message):
    told = refused(config, **changes)
    assert told.startswith("s.yaml: ")
    assert message in told


@pytest.mark.parametrize(("first", "fewest"), [(10, 70), (100, 160)])
def test_a_dry_run_says_the_fewest_and_the_most_items(first, fewest):
    """4 checkpoints of 40 items; the base is evaluated on all, the others on 10 at least."""
    console = Console(file=io.StringIO(), width=200)
    print_estimate(console, config(screen={"items": first}))
    assert f"\nscreening: the sweep evaluates from {fewest} to 160 items; " in console.file.getvalue()
