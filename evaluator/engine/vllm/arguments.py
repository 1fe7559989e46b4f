"""vLLM's EngineArgs for a checkpoint: the device decides some, the model runner
others.

## Graphs

Without a graph, Python launches every kernel of every layer. For the 28 layers of a
model of 0.6 B, this takes 6 to 8 ms (estimate), while the GPU computes the step in
about 4 ms. A graph is launched at once. It has one number of tokens; a smaller step
is padded to it. `EngineConfig.cuda_graphs` chooses:

- `full`, the default: every step is one graph. FlashAttention 3 (Hopper) and
  Triton's (float32) support it. For others vLLM falls back to `decode` by itself.
- `piecewise`: a step that computes prompts is a graph between two layers'
  attentions. vLLM calls it experimental.
- `decode`: only steps that generate are graphs.

## Size of a step

Large steps fill the GPU, but they need memory in addition to weights and cache: 8,192
tokens, or 16,384 from 70 GiB on, as vLLM's `LLM` class has by default. An engine that
is built from its configuration would get 2,048."""

from pathlib import Path

from evaluator.checkpoints.checkpoint import Checkpoint, foreign_window
from evaluator.checkpoints.quantisation import online_scheme, overrides
from evaluator.checkpoints.shapes import text_model
from evaluator.core.errors import Document, Json
from evaluator.engine.config import AUTO_CACHE, EngineConfig, Graphs
from evaluator.engine.processor import instruction_sets
from evaluator.engine.vllm.schemes import cpu_auto

MAX_TOP_LOGPROBS = 64
# vLLM's names of cache dtypes. Its CPU kernels (0.32) also take the others, without an
# error, and compute nonsense.
_CACHES_ON_A_CPU = ("fp8", "fp8_e4m3", "fp8_e5m2")
_HALVES = ("bfloat16", "float16")
_CACHES_ON_A_GPU = (
    *(*_HALVES, *_CACHES_ON_A_CPU),
    *("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head", "nvfp4"),
)
_COMPUTED_IN = ("float32", "bfloat16", "float16")
_PLAIN = ("BF16", "F16", "F32")  # dtypes of tensors, as safetensors spells them
_V1_STEP_TOKENS = 4096  # computed in one step at most
_V1_REQUESTS = 128  # at a time
_V2_REQUESTS = 256
# Of a small model on a GPU, which waits for the host: twice the rows take 1.3 times the
# host's time (with vLLM's own runner on a CPU).
_V2_REQUESTS_SMALL, _SMALL = 512, 6 << 30  # requests; bytes of weights
_LARGE_GPU = 70 << 30  # bytes
CPU_CACHE_GIB = 1
# of a GPU's memory beside the weights; activations take the rest (estimate)
_FOR_THE_CACHE = 0.8
# the least that its kernels take. vLLM's own default is 128: too coarse to share
# prompts
_CPU_BLOCK_SIZE = 32
# of vLLM's CPUAttentionBackend
HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def of_device(
    config: EngineConfig,
    checkpoint: Checkpoint,
    served: Path,
    positions: int,
    *,
    on_cpu: bool,
) -> Json:
    """The arguments that both runners share. `served` is the directory that vLLM
    reads for `checkpoint`."""
    arguments: Json = {
        "model": str(served),
        # By default, vLLM prefers params.json and consolidated*.safetensors, which we
        # do not check.
        "config_format": "hf",
        "load_format": "safetensors",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "max_model_len": positions,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "tensor_parallel_size": config.tensor_parallel,
        "trust_remote_code": config.trust_remote_code,
        "enable_prefix_caching": config.prefix_caching,
        "logprobs_mode": "raw_logprobs",
        "max_logprobs": MAX_TOP_LOGPROBS,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "worker_extension_cls": "evaluator.engine.vllm.worker.WorkerExtension",
        "block_size": config.block_size,
    }
    if (scheme := online_scheme(checkpoint.config)) is not None:
        # what vLLM is to make of plain weights while it loads them
        arguments["quantization"] = scheme
    if config.kv_cache != AUTO_CACHE:
        arguments["kv_cache_dtype"] = config.kv_cache
    if on_cpu:
        own: str = cpu_auto(checkpoint.quantisation)
        arguments |= {
            "block_size": config.block_size or _CPU_BLOCK_SIZE,
            "enforce_eager": not config.compile,
        }
    else:  # vLLM's own "auto" computes float32 checkpoints in bfloat16
        own = checkpoint.dtype if checkpoint.dtype in _COMPUTED_IN else "auto"
    arguments["dtype"] = dtype = own if config.dtype == "auto" else config.dtype
    changed = overrides(checkpoint.config)
    if foreign_window(checkpoint.config) is not None:
        changed["sliding_window"] = None
    # Logits in float32 from a half-precision model: at logits of 16 to 32, bfloat16 has
    # a resolution of 1/8, which makes ties and moves a token by 0.06 nats. This
    # bypasses vLLM's batch-invariant kernels.
    if (
        dtype in ("bfloat16", "float16")
        and not config.deterministic
        and _has_plain_head(checkpoint)
    ):
        changed["head_dtype"] = "float32"
    if changed:
        arguments["hf_overrides"] = changed
    return arguments


def of_cache(
    config: EngineConfig,
    checkpoint: Checkpoint,
    dtype: str,
    positions: int,
    gpu_bytes: int | None,
) -> Json:
    """How long a request may be, up to `positions`, and how large the cache is where
    vLLM is not to measure that.

    Requests that are too long for the cache are refused one by one; vLLM would not
    start. If the size is given, what others take or free while an engine starts does
    not matter. `gpu_bytes`: of one GPU; None on a CPU.
    """
    memory: float = (config.kv_cache_gib or CPU_CACHE_GIB) << 30
    if gpu_bytes is not None and config.kv_cache_gib is None:
        usable = config.gpu_memory_utilization * gpu_bytes
        memory = _FOR_THE_CACHE * (usable - checkpoint.bytes / config.tensor_parallel)
    if memory <= 0:
        return {"max_model_len": positions}
    chosen = {
        "max_model_len": min(
            positions, cache_tokens(config, checkpoint, dtype, int(memory))
        )
    }
    if gpu_bytes is not None and (config.shared_gpu or config.kv_cache_gib):
        chosen["kv_cache_memory_bytes"] = int(memory)
    return chosen


def cache_dtypes(*, on_cpu: bool) -> tuple[str, ...]:
    """The values of EngineConfig.kv_cache. A GPU's kernels take some of them, which
    only the engine's start tells."""
    if not on_cpu:
        return (AUTO_CACHE, *_CACHES_ON_A_GPU)
    return (AUTO_CACHE, *(_CACHES_ON_A_CPU if "avx512f" in instruction_sets() else ()))


def _has_plain_head(checkpoint: Checkpoint) -> bool:
    """Whether the output head is not quantised. A head that is tied to the
    embeddings has no separate tensor, so a layout may quantise it while it is
    loaded."""
    head = {
        name: tensor.dtype
        for name, tensor in checkpoint.tensors.items()
        if "lm_head" in name.split(".")
    }
    if not head:
        return checkpoint.quantisation is None
    return all(
        name.endswith((".weight", ".bias")) and dtype in _PLAIN
        for name, dtype in head.items()
    )


def of_runner(config: EngineConfig, positions: int, weights: int, *, v2: bool) -> Json:
    """The arguments of one runner: the size of a step, its parts that are ours, and
    its graphs. `weights`: bytes on one GPU."""
    if not v2:
        from vllm.config import KVTransferConfig

        from evaluator.engine.vllm.v1.sampler import Orders

        return {
            "max_num_seqs": config.max_num_seqs or _V1_REQUESTS,
            "max_num_batched_tokens": max(_V1_STEP_TOKENS, positions),
            # A prompt that is computed in pieces makes vLLM rewind the generator of a
            # seeded request, which a CPU generator cannot do ("CPU Generator does not
            # use offset"): prompts are computed whole.
            "enable_chunked_prefill": False,
            "kv_transfer_config": KVTransferConfig(
                kv_connector="PartialBlocks",
                kv_connector_module_path="evaluator.engine.vllm.v1.partial_blocks",
                kv_role="kv_both",
            ),
            "logits_processors": [Orders],
            "async_scheduling": False,
        }
    from vllm.platforms import current_platform

    large = current_platform.get_device_total_memory() >= _LARGE_GPU
    is_cpu = current_platform.is_cpu()
    usual = _V2_REQUESTS if is_cpu or weights > _SMALL else _V2_REQUESTS_SMALL
    requests = config.max_num_seqs or usual
    tokens = config.max_num_batched_tokens or (16_384 if large else 8_192)
    tokens = max(tokens, requests)
    chosen = {
        "max_num_seqs": requests,
        "max_num_batched_tokens": tokens,
        "enable_trace_replay": True,
    }
    if is_cpu:
        return chosen
    return chosen | graph_arguments(
        config.cuda_graphs, compile=config.compile, requests=requests, tokens=tokens
    )


# vLLM's names of the graphs that launch a step which only generates faster than one
# that computes prompts too.
FASTER_DECODE = ("FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
_MODES = {
    "full": "FULL",
    "piecewise": "FULL_AND_PIECEWISE",
    "decode": "FULL_DECODE_ONLY",
}
# Tokens of the largest graph. A step of 2,048 tokens keeps an H100 busy for about 5 ms
# at 0.6 B (estimate), so that launches hide behind larger ones. Beyond it,
# FlashAttention 3 would need more memory too: it divides each row of a graph into 32
# parts in float32, .5 GiB for 2,048 tokens of 16 heads of 128.
_MOST = 2048


def graph_arguments(
    graphs: Graphs | None, *, compile: bool, requests: int, tokens: int
) -> Json:
    """EngineArgs for torch.compile and CUDA graphs, which vLLM's `enforce_eager`
    turns off together. `requests` and `tokens` are the most that a step computes."""
    if compile:  # graphs are vLLM's own
        return {
            "enforce_eager": False,
            "compilation_config": {"cudagraph_mode": "NONE"} if graphs is False else {},
        }
    if graphs is False:
        return {"enforce_eager": True}
    chosen = graphs if isinstance(graphs, str) else "full"
    most = requests if chosen == "decode" else max(requests, min(_MOST, tokens))
    sizes = capture_sizes(most, requests)
    if chosen == "full":  # v2/schedules.py
        sizes = [size for size in sizes if size > 1]
        if not sizes:  # a step has one token
            return {"enforce_eager": True}
    config = {
        "mode": 0,
        "cudagraph_mode": _MODES[chosen],
        "cudagraph_capture_sizes": sizes,
    }
    return {"enforce_eager": False, "compilation_config": config}


def capture_sizes(most: int, requests: int) -> list[int]:
    """Tokens of each graph, up to `most`: 51 for 2,048. vLLM's own list has 51 up to
    512, and 147 up to 2,048.

    Sizes rise by eight tokens, and from 64 on by an eighth. This bounds the padding.
    `requests` is one of the sizes. Otherwise a full batch that generates would have no
    graph: vLLM captures none for more requests than it has places.
    """
    sizes = [1, 2, 4, 8]
    while sizes[-1] < most:
        power = 1 << (sizes[-1].bit_length() - 1)
        sizes.append(sizes[-1] + max(8, power // 8))
    return sorted({requests, most, *(size for size in sizes if size < most)})


def cached_values(model: Document, *, workers: int = 1) -> int:
    """The number of keys and values per token in each worker's cache. Layers of
    linear attention have none. A missing field counts as 0."""
    model = text_model(model)
    layers = _size(model, "num_hidden_layers")
    kinds = model.get("layer_types")
    if isinstance(kinds, list):
        layers = sum(kind != "linear_attention" for kind in kinds)
    heads = _size(model, "num_attention_heads")
    held = (_size(model, "num_key_value_heads") or heads) // workers
    return 2 * layers * max(1, held) * _head_size(model)


def wrong_heads(model: Document) -> str | None:
    """Why vLLM's CPU attention cannot compute a model's heads; None if it can, or
    without plain heads."""
    model = text_model(model)
    heads, size = _size(model, "num_attention_heads"), _head_size(model)
    if not heads or size in (0, *HEAD_SIZES) or model.get("kv_lora_rank"):
        return None
    field = "head_dim" if model.get("head_dim") else "hidden_size / num_attention_heads"
    served = ", ".join(map(str, HEAD_SIZES))
    return f"{field}: {size}: vLLM's CPU attention has heads of {served} only"


def _head_size(model: Document) -> int:
    heads = max(1, _size(model, "num_attention_heads"))
    return _size(model, "head_dim") or _size(model, "hidden_size") // heads


def cache_tokens(
    config: EngineConfig, checkpoint: Checkpoint, dtype: str, memory: int
) -> int:
    """How many tokens a cache of so many bytes has room for, in whole blocks; an
    upper bound for latent attention."""
    model = text_model(checkpoint.settings)
    latent = _size(model, "kv_lora_rank") * _size(model, "num_hidden_layers")
    values = latent or cached_values(model, workers=config.tensor_parallel)
    width = 1  # bytes of a value
    if config.kv_cache in (AUTO_CACHE, *_HALVES):
        width = 4 if (config.kv_cache, dtype) == (AUTO_CACHE, "float32") else 2
    per_token = values * width
    block = config.block_size or _CPU_BLOCK_SIZE
    return max(block, memory // max(1, per_token) // block * block)


def _size(model: Document, name: str) -> int:
    value = model.get(name)
    return value if isinstance(value, int) else 0
