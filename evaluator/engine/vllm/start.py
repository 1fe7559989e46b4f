"""How a vLLM engine is started for a checkpoint: environment, arguments, and which model runner it gets.

On a CPU everything is computed in float32 by default. On a GPU: the checkpoint's dtype, the V2 model runner
and trace replay; that path is written from vLLM 0.32's source and **not yet tested on a GPU**.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import warnings
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.checkpoints.blueprint import Blueprint
from evaluator.checkpoints.info import read_config
from evaluator.checkpoints.overlay import served_directory
from evaluator.checkpoints.quantisation import online_scheme
from evaluator.engine.config import EngineConfig, Scoring
from evaluator.engine.vllm.abilities import BATCH_INVARIANT, Abilities, abilities, check_arguments
from evaluator.engine.vllm.graphs import BREAKABLE, graph_arguments
from evaluator.errors import EngineError, InputError, one_line

if TYPE_CHECKING:
    from evaluator.engine.vllm.sampling import Dialect

MAX_TOP_LOGPROBS = 64
_REASONS = 400  # characters of an error that lists reasons
INT4_AS_W4A8 = "VLLM_CPU_INT4_W4A8"  # in the environment: int4 weights are computed with int8 activations, on AMX
_COMPUTED_IN = ("float32", "bfloat16", "float16")
_NOT_ON_A_CPU = "vLLM has no batch-invariant mode on a CPU; engine torch computes one request at a time"
_INVARIANT_FROM = 80  # a GPU's compute capability, ten times
_CPU_STEP_TOKENS = 4096  # computed in one step at most
_CPU_REQUESTS = 128  # at a time
_CPU_BLOCK_SIZE = 32  # vLLM's own default there is 128: too coarse to share the prompts of one item


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A running engine and what was settled when it started."""

    llm: Any  # vLLM's LLMEngine
    dialect: Dialect
    max_model_len: int  # prompt and generated tokens of a request
    positions: int  # that vLLM's engine has: one more, where the model has it
    max_num_seqs: int
    dtype: str  # "float32", "bfloat16"
    scoring: Scoring  # as configured, or what this vLLM can do
    notes: tuple[str, ...] = ()  # what a user should know, one line each
    ahead: bool = False  # steps are scheduled while another is being computed
    graphs: str = "NONE"  # vLLM's name of the CUDA graphs that it uses: not those asked for, where attention has none
    has_connector: bool = False  # partial_blocks.py; older vLLM fails to reset one that is not there


def installed_version() -> str:
    """vLLM's version, of whichever build is installed. Raises InputError if there is none."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    raise InputError("engine 'vllm': neither vllm nor vllm-cpu is installed; use --engine torch or install one")


def serves_cpus() -> bool:
    """Whether the installed vLLM computes on a CPU, whatever else the machine has. vLLM itself goes by that version."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return any(distributions(name="vllm-cpu"))


def check_here(config: EngineConfig) -> None:
    """Raises InputError for what no engine on this machine can do; whether a GPU can do it only the engine knows."""
    if config.deterministic and serves_cpus():
        raise InputError(f"engine: deterministic: {_NOT_ON_A_CPU}")


def start(config: EngineConfig, checkpoint: Path, blueprint: Blueprint) -> Started:
    """Build the engine and load the checkpoint into it. Raises EngineError if vLLM cannot."""
    _prepare_environment(config)
    with warnings.catch_warnings():  # those of vLLM's own imports are nothing that a user can mend
        warnings.simplefilter("ignore")
        with served_directory(checkpoint) as served:
            return _start(config, checkpoint, blueprint, served)


def on_workers(llm: Any, method: str, *arguments: Any) -> list[Any]:
    """Call a method of the worker extension (weights.py) on every worker; returns their answers, by rank."""
    answers: list[Any] = llm.collective_rpc(method, args=arguments)
    return answers


def named(error: BaseException) -> str:
    """An error of vLLM: its type and the first line of its text, which may be followed by pages; where that line only
    announces reasons, these too."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if not lines:
        return f"{type(error).__name__}: no message"
    first = one_line(lines[0])
    if "validation error for" in first or first.endswith(":"):
        first = one_line(" ".join(lines).partition(" [type=")[0], _REASONS)
    return f"{type(error).__name__}: {first}"


def not_imported(error: BaseException) -> str | None:
    """Why vLLM cannot import its code of an architecture: its error only says that it failed. None: it is not that."""
    found = re.search(r"Model architectures \['(\w+)'\] failed to be inspected", str(error))
    if found is None:
        return None
    from vllm.model_executor.models.registry import ModelRegistry

    try:
        ModelRegistry.models[found[1]].load_model_cls()
    except Exception as reason:  # whatever an import may raise
        return f"its code of {found[1]} cannot be imported ({one_line(reason)}); --engine torch may do without"
    return None


def _start(config: EngineConfig, checkpoint: Path, blueprint: Blueprint, served: Path) -> Started:
    able = abilities(installed_version())

    import torch
    from vllm.platforms import current_platform
    from vllm.v1.engine.llm_engine import LLMEngine

    from evaluator.engine.vllm.free_memory import wait_for_memory
    from evaluator.engine.vllm.sampling import Dialect

    on_cpu = bool(current_platform.is_cpu())
    if config.deterministic:
        _check_deterministic(able, current_platform)
    max_model_len, positions = _lengths(config.max_model_len, blueprint.longest)
    arguments = _arguments(config, served, positions)
    arguments |= _online(checkpoint)
    arguments |= _on_cpu(config, positions) if on_cpu else _on_gpu(config, blueprint, positions)
    if on_cpu and torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()  # the kernels of some schemes take it for granted that the system has been asked
    llm: Any = None
    try:
        engine_config, dialect = _engine_config(arguments, Dialect(v2=not on_cpu, replays=able.trace_replay))
        scoring, notes = _scoring(config, dialect)
        if current_platform.is_cuda_alike() and config.tensor_parallel == 1:
            wait_for_memory(config.gpu_memory_utilization)
        llm = LLMEngine.from_vllm_config(engine_config, disable_log_stats=True)
        if config.tensor_parallel > 1:
            on_workers(llm, "end_with_parent")
        on_workers(llm, "use_strict_ranks")
        if not dialect.v2:
            on_workers(llm, "use_row_sampler")
        if on_cpu and not config.compile:
            on_workers(llm, "fuse_norms")
        if on_cpu:  # where prompts are computed whole, their rows are there at once
            on_workers(llm, "score_in_one_step")
            dialect = dataclasses.replace(dialect, references=True)
        elif dialect.v2:
            dialect = dataclasses.replace(dialect, references=all(on_workers(llm, "carry_out_references")))
        if on_cpu and scoring == "forced":
            dialect = _score_in_one_step(llm, dialect)
    except Exception as error:  # whatever vLLM raises while it starts
        if llm is not None:
            llm.engine_core.shutdown()
        if isinstance(error, InputError):
            raise
        why = not_imported(error) or named(error)
        raise EngineError(f"{checkpoint}: vLLM could not start an engine: {why}") from error
    dtype = str(engine_config.model_config.dtype).removeprefix("torch.")
    return Started(
        llm=llm,
        dialect=dialect,
        max_model_len=max_model_len,
        positions=positions,
        max_num_seqs=arguments["max_num_seqs"],
        dtype=dtype,
        scoring=scoring,
        notes=notes,
        ahead=bool(engine_config.scheduler_config.async_scheduling),
        graphs=_graphs(engine_config),
        has_connector="kv_transfer_config" in arguments,
    )


def _lengths(wanted: int, longest: int | None) -> tuple[int, int]:
    """What a request may have, and the positions that vLLM is asked for.

    A prompt that is scored by prompt log-probabilities holds the continuation as well, and vLLM generates one token
    after it. Every engine may come to score so: one whose forced scores are wrong does.
    """
    return min(wanted, longest or wanted), min(wanted + 1, longest or wanted + 1)


def _scoring(config: EngineConfig, dialect: Dialect) -> tuple[Scoring, tuple[str, ...]]:
    """How continuations are scored, and what there is to say about it. On the V1 runner the sampler that forces is
    ours."""
    if not dialect.v2 or dialect.replays or config.scoring != "forced":
        return config.scoring, ()
    slower = f"vLLM {installed_version()} cannot generate given tokens (trace replay)"
    return "prompt_logprobs", (f"{slower}: answers are scored by prompt log-probabilities, which takes longer",)


def _score_in_one_step(llm: Any, dialect: Dialect) -> Dialect:
    """The dialect, with continuations scored in one step where they can be."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    from evaluator.engine.vllm.one_step import keep_last_context_token

    core = getattr(llm.engine_core, "engine_core", None)
    if core is None:  # it was told to live in another process
        return dialect
    groups = core.scheduler.kv_cache_config.kv_cache_groups
    # A sliding window's cached blocks end where the hit does and cannot be cut short, nor can caches of several kinds.
    if len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec):
        return dialect
    keep_last_context_token(core.scheduler)
    return dataclasses.replace(dialect, one_step=True)


def _arguments(config: EngineConfig, checkpoint: Path, max_model_len: int) -> dict[str, Any]:
    """vLLM's EngineArgs, but for those that depend on device and model runner."""
    return {
        "model": str(checkpoint),
        # Its own choice takes params.json and consolidated*.safetensors first, which nobody has checked.
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
        "worker_extension_cls": "evaluator.engine.vllm.weights.WorkerExtension",
    }


def _online(checkpoint: Path) -> dict[str, Any]:
    """What vLLM is to make of plain weights while it loads them."""
    scheme = online_scheme(read_config(checkpoint))
    return {} if scheme is None else {"quantization": scheme}


def _on_cpu(config: EngineConfig, max_model_len: int) -> dict[str, Any]:
    from vllm.config import KVTransferConfig

    return {
        "dtype": "float32" if config.dtype == "auto" else config.dtype,
        "block_size": config.block_size or _CPU_BLOCK_SIZE,
        "max_num_seqs": config.max_num_seqs or _CPU_REQUESTS,
        "max_num_batched_tokens": max(_CPU_STEP_TOKENS, max_model_len),
        # A prompt that is computed in pieces makes vLLM rewind the generator of a seeded request, which a CPU
        # generator cannot do ("CPU Generator does not use offset"): prompts are computed whole.
        "enable_chunked_prefill": False,
        "enforce_eager": not config.compile,
        "kv_transfer_config": KVTransferConfig(
            kv_connector="PartialBlocks",
            kv_connector_module_path="evaluator.engine.vllm.partial_blocks",
            kv_role="kv_both",
        ),
    }


def _on_gpu(config: EngineConfig, blueprint: Blueprint, max_model_len: int) -> dict[str, Any]:
    from vllm.platforms import current_platform

    from evaluator.engine.vllm.step_size import Accelerator, step_size

    # vLLM's own "auto" computes float32 checkpoints in bfloat16.
    own = blueprint.dtype if blueprint.dtype in _COMPUTED_IN else "auto"
    dtype = own if config.dtype == "auto" else config.dtype
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
    return {
        "dtype": dtype,
        "block_size": config.block_size,
        "max_num_seqs": requests,
        "max_num_batched_tokens": tokens,
        **graph_arguments(config.cuda_graphs, compile=config.compile, requests=requests, tokens=tokens),
    }


def _graphs(engine_config: Any) -> str:
    """Once an engine runs, vLLM has written there what became of them; workers of their own, into copies."""
    return str(getattr(engine_config.compilation_config.cudagraph_mode, "name", "NONE"))


def _engine_config(arguments: dict[str, Any], dialect: Dialect) -> tuple[Any, Dialect]:
    """vLLM's configuration and how its model runner is spoken to: V1 where vLLM would run that."""
    from vllm import EngineArgs

    given = {**arguments, **dialect.engine_arguments()}
    check_arguments(installed_version(), EngineArgs, given)
    try:
        made = EngineArgs(**given).create_engine_config()
    except ValueError as error:
        if not dialect.v2 or "trace replay" not in str(error):
            raise
    else:
        if not dialect.v2 or made.use_v2_model_runner:
            return made, dialect
    return _engine_config(arguments, dataclasses.replace(dialect, v2=False))  # a GPU served by the V1 runner


def _check_deterministic(able: Abilities, platform: Any) -> None:
    """Raises InputError where no number can be kept from depending on what is computed beside it.

    Which attention can keep that promise vLLM knows, and refuses to start with any other.
    """
    reason = None
    if platform.is_cpu():
        reason = _NOT_ON_A_CPU
    elif not able.batch_invariance:
        reason = f"vLLM {installed_version()} has no batch-invariant mode"
    elif platform.is_cuda() and not platform.has_device_capability(_INVARIANT_FROM):
        reason = f"vLLM's batch-invariant mode needs a GPU of compute capability {_INVARIANT_FROM / 10:.1f} or more"
    if reason is not None:
        os.environ.pop(BATCH_INVARIANT, None)
        raise InputError(f"engine: deterministic: {reason}")


def _prepare_environment(config: EngineConfig) -> None:
    """vLLM reads these when it is imported or when an engine starts; what the user has set stays."""
    if config.deterministic:
        _before_vllm(BATCH_INVARIANT, "deterministic")
    if config.cuda_graphs == "piecewise" and not serves_cpus():
        _before_vllm(BREAKABLE, "cuda_graphs: piecewise")
    defaults = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(config.kv_cache_gib),
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # the workers of tensor parallelism; ours has threads
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        INT4_AS_W4A8: "0",  # vLLM's own default makes another scheme of W4A16
        # Sampled requests have seeds, and such a step is never given to it. It would be imported all the same, which
        # fails where it is not installed, and compiled when an engine starts, which needs a CUDA compiler.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def _before_vllm(variable: str, setting: str) -> None:
    """Switch on what vLLM's modules read when they are imported. Raises InputError where it is too late for that."""
    if os.environ.get(variable) != "1" and "vllm" in sys.modules:
        raise InputError(f"engine: {setting}: vLLM is running in this process without it; start another process")
    os.environ[variable] = "1"
