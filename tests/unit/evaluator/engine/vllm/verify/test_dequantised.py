"""The values that quantised tensors stand for, and whether a layer computes with
them: against values made here."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from evaluator.checkpoints.matrices import Matrix
from evaluator.engine.vllm.verify.dequantised import computes_with, quantised_sources
from tests.support.models import save_tiny_model
from tests.support.quantised import LAYOUTS, WEIGHTS, quantise

LAYER = "model.layers.0"
QKV = [f"{LAYER}.self_attn.{name}_proj" for name in "qkv"]
FUSED = {
    "qkv_proj": ["q_proj", "k_proj", "v_proj"],
    "gate_up_proj": ["gate_proj", "up_proj"],
}


def slices(file):
    opened: Any = safe_open(file, framework="pt")
    return {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  (not a dict)


class Layer(nn.Module):
    """A layer that multiplies with `weight_OI`, whatever it would be stored as."""

    def __init__(self, weight_OI, **said):
        super().__init__()
        self.weight_scale = nn.Parameter(
            torch.ones(len(weight_OI), 1), requires_grad=False
        )
        self.quant_method = SimpleNamespace(
            apply=lambda module, inputs: inputs.float() @ weight_OI.float().T
        )
        for name, value in said.items():
            setattr(self, name, value)


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return save_tiny_model(
        tmp_path_factory.mktemp("dense") / "m", "qwen3_untied", dtype="bfloat16"
    )


@pytest.fixture(params=LAYOUTS)
def stored(request, dense, tmp_path):
    quantise(dense, tmp_path / "quantised", request.param, twin=tmp_path / "twin")
    return slices(tmp_path / "quantised" / WEIGHTS), load_file(
        tmp_path / "twin" / WEIGHTS
    )


def test_rows_have_their_values(stored):
    tensors, values = stored
    for name, value in values.items():
        if not name.endswith("_proj.weight"):
            assert quantised_sources(name.removesuffix(".weight"), FUSED, tensors) == []
            continue
        matrix = Matrix(tensors, name.removesuffix(".weight"))
        assert matrix.shape == tuple(value.shape)
        for first, stop in ((0, 8), (3, 5), (value.shape[0] - 9, value.shape[0])):
            rows = matrix.rows(first, stop)
            assert rows is not None
            assert torch.equal(rows, value[first:stop])


def test_layer_is_compared_by_parts(stored):
    tensors, values = stored
    qkv = torch.cat([values[f"{name}.weight"] for name in QKV])
    said: dict[str, Any] = {
        "num_heads": 2,
        "total_num_heads": 2,
        "num_kv_heads": 1,
        "total_num_kv_heads": 1,
    }
    said |= {"num_kv_head_replicas": 1, "head_size": 32, "tp_rank": 0, "tp_size": 1}
    matrices = quantised_sources(f"{LAYER}.self_attn.qkv_proj", FUSED, tensors)
    assert len(matrices) == 3
    assert computes_with(Layer(qkv, **said), matrices, torch.bfloat16) is True
    for row in (0, 64, 96 + 31):  # the first of q, the first of k, the last of v
        wrong = qkv.clone()
        wrong[row] = -wrong[row]
        assert computes_with(Layer(wrong, **said), matrices, torch.bfloat16) is False
    down = values[f"{LAYER}.mlp.down_proj.weight"]
    said = {"input_size_per_partition": 64, "tp_rank": 1, "tp_size": 2}
    matrices = quantised_sources(f"{LAYER}.mlp.down_proj", FUSED, tensors)
    assert computes_with(Layer(down[:, 64:], **said), matrices, torch.bfloat16) is True
    assert computes_with(Layer(down[:, :64], **said), matrices, torch.bfloat16) is False
