"""Our driver on vLLM's own core and V2 runner, for a GPU that computes nothing."""

import hashlib
import json
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import host
from benchmarks.pruning.synthetic import SHAPES, write_checkpoint
from benchmarks.serving import workload
from evaluator.checkpoints.tokenizer import read_eos_ids
from evaluator.core.errors import InputError
from evaluator.engine.base import Generate, Score
from launch.sweep.models import vocabulary_of
from tests.support import v2
from tests.support.fake import FakeEngine
from tests.support.runs import resurface_apart
from tests.support.scripted import TOP, ScriptedLM, idle_share

PACE = 0.004


def marks(between: float, steps: int = 50) -> list[tuple[float, bool]]:
    """An engine that is two steps ahead, and takes so long between two launches."""
    every = [(0.0, True)]
    for step in range(1, steps):
        every += [(step * between, True), (step * between, False)]
    return every


@pytest.mark.parametrize(
    ("between", "engines", "idle"),
    [(0.5, 1, 0.0), (1.5, 1, 1 / 3), (4.0, 1, 3 / 4), (4.0, 2, 1 / 2), (4.0, 4, 0.0)],
)
def test_slow_host_leaves_gpu_idle(between: float, engines: int, idle: float) -> None:
    """By what its host takes for a step, in steps of the GPU, unless others use it."""
    shared = [marks(between * PACE)] * engines
    assert idle_share(shared, PACE, 0.0) == pytest.approx(idle, abs=0.05)


def test_launches_take_time_too() -> None:
    assert idle_share([marks(PACE / 2)], PACE, 0.0) == 0.0
    share = idle_share([marks(PACE / 2)], PACE, PACE)
    assert share == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize(
    ("idle", "engines"),
    [
        ([0.25, 0.0], 1),
        ([0.7, 0.4, 0.1, 0.0], 3),
        ([0.7, 0.4, 0.25, 0.05], 4),
        ([0.5, 0.45, 0.0], 1),
    ],
)
def test_engines_are_added_while_they_gain(idle, engines) -> None:
    """As in a run: not where one engine keeps its GPU busy, nor for less than a
    seventh."""
    assert host.settled(idle) == engines


def test_script_answers_like_a_model() -> None:
    script = ScriptedLM(vocabulary=50, eos_id=3)
    asked = {"request_id": "a", "prompt_ids": (5, 6, 7)}
    greedy = script.answer(Generate(**asked, max_tokens=20, top_logprobs=TOP))
    assert 1 <= len(greedy.token_ids) <= 20
    assert [ids[0] for ids in greedy.top_ids] == list(greedy.token_ids)
    scored = script.answer(Score(**asked, continuation_ids=greedy.token_ids))
    assert scored.logprobs == greedy.logprobs
    assert set(scored.ranks) == {1}
    sampled = Generate(**asked, max_tokens=20, temperature=1.0, seed=4)
    assert script.answer(sampled) == script.answer(sampled)
    assert script.answer(sampled).logprobs == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pace", "-1"), "argument --pace: '-1' is not a number from 0 to 1000"),
        (("--op-us", "fast"), "argument --op-us: 'fast' is not a number"),
        (("--engines", "none"), "argument --engines: 'none' is not a count"),
        (("--items", "5000"), "--items 5000: gazetteer has "),
        (("--engine-args", '{"rows": 2}'), "--engine-args: "),
    ],
)
def test_wrong_options_are_told(monkeypatch, options, message) -> None:
    """Before an engine starts."""
    monkeypatch.setattr(v2, "missing", lambda: None)
    monkeypatch.setattr("sys.argv", ["host", *options])
    with pytest.raises(InputError, match=re.escape(message)):
        host.main()


def test_missing_triton_is_told(monkeypatch) -> None:
    monkeypatch.setattr(v2, "missing", lambda: "no Triton")
    monkeypatch.setattr("sys.argv", ["host"])
    with pytest.raises(InputError, match="no Triton"):
        host.main()


def digest_of_script(folder: Path, first: int, **options: Any) -> str:
    """Of the records of an engine that is the script itself."""
    model = write_checkpoint(folder / "model", SHAPES["tiny"])
    script = ScriptedLM(vocabulary_of(model), min(read_eos_ids(model)))
    engine = FakeEngine(script.answer, reorder_seed=3)
    read = host.questions(Namespace(**options, model=model), first)
    records = host.one_round(engine, read)
    assert {record.status for record in records} <= {"ok", "excluded"}
    assert {record.probe for record in records} == set(workload.PROBES)
    return hashlib.sha256("\n".join(sorted(map(repr, records))).encode()).hexdigest()


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.skipif(v2.missing() is not None, reason=str(v2.missing()))
def test_runner_hands_out_what_the_script_says(tmp_path: Path) -> None:
    """Two engines with few rows, on vLLM's own scheduler and runner, have the records
    of an engine that is the script itself."""
    sizes = {"items": 6, "context_tokens": 60, "engines": 2}
    options = [f"--{name.replace('_', '-')}={size}" for name, size in sizes.items()]
    done = resurface_apart("bench", "host", *options, "--rows", "16", "--pace", "1")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["digests"] == [
        digest_of_script(tmp_path / str(number), number, task="gazetteer", **sizes)
        for number in range(2)
    ]
    assert 0 < figures["idle_share"] < 1
    parts = figures["parts"]
    assert figures["host_ms_a_step"] == pytest.approx(sum(parts.values()))
    assert min(parts.values()) > 0
    assert set(parts) == {
        *("requests", "hashing", "scheduler", "preparation", "launches", "copies"),
        *("outputs", "tokenising", "ours"),
    }
    assert figures["loop_us"] > 0
    # the runner has a dozen kernels, and most steps copy parts of blocks in 28 layers
    assert 10 < figures["launches"] < 25
    assert figures["ops"] > 28
    assert 1 < figures["rows"] <= 16
