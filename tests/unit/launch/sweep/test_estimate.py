"""What a sweep would cost: counts by hand, without a network and without starting
anything."""

import json
import os
import re
import socket
import sys

import pytest

from evaluator.checkpoints.served import Endpoint
from evaluator.core.config import validated
from evaluator.probes.config import EvalConfig
from launch.commands.dry_run import print_estimate
from launch.commands.terminal import console
from launch.sweep import machines
from launch.sweep.config import RECIPES, SweepConfig, bundled_recipes, load_sweep
from launch.sweep.estimate import Work, estimate, parameters_of, work_of
from launch.sweep.machines import machine_of
from tests.support.sweeps import refused

H100 = machine_of("H100")


def printed(config, machine="H100"):
    with console.capture() as shown:
        print_estimate(config, machine_of(machine))
    return shown.get()


@pytest.mark.parametrize(
    ("value", "name", "gpus"),
    [
        ("H100", "1 x H100", 1),
        ("8 x H100", "8 x H100", 8),
        ("8 H100", "8 x H100", 8),
        ("2xa100", "2 x A100", 2),
        (" rtx 4090 ", "1 x RTX 4090", 1),
        ("cpu", "this CPU, ", 0),
        (None, "this CPU, ", 0),
    ],
)
def test_machines_are_named(monkeypatch, value, name, gpus):
    monkeypatch.setattr(machines, "count_gpus", lambda: 0)
    machine = machine_of(value)
    assert machine.name.startswith(name)
    assert machine.gpus == gpus


@pytest.mark.parametrize(
    ("device", "gpus", "name"),
    [
        ("NVIDIA L40S, NVIDIA L40S", 2, "2 x L40S"),
        ("NVIDIA GeForce RTX 4090", 1, "1 x RTX 4090"),
        ("NVIDIA Unheard", None, "1 x H100"),
    ],
)
def test_own_gpus_are_known(monkeypatch, device, gpus, name):
    monkeypatch.setattr(machines, "device", lambda: device)
    monkeypatch.setattr(machines, "count_gpus", lambda: gpus)
    assert machine_of(None).name == name


def test_unknown_machines_are_refused():
    assert "unknown --machine 'H10'; did you mean 'H100'?" in refused(machine_of, "H10")
    assert "did you mean 'H100'?" in refused(machine_of, "8 x H10")
    for value in ("", "0 x H100", "8", "x\ny"):
        assert "unknown --machine" in refused(machine_of, value)


def test_machines_differ_in_time():
    sweep = {"models": {"m": "Qwen/Qwen3-8B"}, "tasks": [{"task": "xquad"}]}
    config = validated(SweepConfig, {**sweep, "controls": "none"}, "s.yaml")
    hours = {}
    for name in ("H100", "A100", "cpu"):
        (row,) = estimate(config, machine_of(name))
        hours[name] = row.evaluation_hours
    assert 1.5 < hours["A100"] / hours["H100"] < 989 / 312
    assert hours["cpu"] > 100 * hours["A100"]
    assert re.search(
        r"about \d+ min( \d+ s)? on 8 x H100 \([\w ]+ of GPUs\)",
        printed(config, "8 x H100"),
    )


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
    sweep["controls"] = "none"
    config = validated(
        SweepConfig, sweep | {"resources": resources, "engine": engine}, "s.yaml"
    )
    said = f", for {shared} at a time: {shared} engines share a GPU"
    assert (said in printed(config).replace("\n", " ")) == (shared > 1)
    (alone,), (found,) = (
        estimate(validated(SweepConfig, sweep, "s.yaml"), H100),
        estimate(config, H100),
    )
    python = 0.002 * found.work.requests / 3600
    assert found.evaluation_hours == pytest.approx(
        alone.evaluation_hours - python * (1 - 1 / shared)
    )


def test_gguf_files_take_time(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(bytes(600))
    assert parameters_of(str(file)) == 1000
    assert parameters_of(Endpoint(url="http://here")) == 0.0


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
    row = {"id": "q", "language": "english", "context": "x" * 389, "question": "y" * 10}
    line = json.dumps({**row, "answers": ["x"]})
    (tmp_path / "mine.jsonl").write_text(f"{line}\n", encoding="utf-8")
    mine = work_of(
        EvalConfig(task=f"jsonl:{tmp_path / 'mine.jsonl'}", probes=("rank",))
    )
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
    here = printed(load_sweep(path), "cpu")
    assert ("on this CPU" in here, "of GPUs" in here) == (True, False)
    assert here.rstrip().endswith("fetched.")
    text = printed(load_sweep(path))
    assert "of GPUs" in text
    assert "?" not in text.split("of GPUs")[0]  # the size of every model is known
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
