"""What is compared after a checkpoint was loaded: fake workers that hold shards of a
file's tensors."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from evaluator.core.errors import EngineError
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.engine.vllm.worker import WorkerExtension
from tests.support.engines import needs_vllm

HIDDEN, HEADS, SIZE, MIDDLE, WORDS = 16, 4, 4, 24, 70
IN_LAYER = {
    "input_layernorm": (HIDDEN,), "self_attn.q_proj": (HEADS * SIZE, HIDDEN), "self_attn.k_proj": (SIZE, HIDDEN),
    "self_attn.v_proj": (SIZE, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * SIZE), "mlp.gate_proj": (MIDDLE, HIDDEN),
    "mlp.up_proj": (MIDDLE, HIDDEN), "mlp.down_proj": (HIDDEN, MIDDLE),
}  # fmt: skip
SHAPES = {"model.embed_tokens.weight": (WORDS, HIDDEN)}
SHAPES |= {f"model.layers.0.{name}.weight": shape for name, shape in IN_LAYER.items()}
# qkv, o, gate_up, down, the embedding, and the output head that is tied to it
MATRICES = 6


class Layer(nn.Module):
    def __init__(self, weight: torch.Tensor, **said: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone(), requires_grad=False)
        for name, value in said.items():
            setattr(self, name, value)


class Worker(WorkerExtension):
    """One of two workers, holding its shards of `tensors`. There is one key-value
    head: both have it."""

    def __init__(self, rank: int, tensors: dict[str, torch.Tensor]) -> None:
        layer = {
            name.removeprefix("model.layers.0.").removesuffix(".weight"): each
            for name, each in tensors.items()
        }

        def half(tensor: torch.Tensor, dim: int = 0) -> torch.Tensor:
            return tensor.chunk(2, dim)[rank]

        attention = nn.Module()
        q, k, v = (layer[f"self_attn.{name}_proj"] for name in "qkv")
        attention.qkv_proj = Layer(
            torch.cat((half(q), k, v)), tp_rank=rank, tp_size=2, num_heads=HEADS // 2, total_num_heads=HEADS,
            num_kv_heads=1, total_num_kv_heads=1, num_kv_head_replicas=2, head_size=SIZE,
        )  # fmt: skip
        o_proj = half(layer["self_attn.o_proj"], 1)
        columns = {
            "output_partition_sizes": [HIDDEN],
            "input_size_per_partition": HEADS * SIZE // 2,
        }
        attention.o_proj = Layer(o_proj, tp_rank=rank, tp_size=2, **columns)
        mlp = nn.Module()
        mlp.gate_up_proj = Layer(
            torch.cat((half(layer["mlp.gate_proj"]), half(layer["mlp.up_proj"]))), tp_rank=rank, tp_size=2,
            output_sizes=[MIDDLE, MIDDLE], output_partition_sizes=[MIDDLE // 2, MIDDLE // 2],
        )  # fmt: skip
        mlp.down_proj = Layer(
            half(layer["mlp.down_proj"], 1), tp_rank=rank, tp_size=2, input_size_per_partition=MIDDLE // 2,
            output_partition_sizes=[HIDDEN],
        )  # fmt: skip
        decoder = nn.Module()
        decoder.self_attn, decoder.mlp = attention, mlp
        decoder.input_layernorm = Layer(layer["input_layernorm"])
        # 70 words are padded to 128, of which each worker has 64: 58 rows of the second
        # are padding.
        first, end = (0, 64) if rank == 0 else (64, WORDS)
        words = torch.zeros(64, HIDDEN)
        words[: end - first] = tensors["model.embed_tokens.weight"][first:end]
        held = SimpleNamespace(org_vocab_start_index=first, org_vocab_end_index=end)
        inner = nn.Module()
        inner.embed_tokens = Layer(words, shard_indices=held, org_vocab_size=WORDS)
        inner.layers = nn.ModuleList([decoder])
        self.model = nn.Module()
        self.model.model = inner
        self.model.lm_head = Layer(words, shard_indices=held, org_vocab_size=WORDS)
        fused = {
            "qkv_proj": ["q_proj", "k_proj", "v_proj"],
            "gate_up_proj": ["gate_proj", "up_proj"],
        }
        self.model.packed_modules_mapping = fused
        self.model_runner = SimpleNamespace(
            get_model=lambda: self.model,
            model_config=SimpleNamespace(dtype=torch.float32),
        )

    def weight(self, name: str) -> torch.Tensor:
        return self.model.get_submodule(name).weight


@pytest.fixture
def tensors():
    draw = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=draw) for name, shape in SHAPES.items()}


@pytest.fixture
def files(tensors, tmp_path):
    save_file(tensors, tmp_path / "model.safetensors")
    return [str(tmp_path / "model.safetensors")]


@pytest.fixture
def workers(tensors):
    return [Worker(0, tensors), Worker(1, tensors)]


def test_every_matrix_of_workers_is_compared(workers, files, tensors):
    """Every matrix of every worker is compared and what cannot be is named."""
    for worker in workers:
        assert worker.compare_weights(files) == (MATRICES, [], [])
    swapped = Worker(0, tensors)
    for name in ("qkv_proj", "o_proj"):
        getattr(swapped.model.model.layers[0].self_attn, name).tp_rank = 1
    _, differing, _ = swapped.compare_weights(files)
    assert differing == [
        "model.layers.0.self_attn.qkv_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
    ]
    down = workers[0].model.model.layers[0].mlp.down_proj
    down.weight = nn.Parameter(down.weight.T.contiguous(), requires_grad=False)
    assert workers[0].compare_weights(files) == (MATRICES, [], [])
    down.weight[0, 0] += 1
    assert workers[0].compare_weights(files)[1] == [
        "model.layers.0.mlp.down_proj.weight"
    ]
    # A quantised weight is the file's only together with its scales; a weight of
    # unknown layout is not guessed at.
    layer = workers[0].model.model.layers[0]
    layer.mlp.down_proj.weight = nn.Parameter(
        layer.mlp.down_proj.weight.to(torch.float8_e4m3fn).T, requires_grad=False
    )
    layer.self_attn.o_proj.weight = nn.Parameter(torch.zeros(3, 3), requires_grad=False)
    layer.mlp.experts = Layer(torch.zeros(2, 3))
    assert workers[0].compare_weights(files) == (
        MATRICES - 2,
        [],
        [
            f"model.layers.0.{name}.weight"
            for name in ("self_attn.o_proj", "mlp.down_proj", "mlp.experts")
        ],
    )


@pytest.mark.parametrize(
    ("name", "place"),
    [
        # the key head, which both workers hold
        ("model.layers.0.self_attn.qkv_proj", (HEADS * SIZE // 2, 3)),
        ("model.layers.0.self_attn.qkv_proj", (-1, 3)),
        ("model.layers.0.self_attn.o_proj", (0, 3)),
        ("model.layers.0.mlp.gate_up_proj", (-1, 3)),
        ("model.layers.0.mlp.down_proj", (-1, 3)),
        ("model.layers.0.input_layernorm", 0),
        ("lm_head", (WORDS - 64 - 1, 3)),  # the last word; what follows is padding
    ],
)
def test_corrupted_shard_is_found(workers, files, name, place):
    """A corrupted shard of the second worker is found."""
    workers[1].weight(name)[place] += 1
    assert workers[0].compare_weights(files)[1] == []
    assert workers[1].compare_weights(files)[1] == [f"{name}.weight"]


def verify(workers: list[Worker], files: list[str]) -> tuple[str, ...]:
    def collective_rpc(method: str, args: tuple[object, ...]) -> list[object]:
        return [getattr(worker, method)(*args) for worker in workers]

    engine = VLLMEngine(EngineConfig(tensor_parallel=len(workers)))
    core = SimpleNamespace(shutdown=lambda: None)
    engine._started = SimpleNamespace(
        llm=SimpleNamespace(collective_rpc=collective_rpc, engine_core=core)
    )
    return engine._verify(engine._started, Path("model"), files)


def test_verification_hears_every_worker(workers, files):
    """The engine hears every worker and one with nothing to compare is an error."""
    assert verify(workers, files) == ()
    workers[1].weight("model.layers.0.mlp.gate_up_proj")[5] += 1
    with pytest.raises(
        EngineError,
        match=r"mlp.gate_up_proj.weight in the engine is not .* \(worker 1 of 2\)$",
    ):
        verify(workers, files)
    for module in workers[1].model.modules():
        if isinstance(module, Layer) and module.weight.ndim == 2:
            module.weight = nn.Parameter(
                module.weight.to(torch.float8_e4m3fn), requires_grad=False
            )
    with pytest.raises(EngineError, match=r"nothing to compare \(worker 1 of 2\)$"):
        verify(workers, files)


ENGINE = """
import multiprocessing, time
from evaluator.engine.vllm.worker import WorkerExtension


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


def wrong_rank(
    vocabulary: int = 384, dtype: torch.dtype = torch.bfloat16
) -> str | None:
    worker, config = (
        WorkerExtension(),
        SimpleNamespace(get_vocab_size=lambda: vocabulary, dtype=dtype),
    )
    worker.model_runner = SimpleNamespace(
        model_config=config, device=torch.device("cpu")
    )
    return worker.wrong_rank()


class TestRanks:
    """A token's rank is 1 + the number of tokens that are likelier. The V2 runner's
    kernel: v2/test_kernels.py."""

    pytestmark = needs_vllm

    @pytest.fixture(autouse=True)
    def own(self, monkeypatch):
        """vLLM's own count, which comes back after the test."""
        from vllm.v1.sample import sampler

        def at_least_as_likely(scores, values):
            return (scores >= values).sum(-1)

        monkeypatch.setattr(sampler, "batched_count_greater_than", at_least_as_likely)

    def test_the_v1_runner_ranks_strictly(self):
        from evaluator.engine.vllm.v1.sampler import rank_strictly

        rank_strictly()
        assert wrong_rank() is None

    def test_vllm_own_rank_is_wrong(self):
        assert wrong_rank() == "a token of rank 1 got 384 (in bfloat16)"
        assert wrong_rank(20, torch.float32) == "a token of rank 1 got 20 (in float32)"


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
    layers = nn.Sequential(
        nn.Linear(2, 2), *(Layer(torch.zeros(1), **held) for _ in range(2))
    )
    worker = WorkerExtension()
    worker.model_runner = SimpleNamespace(get_model=lambda: layers)
    assert worker.kv_scales() == source
