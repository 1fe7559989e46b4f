"""What is compared after a checkpoint was loaded, in a worker that holds a file's
tensors; in shards: verify/test_sharding.py."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from evaluator.core.errors import EngineError
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.engine.vllm.worker import WorkerExtension, _Head

WIDTH, WORDS = 16, 70
LAYER = "model.layers.0"
SHAPES = {
    "model.embed_tokens": (WORDS, WIDTH),
    f"{LAYER}.norm": (WIDTH,),
    f"{LAYER}.attn.q_proj": (16, WIDTH),
    f"{LAYER}.attn.k_proj": (4, WIDTH),
    f"{LAYER}.attn.v_proj": (4, WIDTH),
    f"{LAYER}.mlp.down_proj": (WIDTH, 12),
}
MATRICES = 4  # qkv, down, the embedding, and the output head that is tied to it


class Layer(nn.Module):
    def __init__(self, weight: torch.Tensor, **said: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        for name, value in said.items():
            setattr(self, name, value)


def model_of(tensors: dict[str, torch.Tensor]) -> nn.Module:
    words = torch.zeros(128, WIDTH)  # padded
    words[:WORDS] = tensors["model.embed_tokens"]
    held = SimpleNamespace(org_vocab_start_index=0, org_vocab_end_index=WORDS)
    qkv = torch.cat([tensors[f"{LAYER}.attn.{name}_proj"] for name in "qkv"])
    parts = {"output_sizes": [16, 4, 4], "output_partition_sizes": [16, 4, 4]}
    layers = {
        "model.embed_tokens": Layer(words, shard_indices=held, org_vocab_size=WORDS),
        "lm_head": Layer(words, shard_indices=held, org_vocab_size=WORDS),
        f"{LAYER}.norm": Layer(tensors[f"{LAYER}.norm"]),
        f"{LAYER}.attn.qkv_proj": Layer(qkv, **parts),
        f"{LAYER}.mlp.down_proj": Layer(tensors[f"{LAYER}.mlp.down_proj"]),
    }
    model = nn.Module()
    for name, layer in layers.items():
        module = [model]
        *folders, last = name.split(".")
        for folder in folders:
            if folder not in dict(module[-1].named_children()):
                module[-1].add_module(folder, nn.Module())
            module.append(module[-1].get_submodule(folder))
        module[-1].add_module(last, layer)
    model.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    return model


@pytest.fixture
def worker(tmp_path):
    draw = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(shape, generator=draw) for name, shape in SHAPES.items()
    }
    stored = {f"{name}.weight": tensor.clone() for name, tensor in tensors.items()}
    save_file(stored, tmp_path / "model.safetensors")
    made, model = WorkerExtension(), model_of(tensors)
    config = SimpleNamespace(dtype=torch.float32)
    made.model_runner = SimpleNamespace(get_model=lambda: model, model_config=config)
    made.files = [str(tmp_path / "model.safetensors")]
    made.layer = model.get_submodule
    return made


def test_every_matrix_is_compared(worker):
    assert worker.compare_weights(worker.files) == (MATRICES, [], [])
    down = worker.layer(f"{LAYER}.mlp.down_proj")
    # some kernels store columns first
    down.weight = nn.Parameter(down.weight.T.contiguous(), requires_grad=False)
    assert worker.compare_weights(worker.files) == (MATRICES, [], [])


@pytest.mark.parametrize(
    ("name", "place"),
    [
        (f"{LAYER}.attn.qkv_proj", (0, 3)),
        (f"{LAYER}.attn.qkv_proj", (16, 3)),  # the first of k
        (f"{LAYER}.attn.qkv_proj", (-1, 3)),
        (f"{LAYER}.mlp.down_proj", (-1, 11)),
        (f"{LAYER}.norm", 0),
        ("lm_head", (WORDS - 1, 3)),  # the last word; what follows is padding
    ],
)
def test_changed_weight_is_found(worker, name, place):
    worker.layer(name).weight[place] += 1
    assert f"{name}.weight" in worker.compare_weights(worker.files)[1]


def test_unknown_layouts_are_named(worker):
    """A quantised weight is the file's only together with its scales."""
    down, attention = worker.layer(f"{LAYER}.mlp.down_proj"), f"{LAYER}.attn.qkv_proj"
    quantised = down.weight.to(torch.float8_e4m3fn)
    down.weight = nn.Parameter(quantised, requires_grad=False)
    other = nn.Parameter(torch.zeros(3, 3), requires_grad=False)
    worker.layer(attention).weight = other
    worker.layer(f"{LAYER}.mlp").experts = Layer(torch.zeros(2, 3))
    names = (attention, f"{LAYER}.mlp.down_proj", f"{LAYER}.mlp.experts")
    assert worker.compare_weights(worker.files) == (
        MATRICES - 2,
        [],
        [f"{name}.weight" for name in names],
    )


@pytest.mark.parametrize(
    ("second", "outcome"),
    [
        ((3, [], []), ()),
        (
            (3, [], ["x", "y"]),
            (
                "2 of the engine's matrices could not be compared with the files, x for"
                " one",
            ),
        ),
        (
            (3, ["x"], []),
            "after loading, x in the engine is not that of the files (worker 1 of 2)",
        ),
        ((0, [], ["x"]), "after loading, nothing to compare (worker 1 of 2)"),
    ],
)
def test_verification_hears_every_worker(second, outcome):
    engine = VLLMEngine(EngineConfig(tensor_parallel=2))
    llm = SimpleNamespace(collective_rpc=lambda *_, args: [(3, [], []), second])
    started = SimpleNamespace(llm=llm)
    if isinstance(outcome, tuple):
        assert engine._verify(started, []) == outcome
    else:
        with pytest.raises(EngineError) as caught:
            engine._verify(started, [])
        assert str(caught.value) == outcome


ENGINE = """
import multiprocessing, time
from evaluator.engine.vllm.worker import WorkerExtension, _Head


def work():
    WorkerExtension().end_with_parent()
    print("ready", flush=True)
    while True:  # as if it waited for another worker in the middle of a step
        time.sleep(1)


if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=work)
    worker.start()
    worker.join()
"""


@pytest.mark.slow
def test_hanging_worker_ends_with_engine(tmp_path):
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True
    ) as engine:
        assert engine.stdout.readline() == "ready\n"
        engine.kill()
        # ends once neither engine nor worker is left to hold the other end
        assert engine.stdout.read() == ""


@pytest.mark.parametrize(
    ("dtype", "scale", "source"),
    [
        ("auto", 1.0, None),
        ("bfloat16", 1.0, None),
        ("fp8_e4m3", 1.0, "none"),
        ("fp8_e4m3", 0.5, "from the checkpoint"),
        ("fp8_per_token_head", 1.0, "calculated"),
        ("nvfp4", 1.0, "calculated"),
    ],
)
def test_source_of_cache_scales(dtype, scale, source):
    held = {"kv_cache_dtype": dtype, "_k_scale_float": 1.0, "_v_scale_float": scale}
    layers = nn.Sequential(nn.Linear(2, 2), Layer(torch.zeros(1), **held))
    worker = WorkerExtension()
    worker.model_runner = SimpleNamespace(get_model=lambda: layers)
    assert worker.kv_scales() == source


def test_head_in_float32_is_cast_once() -> None:
    """As vLLM's: both operands are cast; but a half-precision head once a load."""
    draws = torch.Generator().manual_seed(0)
    layer = nn.Linear(8, 32, dtype=torch.bfloat16)
    states_TH = torch.randn(3, 8, generator=draws).bfloat16()
    head = _Head()
    wanted_TV = functional.linear(
        states_TH.float(), layer.weight.float(), layer.bias.float()
    )
    assert torch.equal(head(layer, states_TH, layer.bias), wanted_TV)
    with torch.no_grad():
        layer.weight.zero_()  # as a swap in place does, before a new head
    assert torch.equal(head(layer, states_TH, layer.bias), wanted_TV)
    new = _Head()(layer, states_TH)
    assert new.dtype == torch.float32
    assert not new.any()
