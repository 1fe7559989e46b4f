"""The list of a night: its order, its arguments, and that what it names exists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gpu import night
from benchmarks.gpu.steps import TESTS, VARIANTS, steps
from evaluator.engine.config import EngineConfig
from tests.gpu.__main__ import collected

OUT = Path("/nowhere")
ON_A_GPU = steps(OUT, shape="0.6b", tiny=False, gpu=True)


def test_the_cheapest_decisive_checks_come_first():
    names = [step.name for step in ON_A_GPU]
    assert names[:6] == ["imports", *TESTS, "doctor", "pace"]
    assert names[6:] == [
        *("model", "pass", "pass-compile", "pass-piecewise", "pass-decode", "prune", "tests", "kernels"),
        *("pass-deterministic", "score", "swap"),
    ]


def test_the_decisive_part_fits_into_half_an_hour_even_where_every_limit_is_reached():
    limits = {step.name: step.seconds for step in ON_A_GPU}
    assert sum(limits[name] for name in ("imports", *TESTS, "doctor", "pace", "model", "pass", "pass-compile")) <= 1800


@pytest.mark.parametrize("name", VARIANTS)
def test_every_pass_is_one_setting_of_an_engine(name):
    (step,) = (step for step in ON_A_GPU if step.name == name)
    settings = json.loads(step.command[step.command.index("--engine-args") + 1])
    config = EngineConfig(**settings)
    assert {field: getattr(config, field) for field in VARIANTS[name]} == VARIANTS[name]
    assert len(VARIANTS[name]) == (name != "pass")
    assert config.gpu_memory_utilization < 0.5  # the other side has an engine on the same GPU


def test_without_a_gpu_no_argument_is_for_one():
    for step in steps(OUT, shape="tiny", tiny=True, gpu=False):
        if "gpu" not in step.needs:
            assert not [each for each in step.command if "gpu_memory" in each or "cuda.bindings" in each], step.name


@pytest.mark.slow
def test_the_tests_that_it_names_exist():
    named = [f"tests/gpu/test_engine_gpu.py::{test}" for test in TESTS.values()]
    assert collected(named) == named


@pytest.mark.long
def test_every_command_is_a_benchmark_with_options_that_it_knows(tmp_path):
    for step in steps(tmp_path, shape="0.6b", tiny=False, gpu=True):
        if "model" in step.needs:
            assert str(tmp_path / "night.tmp" / "model") in str(night.run(step, tmp_path).reason), step.name
