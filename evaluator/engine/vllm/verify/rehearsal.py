"""Which quantised checkpoints this machine's vLLM can serve, checked before anything
starts.

A separate process tries it::

    python -m evaluator.engine.vllm.verify.rehearsal CHECKPOINT ENGINE ANSWER

The available kernels depend on vLLM's build, the processor's instructions, layout,
dtype and shapes. A missing kernel has many symptoms: the process may end, or a kernel
may return wrong values. For example, int8 products overflow on a processor without VNNI
instructions. So an engine loads the checkpoint's first layer, with all checks of a
whole one. On a GPU vLLM only reads the configuration: the memory may be in use, and
engines may be on other nodes.
"""

import contextlib
import json
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.first_layer import first_layer, shortened
from evaluator.checkpoints.info import CheckpointInfo
from evaluator.checkpoints.overlay import served_config
from evaluator.checkpoints.quantisation import ONLINE, Quantisation, online_scheme
from evaluator.core.config import Frozen
from evaluator.core.errors import EngineError, InputError, one_line
from evaluator.core.isolated import run_module
from evaluator.engine import processor
from evaluator.engine.base import FixedSource, Generate
from evaluator.engine.config import DType, EngineConfig, build_engine
from evaluator.engine.self_check import Memory, code_digest
from evaluator.engine.vllm.schemes import cpu_auto, cpu_dtypes
from evaluator.engine.vllm.start import INT4_AS_W4A8, installed_version, serves_cpus

# Layouts that left vLLM's core, and the packages that bring them back.
_PLUGINS = {"gguf": "vllm-gguf-plugin", "bitsandbytes": "vllm-bnb-plugin"}
# By scheme: the hardware that serves it, and the instructions that a processor needs
# for it. If this processor has the instructions, another processor is not suggested.
# For other schemes, only a GPU is known to serve them.
_SERVED_BY = {
    "W4A16": ("a processor with AVX-512, or a GPU", {"avx512f"}),
    "W8A8": (
        (
            "a processor with VNNI instructions (int8 products overflow without them),"
            " or a GPU"
        ),
        {"avx512_vnni", "avx_vnni"},
    ),
    "FP8": (
        "scales per row and dynamic activations, a processor with AMX, or a GPU",
        {"amx_tile", "amx_int8"},
    ),
}
# How a missing kernel shows in vLLM's and torch's words.
_NO_KERNEL = re.compile(
    r"\b_\w*C::|no attribute '|\b(?:no|find a|compatible)"
    r" \w*\s?kernel|NotImplementedError|not implemented",
    re.IGNORECASE,
)
_MOST = 300  # characters of another reason
_GPTQ = ("gptq", "gptq_marlin", "auto_gptq")
# on a CPU, in place of a dtype that does not work
_TRIED: tuple[DType, ...] = ("bfloat16", "float32")
_SET_DTYPE = (
    "set --dtype {} (engine.dtype in a sweep file), which is then that of its base too"
)
_POSITIONS = 64
_REASON = 500  # characters


class Rehearsal(Frozen):
    """The result of a rehearsal."""

    # why the checkpoint cannot be served, in one line; None: it can
    reason: str | None = None
    # that it was computed in; None where only the configuration was read
    dtype: str | None = None
    # vLLM's names of those that multiplied the quantised matrices
    kernels: tuple[str, ...] = ()


def check_quantisation(
    config: EngineConfig, place: str, quantisation: Quantisation, here: bool
) -> None:
    """Raises InputError for what vLLM, or its kernels on this CPU if `here`, cannot
    serve; `place` names it."""
    label = f"{place}: {quantisation.label}"
    if (plugin := _PLUGINS.get(quantisation.library)) is not None:
        try:
            distribution(plugin)
        except PackageNotFoundError:
            raise InputError(
                f"{label}: vLLM reads {quantisation.library} with the package {plugin},"
                " which is not installed"
            ) from None
    # With one group to a row, GPTQ's order changes nothing, and vLLM takes it.
    harmless = quantisation.per == "channel" and quantisation.library in _GPTQ
    if quantisation.activation_order == "group" and not harmless:
        raise InputError(
            f"{label}: vLLM has removed groups in activation order (desc_act,"
            " actorder), on every processor and GPU; quantise again with desc_act:"
            " false or a static order"
        )
    served = (
        cpu_dtypes(quantisation, processor.instruction_sets())
        if here and serves_cpus()
        else None
    )
    if served == ():
        raise InputError(
            f"{label}: vLLM has no kernel for this scheme here; {_needs(quantisation)}"
        )
    if served is not None and config.dtype not in ("auto", *served):
        could = _SET_DTYPE.format(served[0])
        raise InputError(
            f"{label} in {config.dtype}: vLLM has no kernel for this scheme and dtype"
            f" here; {could}"
        )


def rehearse_all(
    config: EngineConfig, checkpoints: Sequence[CheckpointInfo]
) -> tuple[str, ...]:
    """A line on each quantised checkpoint. Raises InputError for the first that
    cannot be served on this machine; it names scheme and dtype, and what could serve
    it."""
    return tuple(
        _rehearsed(config, info, info.quantisation)
        for info in checkpoints
        if info.quantisation is not None
    )


def _rehearsed(
    config: EngineConfig, info: CheckpointInfo, quantisation: Quantisation
) -> str:
    """A note on a checkpoint that can be served. Raises InputError for another one."""
    found = rehearse(info.path, config)
    if found.reason is None:
        by = f" by {', '.join(found.kernels)}" if found.kernels else ""
        how = f", computed in {found.dtype}{by}" if found.dtype else ""
        return f"{info.name}: {quantisation.label}{how}"
    on_cpu = serves_cpus()
    dtype = (
        cpu_auto(quantisation) if on_cpu and config.dtype == "auto" else config.dtype
    )
    remedy = _needs(quantisation)
    for other in _TRIED if on_cpu else ():
        tried = config.model_copy(update={"dtype": other})
        if other != dtype and rehearse(info.path, tried).reason is None:
            remedy = _SET_DTYPE.format(other)
    why = textwrap.shorten(found.reason, _MOST, placeholder=" ...")
    if _NO_KERNEL.search(found.reason):  # no names of kernels
        why = "vLLM has no kernel for this scheme and dtype here"
    place = f"checkpoint {info.path}: {quantisation.label} in {dtype}"
    # whole with --debug
    raise InputError(f"{place}: {why}; {remedy}") from EngineError(found.reason)


def _needs(quantisation: Quantisation) -> str:
    served_by, lacking = _SERVED_BY.get(quantisation.scheme, ("a GPU", set()))
    return (
        "it needs a GPU"
        if lacking & {*processor.instruction_sets()}
        else f"it needs {served_by}"
    )


def rehearse(checkpoint: Path, config: EngineConfig) -> Rehearsal:
    """Rehearse a checkpoint, or recall an earlier success. Failures are tried again."""
    combination = {
        "config": json.dumps(shortened(Checkpoint(checkpoint).config), sort_keys=True),
        "dtype": config.dtype,
        "tensor_parallel": str(config.tensor_parallel),
        "vllm": installed_version(),
        "instructions": " ".join(processor.instruction_sets()),
        "int4": os.environ.get(INT4_AS_W4A8, ""),
        "code": code_digest(Path(__file__).parents[1]),
    }
    memory = Memory("rehearsals")
    if (known := memory.text(combination)) is not None:
        with contextlib.suppress(ValueError):
            return Rehearsal.model_validate_json(known)
    found = _in_a_process(checkpoint, config)
    if found.reason is None:
        memory.add(combination, found.model_dump_json())
    return found


def _in_a_process(checkpoint: Path, config: EngineConfig) -> Rehearsal:
    with tempfile.TemporaryDirectory(prefix="resurface-rehearsal-") as folder:
        answer, log = Path(folder) / "answer.json", Path(folder) / "log"
        arguments = [str(checkpoint.absolute()), config.model_dump_json(), str(answer)]
        ending = run_module("evaluator.engine.vllm.verify.rehearsal", arguments, log)
        if answer.exists():
            return Rehearsal.model_validate_json(answer.read_bytes())
        return Rehearsal(reason=f"vLLM's process {ending.how} when it tried to")


def _read_by_vllm(checkpoint: Path) -> Rehearsal:
    """Whether vLLM knows the layout and takes the configuration, and this GPU is not
    too old for it."""
    from vllm.model_executor.layers.quantization import get_quantization_config
    from vllm.platforms import current_platform

    config = Checkpoint(checkpoint).config
    if (scheme := online_scheme(config)) is not None:
        from vllm.config.quantization import ONLINE_QUANT_SHORTHAND_NAMES

        if scheme not in ONLINE_QUANT_SHORTHAND_NAMES:
            return Rehearsal(
                reason=f"this vLLM does not quantise to {scheme} while it loads"
            )
        kind = get_quantization_config(ONLINE)
    else:
        config = dict(served_config(config))
        layout = dict(config["quantization_config"])
        method = str(layout.get("quant_method", "compressed-tensors"))
        kind = get_quantization_config(method.lower())
        kind.from_config(layout)
    if not current_platform.has_device_capability(kind.get_min_capability()):
        capability = kind.get_min_capability() / 10
        return Rehearsal(
            reason=(
                f"vLLM serves it on GPUs of compute capability {capability:.1f} or more"
            )
        )
    return Rehearsal()


def _answer(checkpoint: Path, config: EngineConfig) -> Rehearsal:
    if not serves_cpus():
        return _read_by_vllm(checkpoint)
    settings = {
        "max_model_len": _POSITIONS,
        "max_num_seqs": 1,
        "compile": False,
        "scoring": "prompt_logprobs",
    }
    with tempfile.TemporaryDirectory(prefix="resurface-rehearsal-") as folder:
        engine: Any = build_engine(config.model_copy(update=settings))
        engine.load(first_layer(checkpoint, Path(folder)))
        request = Generate(
            request_id="rehearsal", prompt_ids=(0, 1, 2, 3), max_tokens=2
        )
        list(engine.run(FixedSource([request])))
        return Rehearsal(dtype=engine.dtype, kernels=engine.quantised_kernels())


def main() -> None:
    checkpoint, config, answer = sys.argv[1:]
    try:
        found = _answer(Path(checkpoint), EngineConfig.model_validate_json(config))
    except (EngineError, InputError) as error:
        # The reason needs no path: the directory of the one layer is deleted, and the
        # caller names the checkpoint.
        found = Rehearsal(reason=re.sub(r"^/\S+: ", "", one_line(error, _REASON)))
    except BaseException as error:  # vLLM can raise anything, even DeprecationWarning
        found = Rehearsal(reason=f"{type(error).__name__}: {one_line(error, _REASON)}")
    written = Path(f"{answer}.writing")
    written.write_text(found.model_dump_json(), encoding="utf-8")
    written.replace(answer)
    os._exit(0)  # vLLM's threads and workers need not be waited for


if __name__ == "__main__":
    main()
