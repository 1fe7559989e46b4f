"""A night's list of steps, its cards and its summary."""

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.gpu import night
from benchmarks.gpu.steps import TESTS, VARIANTS, Card, markdown, read, steps
from evaluator.engine.config import EngineConfig
from tests.gpu.__main__ import collected
from tests.support.doctor import GPU

TIMED = {"ratio": 3.0, "ratio_min": 2.5, "ratio_max": 3.5, "ours_s": 1.0, "theirs_s": 3.0, "agreement": "all alike"}


def passed(step, **fields):
    return Card(step=step, state="passed", seconds=12.3, return_code=0, **fields)


def test_the_summary_has_the_machine_and_a_row_of_each_step():
    cards = {
        "score": passed("score", result=TIMED),
        "prune": Card(step="prune", state="failed", reason="exit code 1: out of memory | none", seconds=3.0),
        "tests": Card(step="tests", state="skipped", reason="no GPU"),
    }
    lines = markdown(GPU, ["score", "prune", "tests", "swap"], cards).splitlines()
    assert lines[0] == "# a GPU: a night"
    assert "| GPU 0 | a GPU, 80 GiB, driver 580.1, sm 9.0 |" in lines
    assert lines[-4:] == [
        "| score | passed | 12 | ours 1.00 s, theirs 3.00 s, ratio 3.00 (2.50-3.50); all alike |",
        r"| prune | failed | 3 | exit code 1: out of memory \| none |",
        "| tests | skipped | 0 | no GPU |",
        "| swap | not run |  |  |",
    ]


def test_a_file_that_is_no_card_counts_as_none(tmp_path):
    card = passed("pass", command=["sh"], last_lines=["one"], result=TIMED)
    (tmp_path / "pass.json").write_text(json.dumps(dataclasses.asdict(card)))
    (tmp_path / "score.json").write_text('{"step": "sc')
    (tmp_path / "swap.json").write_text("[]")
    (tmp_path / "prune.json").write_text('{"colour": "red"}')
    assert read(tmp_path, ["pass", "score", "swap", "prune", "absent"]) == {"pass": card}


ON_A_GPU = steps(Path("/nowhere"), shape="0.6b", tiny=False, gpu=True)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_pass_is_one_setting_of_an_engine(name):
    (step,) = (step for step in ON_A_GPU if step.name == name)
    settings = json.loads(step.command[step.command.index("--engine-args") + 1])
    config = EngineConfig(**settings)
    assert {field: getattr(config, field) for field in VARIANTS[name]} == VARIANTS[name]
    assert len(VARIANTS[name]) == (name != "pass")
    assert config.gpu_memory_utilization < 0.5  # the other side has an engine on the same GPU


@pytest.mark.slow
def test_the_tests_that_it_names_exist():
    named = [f"tests/gpu/test_engine_gpu.py::{test}" for test in TESTS.values()]
    assert collected(named) == named


@pytest.mark.long
def test_every_command_is_a_benchmark_with_options_that_it_knows(tmp_path):
    for step in steps(tmp_path, shape="0.6b", tiny=False, gpu=True):
        if "model" in step.needs:
            assert str(tmp_path / "night.tmp" / "model") in str(night.run(step, tmp_path).reason), step.name
