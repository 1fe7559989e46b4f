"""What a sweep would cost: counts by hand, without a network and without starting
anything."""

import io
import os
import socket
import sys

import pytest
from rich.console import Console

from evaluator.probes.config import EvalConfig
from launch.commands import dry_run
from launch.commands.dry_run import print_estimate
from launch.sweep.config import RECIPES, SweepConfig, bundled_recipes, load_sweep
from launch.sweep.document import validated
from launch.sweep.estimate import Work, estimate, work_of
from tests.support.sweeps import gazetteer, refused


def printed(config, gpus=1):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dry_run, "count_gpus", lambda: gpus)
        return _printed(config)


def _printed(config):
    console = Console(file=io.StringIO(), width=100)
    print_estimate(console, config)
    return console.file.getvalue()


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
    greedy = work_of(EvalConfig(**settings, probes=("greedy",)))
    assert (greedy.items, greedy.requests) == (10, 10)
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


@pytest.mark.parametrize(
    ("resources", "engine", "shared"),
    [
        ({}, {}, 1),
        ({"engines_per_gpu": "auto"}, {}, 2),  # 8 GB of 80
        ({"engines_per_gpu": "auto"}, {"dtype": "float32"}, 1),  # 16 GB
        ({"engines_per_gpu": "auto"}, {"tensor_parallel": 2}, 1),
    ],
)
def test_sharing_engines_overlap(resources, engine, shared):
    sweep = {"models": {"small": "Qwen/Qwen3-4B"}, "tasks": [{"task": "xquad"}]}
    config = validated(
        SweepConfig, sweep | {"resources": resources, "engine": engine}, "s.yaml"
    )
    said = f", for {shared} at a time: {shared} engines share a GPU"
    assert (said in printed(config).replace("\n", " ")) == (shared > 1)
    (alone,), (found,) = (
        estimate(validated(SweepConfig, sweep, "s.yaml")),
        estimate(config),
    )
    python = 0.002 * found.work.requests / 3600
    assert found.evaluation_hours == pytest.approx(
        alone.evaluation_hours - python * (1 - 1 / shared)
    )


def test_auto_sharing_needs_small_models():
    def shared(engines=None, **more):
        sweep = {"models": {"a": "b"}, "tasks": [{"task": "xquad"}]}
        sweep["resources"] = {"engines": engines, "engines_per_gpu": "auto"}
        return validated(SweepConfig, sweep, "s.yaml").sharing(
            **({"weights": 9, "memory": 80, "gpus": 2} | more)
        )

    found = [
        shared(),
        shared(weights=10),
        shared(memory=None),
        shared(engines=2),
        shared(engines=3),
    ]
    assert found == [2, 1, 1, 1, 2]


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
    here = printed(load_sweep(path), gpus=0)
    assert ("hours are estimated" in here, "GPU hours" in here, "TFLOP" in here) == (
        True,
        False,
        False,
    )
    text = printed(load_sweep(path))
    assert "GPU hours" in text
    assert "?" not in text.split("GPU hours")[0]  # the size of every model is known
    assert ("ray" in sys.modules) == imported


@pytest.mark.parametrize("damage", ["none", "pipe"])
def test_absent_model_has_unknown_size(tmp_path, damage):
    weights, described = tmp_path / "model.safetensors", tmp_path / "config.json"
    described.write_text("[" * 100_000 if damage == "deep" else "{}")
    weights.write_bytes(b"x")
    if damage == "pipe":
        described.unlink()
        os.mkfifo(described)
    sweep = {
        "models": {"odd": "org/unheard-of" if damage == "none" else str(tmp_path)},
        "tasks": [{"task": "xquad"}],
    }
    assert "their size is unknown here: odd" in printed(
        validated(SweepConfig, sweep, "s.yaml")
    )


@pytest.mark.parametrize(("first", "fewest"), [(10, 70)])
def test_dry_run_says_item_range(first, fewest):
    """4 checkpoints of 40 items; the base is evaluated on all, the others on 10 at
    least."""
    task = gazetteer(items=40, probes=["greedy", "choice"])
    pruned = {"method": "magnitude", "sparsity": [0.5, 0.6, 0.7]}
    sweep = {
        "models": {"dense": "bundled"},
        "prune": [pruned],
        "tasks": [task],
        "screen": {"items": first},
    }
    said = printed(validated(SweepConfig, sweep, "s.yaml"))
    assert f"\nscreening: the sweep evaluates from {fewest} to 160 items; " in said
