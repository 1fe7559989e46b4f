"""Which quantised checkpoints vLLM certainly cannot serve, by config.json alone. It
refuses the others itself when it loads them."""

from importlib.metadata import PackageNotFoundError, distribution

from evaluator.checkpoints.quantisation import Quantisation
from evaluator.core.errors import InputError
from evaluator.engine import processor
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.schemes import cpu_dtypes
from evaluator.engine.vllm.start import serves_cpus

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
