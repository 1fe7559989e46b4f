"""Experts are compared through what a layer computes, whatever order its kernel
keeps them in."""

import json
from itertools import product
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.core.errors import EngineError
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.engine.vllm.worker import WorkerExtension
from tests.support.models import save_tiny_model

EXPERTS, WIDTH, INNER = 5, 16, 8
BASE = "model.layers.0.mlp.experts"


class Layer(nn.Module):
    """A worker's shard of `tensors`, as vLLM's layers say it; its kernel keeps
    columns in reverse order."""

    def __init__(
        self, tensors: dict[str, torch.Tensor], rank: int = 0, size: int = 1
    ) -> None:
        super().__init__()

        def of(name: str, dim: int) -> torch.Tensor:
            return torch.stack(
                [
                    tensors[f"{BASE}.{e}.{name}.weight"].chunk(size, dim)[rank]
                    for e in range(EXPERTS)
                ]
            )

        w13, w2 = (
            torch.cat((of("gate_proj", 0), of("up_proj", 0)), dim=1),
            of("down_proj", 1),
        )
        self.w13_weight = nn.Parameter(w13.flip(-1), requires_grad=False)
        self.w2_weight = nn.Parameter(w2.flip(-1), requires_grad=False)
        self.ckpt_gate_proj_name, self.ckpt_up_proj_name, self.ckpt_down_proj_name = (
            "gate_proj",
            "up_proj",
            "down_proj",
        )
        self.global_num_experts, self.expert_map = EXPERTS, None
        self.activation = SimpleNamespace(value="silu")
        self.moe_config = SimpleNamespace(tp_rank=rank, tp_size=size)
        self.quant_method = SimpleNamespace(apply=self.apply_experts)

    def apply_experts(
        self, layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input
    ):
        outputs = torch.zeros_like(x)
        for row, (ids, weights) in enumerate(zip(topk_ids, topk_weights, strict=True)):
            for expert, weight in zip(ids, weights, strict=True):
                gate, up = functional.linear(
                    x[row], layer.w13_weight[expert].flip(-1)
                ).chunk(2)
                middle = functional.silu(gate) * up
                outputs[row] += weight * functional.linear(
                    middle, layer.w2_weight[expert].flip(-1)
                )
        return outputs


def worker(layer: nn.Module) -> WorkerExtension:
    model = nn.Module()
    inner = model
    for name in [*BASE.split("."), "routed_experts"][:-1]:
        inner.add_module(name, nn.Module())
        inner = inner.get_submodule(name)
    inner.routed_experts = layer
    made = WorkerExtension()
    made.model_runner = SimpleNamespace(
        get_model=lambda: model, model_config=SimpleNamespace(dtype=torch.float32)
    )
    return made


@pytest.fixture
def tensors():
    draw = torch.Generator().manual_seed(0)
    shapes = {
        "gate_proj": (INNER, WIDTH),
        "up_proj": (INNER, WIDTH),
        "down_proj": (WIDTH, INNER),
    }
    each = product(range(EXPERTS), shapes)
    return {
        f"{BASE}.{expert}.{name}.weight": torch.randn(shapes[name], generator=draw)
        for expert, name in each
    }


@pytest.fixture
def files(tensors, tmp_path):
    save_file(tensors, tmp_path / "model.safetensors")
    return [str(tmp_path / "model.safetensors")]


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 2), (1, 2)])
def test_experts_of_files_are_recognised(tensors, files, rank, size):
    assert worker(Layer(tensors, rank, size)).compare_weights(files) == (1, [], [])


def test_other_workers_shard_is_refused(tensors, files):
    layer = Layer(tensors, 1, 2)
    layer.moe_config.tp_rank = 0
    assert worker(layer).compare_weights(files)[1] == [
        f"the experts of {BASE}.routed_experts"
    ]


@pytest.mark.parametrize("expert", [0, 2, 4])
@pytest.mark.parametrize("name", ["w13_weight", "w2_weight"])
def test_changed_expert_is_found(tensors, files, name, expert):
    layer = Layer(tensors)
    getattr(layer, name)[expert, :, ::2] = 0
    assert worker(layer).compare_weights(files) == (
        1,
        [f"the experts of {BASE}.routed_experts"],
        [],
    )


UNKNOWN = {
    "expert_map": torch.zeros(5),
    "ckpt_gate_proj_name": "w1",
    "activation": SimpleNamespace(value="gelu"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_compared_is_said(tensors, files, name):
    layer = Layer(tensors)
    setattr(layer, name, UNKNOWN[name])
    assert worker(layer).compare_weights(files) == (
        0,
        [],
        [f"{BASE}.routed_experts.w13_weight"],
    )
    # the device `meta` stands for a GPU, where they are not compared
    on_gpu = worker(Layer(tensors).to("meta"))
    assert on_gpu.compare_weights(files) == (
        0,
        [],
        [f"{BASE}.routed_experts.w13_weight"],
    )


@pytest.mark.parametrize(("experts", "outcome"), [(4, "started anew"), (0, "swapped")])
def test_mixture_gets_own_engine(experts, outcome, tmp_path, monkeypatch):
    checkpoint = save_tiny_model(tmp_path / "model")
    config = json.loads((checkpoint / "config.json").read_text()) | {
        "num_local_experts": experts
    }
    (checkpoint / "config.json").write_text(json.dumps(config))

    monkeypatch.setattr(
        "evaluator.engine.vllm.engine.start",
        Mock(side_effect=EngineError("started anew")),
    )
    monkeypatch.setattr(VLLMEngine, "_swap", Mock(side_effect=EngineError("swapped")))
    engine = VLLMEngine(EngineConfig())
    core = SimpleNamespace(shutdown=lambda: None)
    engine._started = SimpleNamespace(llm=SimpleNamespace(engine_core=core))
    engine._first, engine._served = checkpoint, Checkpoint(checkpoint)
    with pytest.raises(EngineError, match=outcome):
        engine.load(checkpoint)
