"""What vLLM 0.32 serves on a CPU, as far as config.json settles it.
docs/quantised.md has the table. vLLM itself refuses the others when it loads them."""

from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, distribution

from evaluator.checkpoints.quantisation import ONLINE, Quantisation
from evaluator.checkpoints.shapes import text_model
from evaluator.core.errors import Document, InputError
from evaluator.engine import processor
from evaluator.engine.config import DType, EngineConfig
from evaluator.engine.vllm.start import serves_cpus

_BOTH: tuple[DType, ...] = ("float32", "bfloat16")
_HALF: tuple[DType, ...] = ("bfloat16",)
# Layouts that left vLLM's core, and the packages that bring them back.
_PLUGINS = {"gguf": "vllm-gguf-plugin", "bitsandbytes": "vllm-bnb-plugin"}
# By scheme: the hardware that serves it. For others, only a GPU is known to.
_SERVED_BY = {
    "W4A16": "a processor with AVX-512, or a GPU",
    "W8A8": (
        "a processor with VNNI instructions (int8 products overflow without them), or a"
        " GPU"
    ),
    "FP8": "scales per row and dynamic activations, a processor with AMX, or a GPU",
}
_GPTQ = ("gptq", "gptq_marlin", "auto_gptq")
_ONLY_GPUS = ("W8A16", "NVFP4", "MXFP4", "MXFP8")


def cpu_dtypes(
    quantisation: Quantisation, instructions: Collection[str]
) -> tuple[DType, ...] | None:
    """The dtypes that a CPU with these instructions serves it in; empty: it has no
    kernel. None: unknown."""
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
    if not (here and serves_cpus()):
        return
    served = cpu_dtypes(quantisation, processor.instruction_sets())
    if served == ():
        needed = _SERVED_BY.get(quantisation.scheme, "a GPU")
        raise InputError(
            f"{label}: vLLM has no kernel for this scheme here; it needs {needed}"
        )
    if served is not None and config.dtype not in ("auto", *served):
        raise InputError(
            f"{label} in {config.dtype}: vLLM has no kernel for this scheme and dtype"
            f" here; set --dtype {served[0]} (engine.dtype in a sweep file), which is"
            " then that of its base too"
        )


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
