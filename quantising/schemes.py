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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    name: str
    bits: int  # of a stored weight
    format: str  # how compressed-tensors calls the layout of its tensors
    term: str  # its usual name (evaluator/checkpoints/quantisation.py)
    per: str = "group 128"  # the weights that share a scale
    # weights of a row that share a scale, unless a job says otherwise
    group: int | None = None


SCHEMES = {
    each.name: each
    for each in (
        Scheme(name="W4A16", term="W4A16", bits=4, format="pack-quantized", group=128),
        Scheme(
            name="W4A16_ASYM", term="W4A16", bits=4, format="pack-quantized", group=128
        ),
        Scheme(name="W8A16", term="W8A16", bits=8, format="pack-quantized", group=128),
        Scheme(name="W8A8", term="W8A8", per="channel", bits=8, format="int-quantized"),
        Scheme(
            name="FP8_DYNAMIC",
            term="FP8",
            per="channel",
            bits=8,
            format="float-quantized",
        ),
        Scheme(
            name="FP8_BLOCK",
            term="FP8",
            per="block 128x128",
            bits=8,
            format="float-quantized",
        ),
    )
}


def preset(name: str, group_size: int | None) -> Any:
    """A QuantizationScheme for linear layers. Raises InputError without the package
    or for an unknown name.

    Write it without fields at None: other versions may lack, or refuse, a field."""
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


def quantization_config(
    name: str, group_size: int | None, ignore: Sequence[str]
) -> dict[str, Any]:
    """config.json's section for a checkpoint whose linear layers use a scheme,
    except those in `ignore`."""
    scheme = preset(name, group_size)
    return {
        "quant_method": "compressed-tensors",
        "format": SCHEMES[name].format,
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "config_groups": {"group_0": scheme.model_dump(mode="json", exclude_none=True)},
        "ignore": list(ignore),
    }
