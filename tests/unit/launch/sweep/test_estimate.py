"""What a sweep would cost: counts by hand, without a network and without starting
anything."""

import json
import os
import socket
import sys

import pytest

from evaluator.core.config import validated
from evaluator.probes.config import EvalConfig
from evaluator.tasks import loading
from launch.commands.dry_run import print_estimate
from launch.commands.terminal import console
from launch.sweep.config import RECIPES, SweepConfig, bundled_recipes, load_sweep
from launch.sweep.estimate import Work, estimate, seconds_of, work_of
from tests.support.sweeps import refused


def printed(config, run=None):
    with console.capture() as shown:
        print_estimate(config, run or {}, as_json=False)
    return shown.get()


def test_time_is_that_of_the_last_run():
    engine = {"requests": 100, "busy_seconds": 4.0, "waiting_seconds": 1.0}
    idle = {"requests": 0, "busy_seconds": None, "waiting_seconds": None}
    run = {"engine_stats": [engine, idle]}
    assert seconds_of(Work(requests=240), run) == 12.0
    assert seconds_of(Work(requests=240), {}) is None
    sweep = {"models": {"m": "Qwen/Qwen3-8B"}, "tasks": [{"task": "xquad", "items": 1}]}
    config = validated(SweepConfig, {**sweep, "controls": "none"}, "s.yaml")
    text = printed(config, run).replace("\n", " ")
    assert "of one engine as fast as in the last run, without starts" in text
    assert "as in the last run" not in printed(config)


def test_data_is_read_for_its_sizes_and_its_questions_alone(monkeypatch):
    """However many groups of items lack other records."""
    read, load = [], loading.load_task
    monkeypatch.setattr(
        loading,
        "load_task",
        lambda *given, **more: read.append(given) or load(*given, **more),
    )
    sweep = {"models": {"a": "bundled"}, "tasks": [{"task": "gazetteer"}]}
    config = validated(SweepConfig, {**sweep, "controls": "none"}, "s.yaml")
    groups = [({"probes": (name,)}, 3) for name in ("greedy", "choice", "rank")]
    (row,) = estimate(config, {("a", "gazetteer"): groups})
    assert row.work.items == 9
    assert len(read) == 2


def test_what_is_done_costs_nothing():
    sweep = {"models": {"a": "bundled", "b": "bundled"}, "controls": "none"}
    sweep["tasks"] = [{"task": "gazetteer", "items": 6, "languages": ["english"]}]
    config = validated(SweepConfig, sweep, "s.yaml")
    whole = [row.work for row in estimate(config)]
    seed = {"probes": ("sample",), "seeds": (1,)}
    left = {("a", "gazetteer"): [({}, 2), (seed, 3)], ("b", "gazetteer"): []}
    some, nothing = [row.work for row in estimate(config, left)]
    assert nothing == Work()
    assert whole[0].of(2).requests * 3 == whole[0].requests == whole[1].requests
    assert some.items == 2 + 3
    assert some.requests == whole[0].of(2).requests + 3 * 10


def test_work_by_hand():
    task = EvalConfig(task="tydiqa", items=200, languages=("bengali", "english"))
    work = work_of(task)
    assert work.items == 113 + 200  # Bengali has 113
    # greedy, 4 options (gold among them), aligned answer for each; 10 samples and 15
    # requests of the beams for the first 100
    assert work.requests == 313 * 6 + 200 * 25
    # a lead-in has at most the 32 tokens of a greedy answer
    assert work.prompt_tokens == 313 * (328 + 32)
    assert work.generated_tokens == 313 * (32 + 5 * 9) + 200 * (10 * 32 + 5 * 32)
    settings = {"task": "xquad", "items": 10, "languages": ("en",)}
    formats = work_of(
        EvalConfig(
            **settings,
            probes=("greedy",),
            formats=("open", "shown", "one_shot", "open_capped"),
        )
    )
    assert formats.requests == 40
    assert formats.prompt_tokens == 10 * (328 + 40 + 428 + 250)
    assert (
        work_of(
            EvalConfig(**settings, probes=("choice", "hard_choice", "rank"))
        ).requests
        == 10 * 7
    )


def test_data_on_this_machine_is_counted(tmp_path):
    (tmp_path / "book.txt").write_text("x" * 40_000, encoding="utf-8")
    work = work_of(
        EvalConfig(task=f"text:{tmp_path / 'book.txt'}", probes=("perplexity",))
    )
    assert work == Work(
        items=5, requests=157, prompt_tokens=10_000, generated_tokens=10_000
    )
    assert (
        work_of(EvalConfig(task="gazetteer", items=0, languages=("english",))).items
        == 300
    )
    row = {"id": "q", "language": "english", "context": "x" * 389, "question": "y" * 10}
    ungraded = {**row, "id": "none", "answers": [""]}  # it is not asked
    lines = map(json.dumps, ({**row, "answers": ["x"]}, ungraded))
    (tmp_path / "mine.jsonl").write_text("\n".join(lines), encoding="utf-8")
    mine = work_of(
        EvalConfig(task=f"jsonl:{tmp_path / 'mine.jsonl'}", probes=("rank",))
    )
    assert mine.items == 1
    assert mine.prompt_tokens == 100 + 20  # of 400 bytes, and the prompt's own words
    assert "did you mean 'bengali'" in refused(
        work_of, EvalConfig(task="tydiqa", languages=("bengal",))
    )


@pytest.mark.parametrize(
    "path", bundled_recipes().values(), ids=lambda path: str(path.relative_to(RECIPES))
)
def test_recipes_are_estimated_offline(path, monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", None)
    monkeypatch.setattr(socket, "getaddrinfo", None)
    imported = "ray" in sys.modules
    assert printed(load_sweep(path)).rstrip().endswith("fetched.")
    assert ("ray" in sys.modules) == imported


def test_unreadable_model_has_unknown_size(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"x")
    os.mkfifo(tmp_path / "config.json")
    sweep = {
        "models": {"odd": str(tmp_path)},
        "prune": [{"method": "magnitude", "sparsity": [0.5]}],
        "tasks": [{"task": "xquad"}],
    }
    text = printed(validated(SweepConfig, sweep, "s.yaml"))
    assert "and those of magnitude-0.5 (size unknown here)" in text
