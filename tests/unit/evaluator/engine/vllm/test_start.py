"""What vLLM's engine is asked for on a GPU, without one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from evaluator.checkpoints.blueprint import Blueprint, read_blueprint
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm import start
from tests.support.engines import needs_vllm
from tests.support.models import save_tiny_model


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if vLLM were installed beside a GPU of 79 GiB."""
    platforms = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(get_device_total_memory=lambda: 79 * 2**30)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)


def blueprint(dtype: str = "bfloat16") -> Blueprint:
    model = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32}
    return Blueprint(
        config=model, tensors={}, files=(), dtype=dtype, bytes=16 * 10**9, vocabulary=151_936, longest=40_960
    )


def asked(config: EngineConfig, dtype: str = "bfloat16") -> dict[str, Any]:
    return start._on_gpu(config, blueprint(dtype), config.max_model_len)


@pytest.mark.usefixtures("gpu")
def test_a_checkpoint_is_computed_in_its_own_dtype():
    assert asked(EngineConfig(), "float32")["dtype"] == "float32"  # vLLM's "auto" would be bfloat16
    assert asked(EngineConfig(), "bfloat16")["dtype"] == "bfloat16"
    assert asked(EngineConfig(), "float16")["dtype"] == "float16"
    assert asked(EngineConfig(), "float8_e4m3fn")["dtype"] == "auto"  # vLLM knows how such are computed
    assert asked(EngineConfig(dtype="bfloat16"), "float32")["dtype"] == "bfloat16"


@pytest.mark.usefixtures("gpu")
def test_steps_are_large_unless_the_user_says_otherwise():
    chosen = asked(EngineConfig())
    assert (chosen["max_num_batched_tokens"], chosen["max_num_seqs"]) == (16_384, 128)
    said = asked(EngineConfig(max_num_seqs=512, max_num_batched_tokens=4096))
    assert (said["max_num_batched_tokens"], said["max_num_seqs"]) == (4096, 512)
    assert asked(EngineConfig(max_num_seqs=512, max_num_batched_tokens=64))["max_num_batched_tokens"] == 512


@pytest.mark.usefixtures("gpu")
def test_graphs_are_the_default_and_compiling_is_not():
    assert asked(EngineConfig())["enforce_eager"] is False
    assert asked(EngineConfig(cuda_graphs=False))["enforce_eager"] is True
    assert asked(EngineConfig(compile=True))["compilation_config"] == {}  # vLLM's own, with graphs of its pieces
    assert asked(EngineConfig(compile=True, cuda_graphs=False))["compilation_config"] == {"cudagraph_mode": "NONE"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_blueprint_says_what_the_weights_are_stored_in(dtype: str, tmp_path: Path):
    found = read_blueprint(save_tiny_model(tmp_path / "model", dtype=dtype))
    assert found.dtype == dtype
    width = 4 if dtype == "float32" else 2
    assert found.bytes == width * sum(_elements(shape) for _, shape in found.tensors.values())


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


class TestInstalledVllm:
    pytestmark = needs_vllm

    def test_graphs_without_compiling_are_an_engine_argument(self, tmp_path):
        from vllm import EngineArgs
        from vllm.config.compilation import CompilationMode, CUDAGraphMode

        chosen = EngineArgs(model=str(tmp_path), **start.graph_arguments(compile=False, graphs=True))
        assert chosen.enforce_eager is False
        assert chosen.compilation_config.mode == CompilationMode.NONE
        assert chosen.compilation_config.cudagraph_mode == CUDAGraphMode.FULL_DECODE_ONLY
        assert not chosen.compilation_config.cudagraph_mode.requires_piecewise_compilation()
        compiled = EngineArgs(model=str(tmp_path), **start.graph_arguments(compile=True, graphs=False))
        assert compiled.compilation_config.cudagraph_mode == CUDAGraphMode.NONE
