"""Which quantised checkpoints vLLM can serve here, checked before anything starts: vLLM itself tries (rehearsal.py)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.checkpoints.quantisation import Quantisation
from evaluator.core.errors import EngineError, InputError
from evaluator.engine.config import DType, EngineConfig
from evaluator.engine.processor import instruction_sets
from evaluator.engine.vllm.start import serves_cpus
from evaluator.engine.vllm.verify.rehearsal import rehearse

# Layouts that left vLLM's core, and the packages that bring them back.
_PLUGINS = {"gguf": "vllm-gguf-plugin", "bitsandbytes": "vllm-bnb-plugin"}
# By scheme: the hardware that serves it, and the instructions that a processor needs for it. If this processor has the
# instructions, another processor is not suggested. For other schemes, only a GPU is known to serve them.
_SERVED_BY = {
    "W4A16": ("a processor with AVX-512, or a GPU", {"avx512f"}),
    "W8A8": (
        "a processor with VNNI instructions (int8 products overflow without them), or a GPU",
        {"avx512_vnni", "avx_vnni"},
    ),
    "FP8": ("scales per row and dynamic activations, a processor with AMX, or a GPU", {"amx_tile", "amx_int8"}),
}
# How a missing kernel shows in vLLM's and torch's words.
_NO_KERNEL = re.compile(
    r"\b_\w*C::|no attribute '|\b(?:no|find a|compatible) \w*\s?kernel|NotImplementedError|not implemented",
    re.IGNORECASE,
)
_MOST = 300  # characters of another reason
_HARMLESS_ORDER = {(library, "channel") for library in ("gptq", "gptq_marlin", "auto_gptq")}
_TRIED: tuple[DType, ...] = ("bfloat16", "float32")  # on a CPU, in place of a dtype that does not work
_SET_DTYPE = "set --dtype {} (engine.dtype in a sweep file), which is then that of its base too"


def check_quantised(config: EngineConfig, checkpoints: Sequence[CheckpointInfo], *, here: bool) -> tuple[str, ...]:
    """Notes on how quantised checkpoints are served, a line each.

    `here`: the engines run on this machine. Raises InputError for the first checkpoint that cannot be served; it names
    scheme and dtype, and what could serve it.
    """
    notes = []
    for info in checkpoints:
        if info.quantisation is None:
            continue
        _check_plugin(info, info.quantisation)
        _check_order(info, info.quantisation)
        if here:
            notes.append(_rehearsed(config, info, info.quantisation))
    return tuple(notes)


def _check_plugin(info: CheckpointInfo, quantisation: Quantisation) -> None:
    plugin = _PLUGINS.get(quantisation.library)
    if plugin is None:
        return
    try:
        distribution(plugin)
    except PackageNotFoundError:
        raise InputError(
            f"checkpoint {info.path}: {quantisation.label}: vLLM reads {quantisation.library} with the package "
            f"{plugin}, which is not installed"
        ) from None


def _check_order(info: CheckpointInfo, quantisation: Quantisation) -> None:
    """With one group to a row, GPTQ's order changes nothing, and vLLM takes it."""
    if quantisation.activation_order == "group" and (quantisation.library, quantisation.per) not in _HARMLESS_ORDER:
        raise InputError(
            f"checkpoint {info.path}: {quantisation.label}: vLLM has removed groups in activation order (desc_act, "
            "actorder), on every processor and GPU; quantise again with desc_act: false or a static order"
        )


def _plain(reason: str) -> str:
    """A rehearsal's reason for people: whole words, and no names of kernels."""
    if _NO_KERNEL.search(reason):
        return "vLLM has no kernel for this scheme and dtype here"
    return textwrap.shorten(reason, _MOST, placeholder=" ...")


def _needs(scheme: str) -> str:
    served_by, lacking = _SERVED_BY.get(scheme, ("a GPU", set()))
    return "it needs a GPU" if lacking & {*instruction_sets()} else f"it needs {served_by}"


def _rehearsed(config: EngineConfig, info: CheckpointInfo, quantisation: Quantisation) -> str:
    found = rehearse(info.path, config)
    if found.reason is None:
        by = f" by {', '.join(found.kernels)}" if found.kernels else ""
        return (
            f"{info.name}: {quantisation.label}, computed in {found.dtype}{by}"
            if found.dtype
            else (f"{info.name}: {quantisation.label}")
        )
    on_cpu = serves_cpus()
    dtype = "float32" if on_cpu and config.dtype == "auto" else config.dtype
    could = _needs(quantisation.scheme)
    for other in _TRIED if on_cpu else ():
        if other != dtype and rehearse(info.path, config.model_copy(update={"dtype": other})).reason is None:
            could = _SET_DTYPE.format(other)
    place = f"checkpoint {info.path}: {quantisation.label} in {dtype}"
    raise InputError(f"{place}: {_plain(found.reason)}; {could}") from EngineError(found.reason)  # whole with --debug
