"""What vLLM 0.32 serves on a CPU, as far as config.json settles it.
docs/quantised.md has the table.

A rehearsal (verify/rehearsal.py) finds out the others."""

from collections.abc import Collection

from evaluator.checkpoints.quantisation import ONLINE, Quantisation
from evaluator.engine import processor
from evaluator.engine.config import DType

_BOTH: tuple[DType, ...] = ("float32", "bfloat16")
_HALF: tuple[DType, ...] = ("bfloat16",)
_ONLY_GPUS = ("W8A16", "NVFP4", "MXFP4", "MXFP8")


def cpu_dtypes(
    quantisation: Quantisation, instructions: Collection[str]
) -> tuple[DType, ...] | None:
    """The dtypes that a CPU with these instructions serves it in; empty: it has no
    kernel. None: unknown."""
    scheme, per, online = (
        quantisation.scheme,
        quantisation.per,
        quantisation.library == ONLINE,
    )
    amx = {"amx_tile", "amx_int8"} <= {*instructions}
    if "avx2" not in instructions:  # the table is of x86
        return None
    if scheme == "W4A16":
        return _HALF if "avx512f" in instructions else ()
    if scheme == "W8A8":
        return (
            _HALF
            if amx
            else _BOTH
            if {"avx512_vnni", "avx_vnni"} & {*instructions}
            else ()
        )
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
