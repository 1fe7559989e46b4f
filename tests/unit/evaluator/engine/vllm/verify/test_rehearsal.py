"""What a rehearsal is given and what is remembered of it; the engine that it starts
is tested in tests/integration."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.verify import rehearsal
from evaluator.engine.vllm.verify.rehearsal import (
    Rehearsal,
    first_layer,
    rehearse,
    shortened,
)
from tests.support.checkpoint_files import CONFIG, write
from tests.support.models import save_tiny_model
from tests.support.quantised import LAYOUTS, WEIGHTS, quantise, with_quantisation

GOOD = Rehearsal(dtype="bfloat16", kernels=("SomeKernel",))
BAD = Rehearsal(reason="no kernel")


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return with_quantisation(write(tmp_path / "m"), LAYOUTS["w8a8"].config)


@pytest.fixture
def asked(monkeypatch):
    """The dtypes that a process was started for, which finds that only bfloat16
    works."""
    dtypes: list[str] = []

    def in_a_process(_, config):
        dtypes.append(config.dtype)
        return GOOD if config.dtype == "bfloat16" else BAD

    monkeypatch.setattr(rehearsal, "_in_a_process", in_a_process)
    return dtypes


def test_rehearsal_remembers_successes_only(checkpoint, asked, tmp_path):
    """What has worked is remembered of its scheme and what has not is tried again."""
    for _ in range(2):
        assert rehearse(checkpoint, EngineConfig(dtype="bfloat16")) == GOOD
        assert rehearse(checkpoint, EngineConfig(dtype="float32")) == BAD
    assert asked == ["bfloat16", "float32", "float32"]
    config = EngineConfig(dtype="bfloat16")
    (kept,) = (tmp_path / "cache" / "resurface" / "rehearsals").iterdir()
    kept.write_text("not JSON")
    assert rehearse(checkpoint, config) == GOOD
    with_quantisation(checkpoint, LAYOUTS["fp8"].config)
    assert rehearse(checkpoint, config) == GOOD
    assert len(asked) == 3 + 2


def test_one_layer_is_rehearsed(tmp_path):
    """One layer is rehearsed with its own weights or the whole if it has other
    names."""
    dense = save_tiny_model(tmp_path / "dense", dtype="bfloat16")
    checkpoint = quantise(dense, tmp_path / "m", "w8a8")
    (tmp_path / "short").mkdir()
    short = first_layer(checkpoint, tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    assert (config["num_hidden_layers"], config["layer_types"]) == (
        1,
        ["full_attention"],
    )
    assert config["quantization_config"] == LAYOUTS["w8a8"].config
    whole, kept = load_file(checkpoint / WEIGHTS), load_file(short / WEIGHTS)
    assert (
        kept.keys()
        == {name for name in whole if "layers.1." not in name}
        < whole.keys()
    )
    assert all(torch.equal(tensor, whole[name]) for name, tensor in kept.items())
    assert inspect_checkpoint(short).tensors == len(kept)
    plain = write(tmp_path / "plain")
    assert first_layer(plain, tmp_path / "short") == plain
    assert shortened(CONFIG) == CONFIG


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGABRT)",
            "vLLM's process died of SIGABRT when it tried to",
        ),
        (
            "print('no space left'); raise SystemExit(3)",
            "ended with exit code 3 (no space left) when it tried to",
        ),
    ],
)
def test_dead_rehearsal_is_an_answer(checkpoint, monkeypatch, program, reason):
    real = subprocess.Popen
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda _, **how: real([sys.executable, "-c", program], **how),
    )
    found = rehearse(checkpoint, EngineConfig(dtype="bfloat16"))
    assert found.reason is not None
    assert reason in found.reason
