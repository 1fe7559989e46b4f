"""vLLM's EngineArgs for a checkpoint: the device decides some, the model runner others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evaluator.checkpoints.blueprint import Blueprint
from evaluator.checkpoints.info import read_config
from evaluator.checkpoints.quantisation import online_scheme
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.setup.gpu import graph_arguments

MAX_TOP_LOGPROBS = 64
_COMPUTED_IN = ("float32", "bfloat16", "float16")
_PLAIN = ("BF16", "F16", "F32")  # dtypes of tensors, as safetensors spells them
_V1_STEP_TOKENS = 4096  # computed in one step at most
_V1_REQUESTS = 128  # at a time
_CPU_BLOCK_SIZE = 32  # the least that its kernels take. vLLM's own default is 128: too coarse to share prompts


def of_device(
    config: EngineConfig, checkpoint: Path, served: Path, blueprint: Blueprint, positions: int, *, on_cpu: bool
) -> dict[str, Any]:
    """The arguments that both runners share. `served` is the directory that vLLM reads for `checkpoint`."""
    arguments = _arguments(config, served, positions) | _online(checkpoint)
    arguments |= _on_cpu(config) if on_cpu else _on_gpu(config, blueprint)
    return arguments | _exact_logits(config, blueprint, arguments["dtype"])


def of_runner(config: EngineConfig, blueprint: Blueprint, dtype: str, positions: int, *, v2: bool) -> dict[str, Any]:
    """What depends on the runner: the size of a step, what feeds it, and its graphs."""
    return _of_v2(config, blueprint, dtype, positions) if v2 else _of_v1(config, positions)


def _arguments(config: EngineConfig, checkpoint: Path, max_model_len: int) -> dict[str, Any]:
    """vLLM's EngineArgs, except those that depend on the device and the model runner."""
    return {
        "model": str(checkpoint),
        # By default, vLLM prefers params.json and consolidated*.safetensors, which we do not check.
        "config_format": "hf",
        "load_format": "safetensors",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "max_model_len": max_model_len,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "tensor_parallel_size": config.tensor_parallel,
        "trust_remote_code": config.trust_remote_code,
        "enable_prefix_caching": True,
        "logprobs_mode": "raw_logprobs",
        "max_logprobs": MAX_TOP_LOGPROBS,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "worker_extension_cls": "evaluator.engine.vllm.verify.weights.WorkerExtension",
    }


def _online(checkpoint: Path) -> dict[str, Any]:
    """What vLLM is to make of plain weights while it loads them."""
    scheme = online_scheme(read_config(checkpoint))
    return {} if scheme is None else {"quantization": scheme}


def _exact_logits(config: EngineConfig, blueprint: Blueprint, dtype: str) -> dict[str, Any]:
    """Logits in float32 from a half-precision model.

    At logits of 16 to 32, bfloat16 has a resolution of 1/8: it makes ties and moves a token by 0.06 nats. The engine
    option works only if the output head is not quantised. It bypasses vLLM's batch-invariant kernels.
    """
    if config.deterministic or dtype not in ("bfloat16", "float16") or not _has_plain_head(blueprint):
        return {}
    return {"hf_overrides": {"head_dtype": "float32"}}


def _has_plain_head(blueprint: Blueprint) -> bool:
    """Whether the output head is not quantised. A head that is tied to the embeddings has no separate tensor, so a
    layout may quantise it while it is loaded."""
    head = {name: dtype for name, (dtype, _) in blueprint.tensors.items() if "lm_head" in name.split(".")}
    if not head:
        return blueprint.quantisation is None
    return all(name.endswith((".weight", ".bias")) and dtype in _PLAIN for name, dtype in head.items())


def _on_cpu(config: EngineConfig) -> dict[str, Any]:
    return {
        "dtype": "float32" if config.dtype == "auto" else config.dtype,
        "block_size": config.block_size or _CPU_BLOCK_SIZE,
        "enforce_eager": not config.compile,
    }


def _on_gpu(config: EngineConfig, blueprint: Blueprint) -> dict[str, Any]:
    # vLLM's own "auto" computes float32 checkpoints in bfloat16.
    own = blueprint.dtype if blueprint.dtype in _COMPUTED_IN else "auto"
    return {
        "dtype": own if config.dtype == "auto" else config.dtype,
        "block_size": config.block_size,
    }


def _of_v1(config: EngineConfig, max_model_len: int) -> dict[str, Any]:
    from vllm.config import KVTransferConfig

    return {
        "max_num_seqs": config.max_num_seqs or _V1_REQUESTS,
        "max_num_batched_tokens": max(_V1_STEP_TOKENS, max_model_len),
        # A prompt that is computed in pieces makes vLLM rewind the generator of a seeded request, which a CPU
        # generator cannot do ("CPU Generator does not use offset"): prompts are computed whole.
        "enable_chunked_prefill": False,
        "kv_transfer_config": KVTransferConfig(
            kv_connector="PartialBlocks",
            kv_connector_module_path="evaluator.engine.vllm.v1.partial_blocks",
            kv_role="kv_both",
        ),
    }


def _of_v2(config: EngineConfig, blueprint: Blueprint, dtype: str, max_model_len: int) -> dict[str, Any]:
    from vllm.platforms import current_platform

    from evaluator.engine.vllm.setup.gpu import Accelerator, step_size

    accelerator = Accelerator(
        memory=current_platform.get_device_total_memory(),
        weights=blueprint.bytes // config.tensor_parallel,
        utilization=config.gpu_memory_utilization,
    )
    width = 4 if dtype == "float32" else 2
    size = step_size(
        blueprint.config, accelerator, max_model_len=max_model_len, width=width, workers=config.tensor_parallel
    )
    requests = config.max_num_seqs or size.requests
    tokens = max(config.max_num_batched_tokens or size.tokens, requests)
    chosen = {"max_num_seqs": requests, "max_num_batched_tokens": tokens}
    if current_platform.is_cpu():
        return chosen
    return chosen | graph_arguments(config.cuda_graphs, compile=config.compile, requests=requests, tokens=tokens)
