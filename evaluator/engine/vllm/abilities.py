"""The names that each model runner needs of the installed vLLM. A missing one is an error before an engine starts.

Names are classes, functions, and the methods that this folder replaces. Attributes of vLLM's objects are not checked:
they exist only in a running engine.

vLLM 0.30 to 0.33 are supported. The check looks at modules and classes; the version is compared only to refuse older
ones, whose names would not be found either."""

import importlib
import inspect
import re
from collections.abc import Iterable, Mapping
from operator import attrgetter
from types import ModuleType
from typing import Any

from evaluator.core.errors import InputError, one_line

_OLDEST = (0, 30)
_ADVICE = "versions 0.30 to 0.33 are supported"
# What this folder imports from vLLM, at the top of its modules or inside functions, and the methods that it replaces.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "vllm": ("EngineArgs", "SamplingParams"),
    "vllm.model_executor.layers.vocab_parallel_embedding": ("ParallelLMHead",),
    "vllm.platforms": ("current_platform",),
    "vllm.sampling_params": ("RequestOutputKind",),
    "vllm.v1.core.kv_cache_manager": ("KVCacheManager.get_computed_blocks", "KVCacheManager.create_kv_cache_blocks"),
    "vllm.v1.engine": ("EngineCoreRequest",),
    "vllm.v1.engine.llm_engine": ("LLMEngine",),
    "vllm.v1.kv_cache_interface": ("FullAttentionSpec",),
    "vllm.v1.outputs": ("LogprobsTensors",),
}
_NEEDED_BY_V1: Mapping[str, tuple[str, ...]] = {
    "vllm.config": ("KVTransferConfig",),
    "vllm.distributed.kv_transfer.kv_connector.v1.base": (
        "KVConnectorBase_V1",
        "KVConnectorMetadata",
        "KVConnectorRole",
    ),
    "vllm.v1.outputs": ("SamplerOutput",),
    "vllm.v1.sample.logits_processor": ("BatchUpdate", "LogitsProcessor"),
    "vllm.v1.sample.logits_processor.interface": ("MoveDirectionality",),
    "vllm.v1.sample.sampler": ("Sampler", "batched_count_greater_than"),
    "vllm.v1.worker.gpu_model_runner": ("GPUModelRunner._get_prompt_logprobs_dict",),
}
_NEEDED_BY_V2: Mapping[str, tuple[str, ...]] = {
    "vllm.v1.core.block_pool": ("BlockPool.get_new_blocks",),
    "vllm.v1.core.kv_cache_manager": (
        "KVCacheManager.allocate_slots",
        "KVCacheManager.get_block_ids",
        "KVCacheManager.reset_prefix_cache",
        "KVCacheManager.take_kv_cache_block_copies",
    ),
    "vllm.v1.worker.gpu.sample.prompt_logprob": (
        "PromptLogprobsWorker.add_request",
        "PromptLogprobsWorker.compute_prompt_logprobs",
        "PromptLogprobsWorker.remove_request",
        "compute_topk_scores",
    ),
}
_SAMPLING = ("detokenize", "extra_args", "flat_logprobs", "ignore_eos", "output_kind", "prompt_logprobs", "skip_clone",
             "skip_reading_prefix_cache", "stop_token_ids")  # fmt: skip
_SAMPLING_BY_V2 = ("trace_decode_token_ids",)
# The fields of an EngineCoreRequest that requests.py fills in
_REQUEST = ("request_id", "prompt_token_ids", "mm_features", "sampling_params", "pooling_params", "arrival_time",
            "lora_request", "cache_salt", "data_parallel_rank")  # fmt: skip
_V2_LOGPROB = "vllm.v1.worker.gpu.sample.logprob"
# The V2 runner's kernel that ranks, whose place ours takes (v2/kernels.py), and its parameters.
_V2_RANKS = ("_ranks_kernel", ("output_ptr", "logits_ptr", "logits_stride", "token_ids_ptr", "vocab_size",
             "BLOCK_SIZE"))  # fmt: skip


def check_version(version: str) -> None:
    """Raises InputError for a vLLM below the supported versions. Nothing is imported."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < _OLDEST:
        raise InputError(f"engine 'vllm': vLLM {version} is too old: {_ADVICE}")


def check_vllm(version: str) -> None:
    """Raises InputError if the installed vLLM, of that version, lacks what both runners need."""
    check_version(version)
    _check_names(version, _NEEDED)
    check_fields(version, _imported("vllm", version).SamplingParams, _SAMPLING)
    request = _imported("vllm.v1.engine", version).EngineCoreRequest
    check_fields(version, request, _REQUEST)
    fields = inspect.signature(request).parameters
    unknown = sorted(name for name, field in fields.items() if field.default is field.empty and name not in _REQUEST)
    if unknown:
        raise InputError(
            f"engine 'vllm': vLLM {version} wants a field of EngineCoreRequest that is unknown here: {unknown[0]}"
        )


def check_runner(version: str, *, v2: bool) -> None:
    """Raises InputError if the installed vLLM, of that version, lacks what one of its model runners needs."""
    _check_names(version, _NEEDED_BY_V2 if v2 else _NEEDED_BY_V1)
    if not v2:
        return
    check_fields(version, _imported("vllm", version).SamplingParams, _SAMPLING_BY_V2)
    name, parameters = _V2_RANKS
    kernel = getattr(_imported(_V2_LOGPROB, version), name, None)
    function = getattr(kernel, "fn", kernel)  # Triton's wrapper keeps the function there
    if function is None or tuple(inspect.signature(function).parameters) != parameters:
        raise _lacks(version, f"{_V2_LOGPROB}.{name}({', '.join(parameters)})")


def _check_names(version: str, needed: Mapping[str, tuple[str, ...]]) -> None:
    for module, names in needed.items():
        found = _imported(module, version)
        for name in names:
            try:
                attrgetter(name)(found)
            except AttributeError:
                raise _lacks(version, f"{module}.{name}") from None


def _imported(module: str, version: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # perhaps a library of the system or the GPU's driver is missing
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "vllm":
            raise _lacks(version, module) from error
        raise InputError(f"engine 'vllm': vLLM {version} cannot be imported: {one_line(error)}") from error


def check_fields(version: str, kind: Any, names: Iterable[str]) -> None:
    """Raises InputError for the first of `names` that a class of vLLM does not take as a keyword."""
    known = inspect.signature(kind).parameters
    for name in names:
        if name not in known:
            raise _lacks(version, f"{kind.__name__}({name}=)")


def _lacks(version: str, what: str) -> InputError:
    return InputError(f"engine 'vllm': vLLM {version} lacks {what}; {_ADVICE}")
