"""What a rehearsal is given and what is remembered of it; the engine that it starts
is tested in tests/integration."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from evaluator.checkpoints.first_layer import first_layer, shortened
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.verify import rehearsal
from evaluator.engine.vllm.verify.rehearsal import Rehearsal, rehearse
from tests.support.checkpoint_files import CONFIG, write
from tests.support.models import save_tiny_model
from tests.support.quantised import LAYOUTS, WEIGHTS, quantise, with_quantisation

GOOD = Rehearsal(dtype="bfloat16", kernels=("SomeKernel",))
BAD = Rehearsal(reason="no kernel")


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return with_quantisation(write(tmp_path / "m"), LAYOUTS["w8a8"].config)


def test_rehearsal_remembers_successes_only(checkpoint, tmp_path, monkeypatch):
    asked: list[str] = []

    def in_a_process(_, config):
        asked.append(config.dtype)
        return GOOD if config.dtype == "bfloat16" else BAD

    monkeypatch.setattr(rehearsal, "_in_a_process", in_a_process)
    works = EngineConfig(dtype="bfloat16")
    for _ in range(2):
        assert rehearse(checkpoint, works) == GOOD
        assert rehearse(checkpoint, EngineConfig(dtype="float32")) == BAD
    assert asked == ["bfloat16", "float32", "float32"]
    (kept,) = (tmp_path / "cache" / "resurface" / "rehearsals").iterdir()
    kept.write_text("not JSON")
    assert rehearse(checkpoint, works) == GOOD
    with_quantisation(checkpoint, LAYOUTS["fp8"].config)
    assert rehearse(checkpoint, works) == GOOD
    assert len(asked) == 5
    # a cache that cannot be written is no error
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept))
    assert rehearse(checkpoint, works) == rehearse(checkpoint, works) == GOOD
    assert len(asked) == 7


def test_one_layer_is_rehearsed(tmp_path):
    """With its own weights, or the whole if it has other names."""
    dense = save_tiny_model(tmp_path / "dense", dtype="bfloat16")
    checkpoint = quantise(dense, tmp_path / "m", "w8a8")
    (tmp_path / "short").mkdir()
    short = first_layer(checkpoint, tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    assert config["num_hidden_layers"] == 1
    assert config["layer_types"] == ["full_attention"]
    assert config["quantization_config"] == LAYOUTS["w8a8"].config
    whole, kept = load_file(checkpoint / WEIGHTS), load_file(short / WEIGHTS)
    assert kept.keys() == {name for name in whole if "layers.1." not in name}
    assert len(kept) < len(whole)
    assert all(torch.equal(tensor, whole[name]) for name, tensor in kept.items())
    assert inspect_checkpoint(short).tensors == len(kept)
    plain = write(tmp_path / "plain")
    assert first_layer(plain, tmp_path / "short") == plain
    assert shortened(CONFIG) == CONFIG


def test_dead_rehearsal_is_an_answer(checkpoint, monkeypatch):
    real = subprocess.Popen
    program = "print('no space left'); raise SystemExit(3)"
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda _, **how: real([sys.executable, "-c", program], **how),
    )
    assert rehearse(checkpoint, EngineConfig()).reason == (
        "vLLM's process ended with exit code 3 (no space left) when it tried to"
    )
