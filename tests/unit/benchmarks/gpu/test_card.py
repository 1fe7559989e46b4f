"""The card of a GPU machine: what it runs, what it says, and that a machine without a GPU is one line."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.gpu import card
from benchmarks.gpu.card import SIZES, Row, commands, markdown, measured
from benchmarks.pruning.synthetic import SHAPES, parameters, write_checkpoint
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.engine.config import EngineConfig
from evaluator.errors import InputError
from tests.support.examined import CPU, GPU

TIMED = {"ratio": 3.0, "ratio_min": 2.5, "ratio_max": 3.5, "ours_s": 1.0, "theirs_s": 3.0, "agreement": "all alike"}
PRUNED = {"rows": [{"method": "wanda", "seconds": 12.0, "peak_gib": 3.0}]}


def test_the_shapes_have_the_sizes_of_the_models_that_they_are_named_after():
    """As Qwen's model cards count them: 0.6, 1.7 and 8.2 billion, embeddings included."""
    assert [round(parameters(SHAPES[name]) / 1e9, 1) for name in SIZES] == [0.6, 1.7, 8.2]


@pytest.mark.parametrize("tied", [True, False])
def test_a_random_checkpoint_is_a_whole_one(tmp_path, tied):
    shape = dataclasses.replace(
        SHAPES["8b"], hidden=32, intermediate=48, layers=2, heads=2, kv_heads=1, head_dim=16, vocabulary=64, tied=tied
    )
    model = write_checkpoint(tmp_path / "tiny", shape)
    info = inspect_checkpoint(model)
    tensors = load_file(model / "model.safetensors")
    assert sum(tensor.numel() for tensor in tensors.values()) == parameters(shape)
    assert ("lm_head.weight" in tensors) != tied
    assert json.loads((model / "config.json").read_text())["tie_word_embeddings"] is tied
    assert torch.isfinite(tensors["model.embed_tokens.weight"].float()).all()
    assert info.path == model


@pytest.mark.long
def test_every_command_is_a_benchmark_with_options_that_it_knows(tmp_path):
    assert [name for name, _ in commands(tmp_path)] == ["pass", "score", "swap", "prune"]
    for name, command in commands(tmp_path / "nowhere", deterministic=True):
        assert "nowhere" in str(measured(command)), name  # the model is the first thing that is wrong


def test_the_cost_of_deterministic_is_measured_beside_the_same_pass_without(tmp_path):
    """The two differ in that one setting of our engine; the other side is the same."""
    both = dict(commands(tmp_path, deterministic=True))
    plain, deterministic = both["pass"], both["pass, deterministic"]
    (place,) = (n for n, (one, other) in enumerate(zip(plain, deterministic, strict=True)) if one != other)
    assert plain[place - 1] == "--engine-args"
    assert json.loads(deterministic[place]) == json.loads(plain[place]) | {"deterministic": True}
    assert EngineConfig(**json.loads(deterministic[place])).deterministic


def test_the_card_says_what_deterministic_costs():
    slower = TIMED | {"ours_s": 1.4}
    rows = [
        Row(shape="0.6b", benchmark="pass", answer=TIMED),
        Row(shape="0.6b", benchmark="pass, deterministic", answer=slower),
    ]
    said = "0.6b: with `engine: {deterministic: true}`, our pass took 1.40 times as long."
    assert said in markdown(GPU, rows).splitlines()
    refused = Row(shape="0.6b", benchmark="pass, deterministic", answer="error: engine: deterministic: no such mode")
    text = markdown(GPU, [rows[0], refused])
    assert "times as long" not in text
    assert "| 0.6b | pass, deterministic |  |  |  | error: engine: deterministic: no such mode |" in text


def test_the_card_has_a_row_for_each_and_says_what_failed():
    rows = [
        Row(shape="0.6b", benchmark="score", answer=TIMED),
        Row(shape="0.6b", benchmark="prune", answer=PRUNED),
        Row(shape="8b", benchmark="pass", answer="out of memory"),
    ]
    text = markdown(GPU, rows)
    assert text.startswith("# a GPU: benchmarks\n")
    assert "| 0.6b | score | 1.00 | 3.00 | 3.00 (2.50-3.50) | all alike |" in text
    assert "| 0.6b | prune, wanda | 12.0 |  |  | peak 3.0 GiB |" in text
    assert "| 8b | pass |  |  |  | out of memory |" in text
    assert "| GPU 0 | a GPU, 80 GiB, driver 580.1, sm 9.0 |" in text


def test_a_benchmark_answers_or_says_why_not():
    assert measured([sys.executable, "-c", "print('table'); print('{\"ratio\": 2}')"]) == {"ratio": 2}
    assert measured([sys.executable, "-c", "raise SystemExit('no memory')"]) == "no memory"
    assert measured([sys.executable, "-c", "raise SystemExit(3)"]) == "exit code 3"


def test_a_machine_without_a_gpu_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(card, "this_machine", lambda: CPU)
    monkeypatch.setattr(sys, "argv", ["card", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        card.run_main(card.main)
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "error: no NVIDIA GPU answers on this machine (nvidia-smi): there is nothing to make a card of\n"
    )
    with pytest.raises(InputError, match="unknown shape of a random model '9b'"):
        card.make(GPU, ["9b"], tmp_path)


def test_cards_are_written_as_the_benchmarks_end(tmp_path, monkeypatch):
    written: list[str] = []
    monkeypatch.setattr(card, "write_checkpoint", lambda path, shape: path)
    monkeypatch.setattr(card, "measured", lambda command: PRUNED if "benchmarks.pruning.prune" in command else TIMED)
    monkeypatch.setattr(card.subprocess, "run", lambda *_, **__: type("Done", (), {"returncode": 0}))
    monkeypatch.setattr(card, "write_atomically", lambda path, text: written.append(f"{path.name}: {len(text)}"))
    card.make(GPU, ["0.6b"], tmp_path)
    assert len(written) == 5  # the first shape has a second pass
    card.make(GPU, ["1.7b"], tmp_path)
    assert len(written) == 9
    assert all(line.startswith("a-gpu.md: ") for line in written)
