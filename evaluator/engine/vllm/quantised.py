"""Which quantised checkpoints vLLM can serve here, said before anything starts; the answer is vLLM's (rehearsal.py)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.checkpoints.quantisation import Quantisation
from evaluator.engine.config import DType, EngineConfig
from evaluator.engine.vllm.rehearsal import rehearse
from evaluator.engine.vllm.start import serves_cpus
from evaluator.errors import InputError

# Layouts that left vLLM's core, and the packages that bring them back.
_PLUGINS = {"gguf": "vllm-gguf-plugin", "bitsandbytes": "vllm-bnb-plugin"}
# What serves a scheme where this processor does not; of those that are not named here only a GPU is known to.
_SERVED_BY = {
    "W4A16": "a processor with AVX-512, or a GPU",
    "W8A8": "a processor with VNNI instructions (int8 products overflow without them), or a GPU",
    "FP8": "scales per row and dynamic activations, a processor with AMX, or a GPU",
}
_TRIED: tuple[DType, ...] = ("bfloat16", "float32")  # on a CPU, in place of a dtype that does not work
_SET_DTYPE = "set --dtype {} (engine.dtype in a sweep file), which is then that of its base too"


def check_quantised(config: EngineConfig, checkpoints: Sequence[CheckpointInfo], *, here: bool) -> tuple[str, ...]:
    """What there is to say of how quantised checkpoints are served, a line each.

    `here`: the engines run on this machine. Raises InputError for the first checkpoint that cannot be served; it names
    scheme and dtype, and what could serve it.
    """
    notes = []
    for info in checkpoints:
        if info.quantisation is None:
            continue
        _check_plugin(info, info.quantisation)
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
    could = f"it needs {_SERVED_BY.get(quantisation.scheme, 'a GPU')}"
    for other in _TRIED if on_cpu else ():
        if other != dtype and rehearse(info.path, _in(config, other)).reason is None:
            could = _SET_DTYPE.format(other)
    raise InputError(f"checkpoint {info.path}: {quantisation.label} in {dtype}: {found.reason}; {could}")


def _in(config: EngineConfig, dtype: DType) -> EngineConfig:
    return config.model_copy(update={"dtype": dtype})
