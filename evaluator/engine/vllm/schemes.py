"""What vLLM 0.32 serves on a CPU, as far as config.json settles it.
docs/quantised.md has the table. vLLM itself refuses the others when it loads them."""

from collections.abc import Collection
from dataclasses import replace

from evaluator.checkpoints.quantisation import ONLINE, Quantisation
from evaluator.checkpoints.shapes import text_model
from evaluator.core.errors import Document
from evaluator.engine import processor
from evaluator.engine.config import DType

_BOTH: tuple[DType, ...] = ("float32", "bfloat16")
_HALF: tuple[DType, ...] = ("bfloat16",)
_ONLY_GPUS = ("W8A16", "NVFP4", "MXFP4", "MXFP8")


def cpu_dtypes(
    quantisation: Quantisation, instructions: Collection[str]
) -> tuple[DType, ...] | None:
    """The dtypes that a CPU with these instructions serves it in: all of its schemes,
    as far as they are known. Empty: it has no kernel. None: unknown."""
    schemes = quantisation.scheme.split(" and ")
    served = [
        _of_scheme(replace(quantisation, scheme=name), instructions) for name in schemes
    ]
    known = [dtypes for dtypes in served if dtypes is not None]
    if not known:
        return None
    return tuple(name for name in _BOTH if all(name in dtypes for dtypes in known))


def _of_scheme(
    quantisation: Quantisation, instructions: Collection[str]
) -> tuple[DType, ...] | None:
    scheme, per = quantisation.scheme, quantisation.per
    online = quantisation.library == ONLINE
    amx = {"amx_tile", "amx_int8"} <= {*instructions}
    if "avx2" not in instructions:  # the table is of x86
        return None
    if scheme == "W4A16":
        return _HALF if "avx512f" in instructions else ()
    if scheme == "W8A8":
        if amx:
            return _HALF
        return _BOTH if {"avx512_vnni", "avx_vnni"} & {*instructions} else ()
    if scheme.startswith(_ONLY_GPUS):
        return None if online and amx else ()
    if scheme != "FP8":
        return None
    if per == "channel":  # static activations would have no kernel
        return _HALF if online else None
    if per is None and quantisation.library != "fp8":
        return None
    if amx:
        return None if online and per != "tensor" else _HALF
    return ()


def cpu_auto(quantisation: Quantisation | None) -> DType:
    """What dtype `auto` is on this CPU: float32, unless only bfloat16 is served."""
    served = (
        None
        if quantisation is None
        else cpu_dtypes(quantisation, processor.instruction_sets())
    )
    return "bfloat16" if served == _HALF else "float32"


def longrope_remark(model: Document, max_model_len: int) -> str | None:
    """Which factors of LongRoPE vLLM uses for a model; None for another one."""
    model = text_model(model)
    scaling = model.get("rope_parameters") or model.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) not in ("longrope", "su"):
        return None
    name = "original_max_position_embeddings"
    short = model.get(name) or scaling.get(name)
    if not isinstance(short, int):
        return None
    factors = "long" if max_model_len + 1 > short else "short"
    return (
        f"LongRoPE: vLLM computes every prompt with the {factors} factors, as requests"
        f" have up to {max_model_len} tokens; transformers uses the long ones for more"
        f" than {short} only"
    )
