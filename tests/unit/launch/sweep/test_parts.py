"""A sweep in parts: which models belong together, and that a part has the names of the whole."""

from pathlib import Path

import pytest

from evaluator.core.errors import InputError
from launch.sweep.config import SweepConfig, validated
from launch.sweep.jobs import expand
from launch.sweep.parts import parts_of


def sweep(**more):
    document = {
        "models": {"a": "org/a", "b": "org/b", "c": "org/c"},
        "prune": [{"method": "magnitude", "sparsity": [0.5, 0.6]}],
        "tasks": [{"task": "gazetteer", "items": 1}],
    }
    return validated(SweepConfig, document | more, "sweep.yaml")


def jobs(config):
    """Without the hub."""
    asked = []

    def resolve(value):
        asked.append(value)
        return Path(value)

    return {job.name: job for job in expand(config, Path("RUN"), resolve)}, asked


def test_each_model_is_a_part():
    assert [part.models for part in parts_of(sweep())] == [("a",), ("b",), ("c",)]


def test_what_is_compared_belongs_together():
    config = sweep(models={"a": "org/a", "b": "org/b", "c": "org/c"}, base="b", prune=[])
    assert [part.models for part in parts_of(config)] == [("a", "b", "c")]


def test_a_compressed_checkpoint_that_is_given_goes_with_its_base():
    config = sweep(compress=[{"checkpoint": "org/a-int8", "label": "a-int8", "base": "a"}])
    assert [part.models for part in parts_of(config)] == [("a",), ("b",), ("c",)]
    assert [name for name, job in jobs(config.model_copy(update={"only": ("a",)}))[0].items() if not job.is_made] == [
        "a",
        "a-int8",
    ]


def test_joined_sweeps_have_the_parts_of_all_of_them():
    inner = sweep().model_copy(update={"models": {"d": "org/d"}})
    assert [part.name for part in parts_of(sweep(include=[inner]))] == ["d", "a", "b", "c"]


def test_the_parts_together_are_the_whole():
    whole, _ = jobs(sweep())
    parts = {}
    for part in parts_of(sweep()):
        some, fetched = jobs(sweep(only=part.models))
        assert fetched == [f"org/{name}" for name in part.models]  # no other model is needed
        assert not parts.keys() & some.keys()
        parts |= some
    assert parts == whole
    assert "a-magnitude-0.5" in whole


def test_a_part_that_lacks_a_base_or_names_no_model_is_refused():
    with pytest.raises(InputError, match="only: 'a' is compared with 'b', which is left out"):
        jobs(sweep(base="b", prune=[], only=["a"]))
    with pytest.raises(InputError, match="unknown model of `only`: 'd'"):
        jobs(sweep(only=["d"]))
