"""How a vLLM engine is started for a checkpoint: environment, arguments, and which
model runner it gets.

The device decides dtype, memory and graphs; the model runner decides everything else.
vLLM has two runners and chooses between them. V1 serves CPUs here. V2 serves GPUs, and
also CPUs if Triton computes there.

On a CPU everything is computed in float32 by default, on a GPU in the checkpoint's
dtype.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.core.errors import EngineError, InputError, one_line
from evaluator.core.gpus import nvidia_smi
from evaluator.engine.config import AUTO_CACHE, EngineConfig, Scoring
from evaluator.engine.vllm.arguments import (
    CPU_CACHE_GIB,
    of_cache,
    of_device,
    of_runner,
    wrong_heads,
)
from evaluator.engine.vllm.counters import DeviceClock, device_clock

if TYPE_CHECKING:
    from evaluator.engine.vllm.sampling import Dialect

# In the environment, before vLLM is imported:
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
BREAKABLE = "VLLM_USE_BREAKABLE_CUDAGRAPH"  # graphs of pieces, without torch.compile
_V2 = "VLLM_USE_V2_MODEL_RUNNER"  # 1 or 0 where vLLM is not to choose the runner
# int4 weights are computed with int8 activations, on AMX
INT4_AS_W4A8 = "VLLM_CPU_INT4_W4A8"
_SPACE = "VLLM_CPU_KVCACHE_SPACE"
# The environment of an engine; the user's own settings stay.
DEFAULTS = {
    _SPACE: str(CPU_CACHE_GIB),
    # the workers of tensor parallelism; ours has threads
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    INT4_AS_W4A8: "0",  # vLLM's own default makes another scheme of W4A16
    # Sampled requests have seeds, and vLLM never uses FlashInfer for a step with
    # seeds. But it would import it, which fails if it is not installed, and compile
    # it when an engine starts, which needs a CUDA compiler.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
_REASONS = 400  # characters of an error that lists reasons
# a GPU's compute capability, ten times, of batch-invariant kernels and of bfloat16
_AMPERE = 80
_SERVED = "0.32"  # vLLM's version; this folder replaces parts of it
_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A running engine and the settings of its start."""

    llm: Any  # vLLM's LLMEngine
    dialect: Dialect
    max_model_len: int  # prompt and generated tokens of a request
    positions: int  # that vLLM's engine has: one more, where the model has it
    max_num_seqs: int
    dtype: str  # "float32", "bfloat16"
    scoring: Scoring  # as configured, or what this vLLM can do
    notes: tuple[str, ...] = ()  # remarks for the user, one line each
    clock: DeviceClock | None = None  # of a GPU; None: a CPU computes only within steps
    # vLLM's name of the CUDA graphs in use; the attention may not support the requested
    # ones
    graphs: str = "NONE"


def installed_version() -> str:
    """vLLM's version, of whichever build is installed. Raises InputError if there is
    none."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    raise InputError(
        "engine 'vllm': neither vllm nor vllm-cpu is installed; use --engine torch or"
        " install one"
    )


def serves_cpus() -> bool:
    """Whether the installed vLLM is built for CPUs. vLLM itself also decides by this
    version, even with a GPU."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return any(distributions(name="vllm-cpu"))


def check_here(config: EngineConfig) -> None:
    """Raises InputError for what no engine on this machine can do; whether a GPU can
    do it only the engine knows."""
    installed = installed_version()
    if not re.match(rf"{re.escape(_SERVED)}(?!\d)", installed):
        raise InputError(
            f"engine 'vllm': vLLM {installed} is installed, but Resurface needs vLLM"
            f" {_SERVED}"
        )
    if config.deterministic and serves_cpus():
        raise InputError(
            "engine: deterministic: vLLM has no batch-invariant mode on a CPU; engine"
            " torch computes one request at a time"
        )


def check_model(config: EngineConfig, checkpoint: Checkpoint) -> None:
    """Raises InputError for a model that this machine's vLLM cannot compute, by its
    heads on a CPU and its dtype on a GPU. Imports nothing heavy."""
    place, dtype = str(checkpoint.config_file), config.dtype
    if serves_cpus():
        if reason := wrong_heads(checkpoint.config):
            raise InputError(f"{place}: {reason}; use --engine torch")
        return
    try:
        able = nvidia_smi("compute_cap", os.environ.get("CUDA_VISIBLE_DEVICES"))
        old = 10 * min(map(float, able)) < _AMPERE
    except (OSError, subprocess.CalledProcessError, ValueError):
        return
    if old and "bfloat16" in (dtype, checkpoint.dtype if dtype == "auto" else ""):
        raise InputError(
            f"{place}: vLLM computes bfloat16 on GPUs of compute capability 8.0 or more,"
            f" and this one has {min(able)}: set --dtype float32 (engine.dtype)"
        )


def start(config: EngineConfig, checkpoint: Checkpoint, served: Path) -> Started:
    """Build the engine and load the checkpoint, from the directory `served`. Raises
    EngineError if vLLM cannot."""
    _prepare_environment(config)
    # those of vLLM's own imports are nothing that a user can mend
    with warnings.catch_warnings(action="ignore"):
        return _start(config, checkpoint, served)


def on_workers(llm: Any, method: str, *arguments: Any) -> list[Any]:
    """Call a method of the worker extension (worker.py) on every worker; returns
    their answers, by rank."""
    answers: list[Any] = llm.collective_rpc(method, args=arguments)
    return answers


def named(error: BaseException) -> str:
    """An error of vLLM in short: its type and the first line of its text, which can
    have pages. If that line only announces reasons, they are added."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if not lines:
        return f"{type(error).__name__}: no message"
    first = one_line(lines[0])
    if "validation error for" in first or first.endswith(":"):
        first = one_line(" ".join(lines).partition(" [type=")[0], _REASONS)
    if "failed to be inspected" in first:
        first += "; it lacks a package, and --engine torch may do without"
    return f"{type(error).__name__}: {first}"


def _start(config: EngineConfig, checkpoint: Checkpoint, served: Path) -> Started:
    """The device decides the first arguments, these decide the runner, and the
    runner decides the others."""
    platform = _import_vllm()
    from evaluator.engine.vllm.sampling import Dialect

    on_cpu = bool(platform.is_cpu())
    if config.deterministic and not platform.has_device_capability(_AMPERE):
        raise InputError(
            "engine: deterministic: vLLM's batch-invariant mode needs a GPU of compute"
            f" capability {_AMPERE / 10:.1f} or more"
        )
    arguments = _device_arguments(config, checkpoint, served, platform)
    positions = arguments["max_model_len"]
    llm = None
    try:
        v2 = _runs_v2(arguments, on_cpu=on_cpu)
        weights = checkpoint.bytes // config.tensor_parallel
        arguments |= of_runner(config, positions, weights, v2=v2)
        engine_config = _engine_config(arguments)
        llm = _build(config, engine_config, platform)
        one_step = patch_engine(llm, config, v2=v2)
    except InputError:
        raise
    except Exception as error:  # whatever vLLM raises while it starts
        if llm is not None:
            llm.engine_core.shutdown()
        raise EngineError(f"vLLM could not start an engine: {named(error)}") from error
    by_token = config.kv_cache != AUTO_CACHE
    # A running engine has written its graphs there; separate workers write into copies.
    graphs = engine_config.compilation_config.cudagraph_mode
    return Started(
        llm=llm,
        dialect=Dialect(v2=v2, one_step=one_step and not by_token, by_token=by_token),
        max_model_len=min(config.max_model_len, positions),
        positions=positions,
        max_num_seqs=arguments["max_num_seqs"],
        dtype=str(engine_config.model_config.dtype).removeprefix("torch."),
        scoring=config.scoring,
        clock=None if on_cpu else device_clock(llm, workers=config.tensor_parallel),
        graphs=str(getattr(graphs, "name", "NONE")),
    )


def _import_vllm() -> Any:
    """vLLM's platform. Raises InputError if vLLM cannot be imported: perhaps a library
    of the system or the GPU's driver is missing."""
    try:
        import vllm.v1.engine.llm_engine  # noqa: F401
        from vllm.platforms import current_platform
    except (ImportError, OSError) as error:
        raise InputError(
            f"engine 'vllm': vLLM {installed_version()} cannot be imported:"
            f" {one_line(error)}"
        ) from error
    return current_platform


def _device_arguments(
    config: EngineConfig, checkpoint: Checkpoint, served: Path, platform: Any
) -> dict[str, Any]:
    # A prompt that is scored by prompt log-probabilities holds the continuation as
    # well, and vLLM generates one token after it. Every engine may need this: it scores
    # in this way if its forced scores are wrong.
    positions = config.max_model_len + 1
    positions = min(positions, checkpoint.longest or positions)
    on_cpu = bool(platform.is_cpu())
    arguments = of_device(config, checkpoint, served, positions, on_cpu=on_cpu)
    gpu_bytes = None if on_cpu else platform.get_device_total_memory()
    dtype = arguments["dtype"]
    return arguments | of_cache(config, checkpoint, dtype, positions, gpu_bytes)


def _build(config: EngineConfig, engine_config: Any, platform: Any) -> Any:
    """vLLM's engine."""
    import torch
    from vllm.v1.engine.llm_engine import LLMEngine

    if platform.is_cpu() and torch.cpu._is_amx_tile_supported():
        # request AMX: the kernels of some schemes take it for granted
        torch.cpu._init_amx()
    elif platform.is_cuda_alike():
        wait_for_memory(config.gpu_memory_utilization, config.tensor_parallel)
    return LLMEngine.from_vllm_config(engine_config, disable_log_stats=True)


def patch_engine(llm: Any, config: EngineConfig, *, v2: bool) -> bool:
    """Patch the workers and the scheduler of a new engine; returns whether it scores in
    one step. For that, the scheduler must compute the rows that scores need. It also
    shares parts of cache blocks.
    """
    from evaluator.engine.vllm.block_hashes import remember_hashes
    from evaluator.engine.vllm.prompt_scores import keep_last_context_token
    from evaluator.engine.vllm.step_logprobs import hand_out_places

    if config.tensor_parallel > 1:
        on_workers(llm, "end_with_parent")
    on_workers(llm, "prepare_v2" if v2 else "prepare_v1")
    core = llm.engine_core.engine_core
    hand_out_places(core.scheduler)
    remember_hashes(core)
    if config.scoring != "forced" or not keep_last_context_token(core.scheduler):
        return False
    if v2:
        from evaluator.engine.vllm.v2.partial_blocks import share_partial_blocks

        share_partial_blocks(core.scheduler)
    return True


def wait_for_memory(share: float, gpus: int = 1) -> None:
    """Wait until `share` of each of an engine's GPUs is free, a minute at most.

    The driver may take seconds to free the memory of a process that has ended. But
    vLLM checks only once, and does not start if it finds too little."""
    # A query through CUDA occupies some GPU memory. An engine in this process needs
    # that memory anyway. But workers in other processes would lose it, so their GPUs
    # are queried with nvidia-smi.
    import torch

    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        memories = [torch.cuda.mem_get_info()] if gpus == 1 else _memories(gpus)
        if all(free >= math.ceil(total * share) for free, total in memories):
            return
        time.sleep(_LOOK_SECONDS)


def _memories(gpus: int) -> list[tuple[int, int]]:
    """The free and the whole memory of the first visible GPUs, in MiB; empty without
    an answer of nvidia-smi."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = (
        [str(number) for number in range(gpus)]
        if visible is None
        else visible.split(",")[:gpus]
    )
    try:
        lines = nvidia_smi("memory.free,memory.total", ",".join(names))
        rows = [line.split(",") for line in lines]
        return [(int(free), int(total)) for free, total in rows]
    except (OSError, subprocess.CalledProcessError, ValueError):
        return []


def _runs_v2(arguments: dict[str, Any], *, on_cpu: bool) -> bool:
    """Which model runner vLLM would run: V2 or V1. Raises InputError for one that it
    refuses, or that we do not serve. vLLM looks at its environment, at the model,
    and for Triton."""
    try:
        v2 = bool(_engine_config(arguments).use_v2_model_runner)
    except ValueError as error:
        if "Model Runner V2" not in str(error):
            raise
        raise InputError(
            f"engine 'vllm': vLLM cannot run its V2 model runner ({_V2}=1):"
            f" {named(error)}"
        ) from error
    if not v2 and not on_cpu:
        raise InputError(
            "engine 'vllm': vLLM would run its V1 model runner, which is served on CPUs"
            f" only: install Triton, and do not set {_V2}=0"
        )
    return v2


def _engine_config(arguments: dict[str, Any]) -> Any:
    """vLLM's configuration."""
    from vllm import EngineArgs

    return EngineArgs(**arguments).create_engine_config()


def _prepare_environment(config: EngineConfig) -> None:
    """vLLM reads these when it is imported or when an engine starts. Raises
    InputError where it is too late for one."""
    wanted = {BATCH_INVARIANT: "deterministic"} if config.deterministic else {}
    if config.cuda_graphs == "piecewise" and not serves_cpus():
        wanted[BREAKABLE] = "cuda_graphs: piecewise"
    # vLLM's modules read these when they are imported
    for variable, setting in wanted.items():
        if os.environ.get(variable) != "1" and "vllm" in sys.modules:
            raise InputError(
                f"engine: {setting}: vLLM is running in this process without it; start"
                " another process"
            )
        os.environ[variable] = "1"
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the core is in this process
    if config.kv_cache_gib is not None:
        os.environ[_SPACE] = str(config.kv_cache_gib)
