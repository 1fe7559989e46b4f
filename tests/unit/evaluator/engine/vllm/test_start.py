"""How vLLM's engine is started, without one; it waits for the memory of a process that
has ended."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.core.errors import InputError
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm import start
from evaluator.engine.vllm.arguments import HEAD_SIZES
from evaluator.engine.vllm.start import BATCH_INVARIANT, BREAKABLE, wait_for_memory
from tests.support.sweeps import refused, rows

GIB = 2**30


@pytest.fixture
def environment(monkeypatch):
    """Of a process in which vLLM has not been imported."""
    # its parts stay: torch registers their types once
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    environment: dict[str, str] = {}
    monkeypatch.setattr(start.os, "environ", environment)
    return environment


@pytest.mark.parametrize(
    ("settings", "on_cpu", "variable"),
    [
        ({"deterministic": True}, False, BATCH_INVARIANT),
        ({"cuda_graphs": "piecewise"}, False, BREAKABLE),
        ({"cuda_graphs": "piecewise"}, True, None),
        ({"cuda_graphs": "full"}, False, None),
    ],
)
def test_import_variables_set_before_vllm(
    environment, monkeypatch, settings, on_cpu, variable
):
    monkeypatch.setattr(start, "serves_cpus", lambda: on_cpu)
    start._prepare_environment(EngineConfig(**settings))
    assert {BATCH_INVARIANT, BREAKABLE} & {*environment} == {variable} - {None}
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    start._prepare_environment(EngineConfig(**settings))
    if variable:
        del environment[variable]
        told = refused(start._prepare_environment, EngineConfig(**settings))
        assert f"engine: {next(iter(settings))}: " in told
        assert "vLLM is running in this process without it" in told


@pytest.mark.parametrize("capability", [75, 80])
def test_determinism_needs_a_newer_gpu(environment, monkeypatch, capability):
    platform = SimpleNamespace(
        is_cpu=lambda: False, has_device_capability=lambda wanted: capability >= wanted
    )
    monkeypatch.setattr(start, "_import_vllm", lambda: platform)
    monkeypatch.setattr(start, "_device_arguments", lambda *_: {}["reached"])
    config = EngineConfig(deterministic=True)
    with pytest.raises(KeyError if capability == 80 else InputError) as caught:
        start._start(config, None, Path())
    needed = "needs a GPU of compute capability 8.0 or more"
    assert (needed in str(caught.value)) == (capability < 80)


@pytest.mark.parametrize(
    ("installed", "served"),
    [
        ("0.32.0", True),
        ("0.32.1.dev7+gabc", True),
        ("0.31.2", False),
        ("0.320.0", False),
    ],
)
def test_other_versions_are_refused(monkeypatch, installed, served):
    monkeypatch.setattr(start, "installed_version", lambda: installed)
    if served:
        start.check_here(EngineConfig())
    else:
        told = refused(start.check_here, EngineConfig())
        assert told == (
            f"engine 'vllm': vLLM {installed} is installed, but Resurface needs vLLM"
            " 0.32"
        )


def test_cpus_are_not_deterministic(monkeypatch):
    monkeypatch.setattr(start, "installed_version", lambda: "0.32.0")
    monkeypatch.setattr(start, "serves_cpus", lambda: True)
    told = refused(start.check_here, EngineConfig(deterministic=True))
    assert "vLLM has no batch-invariant mode on a CPU" in told


@pytest.mark.parametrize(
    ("answer", "on_cpu", "outcome"),
    [
        (True, False, True),
        (False, True, False),
        (False, False, "served on CPUs only: install Triton"),
        (ValueError("Model Runner V2 requires Triton."), True, "cannot run its V2"),
    ],
)
def test_vllm_chooses_runner(monkeypatch, answer, on_cpu, outcome):
    def configured(arguments):
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(use_v2_model_runner=answer)

    monkeypatch.setattr(start, "_engine_config", configured)
    if isinstance(outcome, bool):
        assert start._runs_v2({}, on_cpu=on_cpu) is outcome
    else:
        with pytest.raises(InputError, match=outcome):
            start._runs_v2({}, on_cpu=on_cpu)


@pytest.fixture
def waited(monkeypatch):
    """The seconds of each pause, on a clock that only pauses move."""
    pauses: list[float] = []
    monkeypatch.setattr(start.time, "sleep", pauses.append)
    monkeypatch.setattr(start.time, "monotonic", lambda: sum(pauses))
    return pauses


@pytest.mark.parametrize(
    ("share", "free", "pauses"),
    [
        (0.9, [4, 40, 71, 72], 3),  # 72 of 80 are enough
        # one that has ended has not freed its part yet
        (0.45, [8, 44], 1),
        (0.9, [40] * 200, 120),  # somebody else's: vLLM refuses it
    ],
)
def test_start_waits_for_free_memory(monkeypatch, waited, share, free, pauses):
    """A minute at most."""
    seen = iter(free)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (next(seen) * GIB, 80 * GIB))
    wait_for_memory(share)
    assert len(waited) == pauses


def test_head_sizes_are_vllms():
    package = Path(importlib.util.find_spec("vllm").origin).parent
    text = (package / "v1/attention/backends/cpu_attn.py").read_text(encoding="utf-8")
    listed = re.search(r"def get_supported_head_sizes.*?return (\[.*?\])", text, re.S)
    assert tuple(json.loads(listed[1])) == HEAD_SIZES


# the last one: Mamba
HEADS = """
head_dim: 16 | head_dim: 16
num_attention_heads: 8 | hidden_size / num_attention_heads: 8
text_config: {head_dim: 24} | head_dim: 24
head_dim: 64 |
head_dim: 16, kv_lora_rank: 8 |
head_dim: 16, num_attention_heads: null |
"""


@pytest.mark.parametrize(("settings", "field"), rows(HEADS))
def test_unserved_heads_are_refused(tmp_path, monkeypatch, settings, field):
    monkeypatch.setattr(start, "serves_cpus", lambda: True)
    checkpoint = Checkpoint(tmp_path)
    usual = {"model_type": "qwen3", "hidden_size": 64, "num_attention_heads": 2}
    checkpoint.config_file.write_text(json.dumps(usual | settings))
    if not field:
        start.check_model(EngineConfig(), checkpoint)
    else:
        told = refused(start.check_model, EngineConfig(), checkpoint)
        assert told.startswith(f"{checkpoint.config_file}: {field}: vLLM's CPU att")
        assert "32, 64, 80" in told
    # a GPU computes all sizes
    monkeypatch.setattr(start, "serves_cpus", lambda: False)
    start.check_model(EngineConfig(), checkpoint)


@pytest.mark.parametrize(
    ("capability", "dtype", "own", "served"),
    [
        ("8.0", "auto", "bfloat16", True),
        ("7.5", "auto", "bfloat16", False),
        ("7.5", "bfloat16", "float16", False),
        ("7.5", "auto", "float16", True),
        ("7.5", "float32", "bfloat16", True),
    ],
)
def test_old_gpu_lacks_bfloat16(tmp_path, monkeypatch, capability, dtype, own, served):
    monkeypatch.setattr(start, "serves_cpus", lambda: False)
    monkeypatch.setattr(start, "nvidia_smi", lambda *_: ["9.0", capability])
    checkpoint = Checkpoint(tmp_path)
    stored = {"model_type": "qwen3", "dtype": own}
    checkpoint.config_file.write_text(json.dumps(stored))
    if served:
        start.check_model(EngineConfig(dtype=dtype), checkpoint)
    else:
        told = refused(start.check_model, EngineConfig(dtype=dtype), checkpoint)
        assert "bfloat16 on GPUs of compute capability 8.0 or more" in told
