"""The schemes of rounding, by the names of compressed-tensors and llm-compressor.

    W4A16         weights of 4 bits, one scale for 128 weights of a row       W4A16_ASYM
                  the same with zero points
    W8A16         weights of 8 bits, one scale for 128 weights of a row       W8A8
                  int8 weights and activations
    FP8_DYNAMIC   float8, one scale for each row and each token               FP8_BLOCK
                  one for 128 x 128 weights

What each means in detail is the installed compressed-tensors' preset: it is what vLLM
reads these layouts with.
"""

from dataclasses import dataclass
from typing import Any

from evaluator.core.errors import InputError, Json


@dataclass(frozen=True, slots=True)
class Scheme:
    term: str  # its usual name (evaluator/checkpoints/quantisation.py)
    bits: int  # of a stored weight
    format: str  # how compressed-tensors calls the layout of its tensors
    per: str  # the weights that share a scale
    # weights of a row that share a scale, unless a job says otherwise
    group: int | None = None


SCHEMES = {
    "W4A16": Scheme("W4A16", 4, "pack-quantized", "group 128", group=128),
    "W4A16_ASYM": Scheme("W4A16", 4, "pack-quantized", "group 128", group=128),
    "W8A16": Scheme("W8A16", 8, "pack-quantized", "group 128", group=128),
    "W8A8": Scheme("W8A8", 8, "int-quantized", "channel"),
    "FP8_DYNAMIC": Scheme("FP8", 8, "float-quantized", "channel"),
    "FP8_BLOCK": Scheme("FP8", 8, "float-quantized", "block 128x128"),
}


def preset(name: str, group_size: int | None) -> Any:
    """compressed-tensors' QuantizationScheme for linear layers. Raises InputError
    without the package."""
    try:
        from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
    except ImportError:
        raise InputError(
            "compress: the package compressed-tensors, which comes with vLLM, is not"
            " installed"
        ) from None
    try:
        scheme = preset_name_to_scheme(name, ["Linear"])
    except KeyError:
        raise InputError(
            f"compress: scheme {name!r} is not known to the installed"
            " compressed-tensors"
        ) from None
    if group_size is not None:
        scheme.weights.group_size = group_size
    return scheme


def config_groups(name: str, group_size: int | None) -> Json:
    """A scheme as it is written. Without fields at None: other versions may lack, or
    refuse, a field."""
    scheme = preset(name, group_size)
    return {"group_0": scheme.model_dump(mode="json", exclude_none=True)}
