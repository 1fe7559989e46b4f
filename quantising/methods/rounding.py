"""Every matrix of the decoder layers rounded to the nearest value of a scheme, a shard
at a time.

The scales are those of the largest weight that shares one, kept in the weights' own
dtype as llm-compressor keeps them; weights are divided by what is kept. Scales,
rounding and layout are compressed-tensors' functions. No data is needed.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.files import write_json
from evaluator.checkpoints.tensors import write_index
from evaluator.core.errors import InputError
from pruning.model.architectures import architecture_of
from pruning.model.decoder import Decoder
from quantising.methods.base import IGNORED, Settings
from quantising.schemes import SCHEMES, config_groups, preset

# Of a scale when it is cast: bfloat16 has .4 %, and small numbers of float16 more.
_SCALE_ERROR = 0.01


def matrices(checkpoint: Checkpoint, config: Settings) -> list[str]:
    """The matrices to quantise, by layer. Raises InputError for another kind, a
    group that leaves a rest, or none."""
    architecture, file = architecture_of(checkpoint), checkpoint.config_file
    if architecture.text_config:
        raise InputError(
            f"{file}: one of several towers: rounding quantises models of text alone"
        )
    # what an engine would take for quantised, too
    if architecture.experts or architecture.dense:
        raise InputError(
            f"{file}: its router or gates would have to stay as they are: rounding"
            " quantises whole layers"
        )
    modules = {name.removesuffix(".weight") for name in checkpoint.tensors}
    for pattern in set(config.ignore) - {*IGNORED}:
        if not any(ignored(module, [pattern]) for module in modules):
            raise InputError(
                f"compress: ignore: {pattern}: no module of {checkpoint.path} has this"
                " name; write a whole name, or re:PATTERN"
            )
    group = config.group_size or SCHEMES[config.scheme].group
    chosen = []
    for name, (_, columns) in (
        Decoder(checkpoint, torch.device("cpu")).matrices().items()
    ):
        if ignored(name.removesuffix(".weight"), config.ignore):
            continue
        if group is not None and columns % group:
            raise InputError(
                f"{checkpoint.path}: scheme {config.scheme}: group_size {group} does"
                f" not divide the {columns} columns of {name}; set group_size"
            )
        chosen.append(name)
    if not chosen:
        raise InputError(
            f"compress: ignore: {', '.join(config.ignore)}: leaves no matrix to"
            " quantise"
        )
    return chosen


def ignored(module: str, patterns: Iterable[str]) -> bool:
    """Whether `ignore`, as llm-compressor reads it, names a module: by its name, or
    by a pattern after `re:`."""
    for pattern in patterns:
        if pattern == module:
            return True
        if pattern.startswith("re:") and re.match(pattern.removeprefix("re:"), module):
            return True
    return False


def write(checkpoint: Checkpoint, folder: Path, config: Settings) -> None:
    """Fill `folder`, one shard in memory. Raises InputError as `matrices` does."""
    from safetensors.torch import load_file, save_file

    chosen = set(matrices(checkpoint, config))
    how = preset(config.scheme, config.group_size)
    layout = SCHEMES[config.scheme].format
    homes: dict[str, str] = {}
    size = 0
    for file in checkpoint.shards:
        shard: dict[str, Tensor] = {}
        for name, weight in load_file(file).items():
            if name not in chosen:
                shard[name] = weight
                continue
            base = name.removesuffix("weight")
            try:
                parts = rounded(weight, how, layout)
            except InputError as error:
                raise InputError(f"{file}: {name}: {error}") from error
            for part, tensor in parts.items():
                shard[base + part] = tensor
        homes |= dict.fromkeys(shard, file.name)
        size += sum(tensor.nbytes for tensor in shard.values())
        save_file(shard, folder / file.name, metadata={"format": "pt"})
    if checkpoint.index is not None:
        write_index(folder, homes, size)
    quantisation = {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "config_groups": config_groups(config.scheme, config.group_size),
        "ignore": list(config.ignore),
    }
    settings = checkpoint.stored_config | {"quantization_config": quantisation}
    write_json(folder / "config.json", settings)


def rounded(weight_OI: Tensor, how: Any, layout: str) -> dict[str, Tensor]:
    """The tensors of one matrix, by the last part of their names. `how`: see
    `schemes.preset`. Raises InputError for a scale that the weights' dtype lacks."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams

    exact_OI = weight_OI.float()
    low, high = _ranges(exact_OI, how.weights)
    scale, zero_point = calculate_qparams(low, high, how.weights)
    exact, scale = scale.float(), scale.to(weight_OI.dtype)
    # not so: a value that is not finite, either
    if not bool(((scale.float() - exact).abs() <= _SCALE_ERROR * exact).all()):
        raise InputError(
            f"scale {exact.min():.3g} to {exact.max():.3g}: {weight_OI.dtype} has no"
            " such number; convert the checkpoint to bfloat16 or float32"
        )
    given = {
        "weight": exact_OI,
        "weight_scale": scale.float(),
        "weight_zero_point": zero_point,
    }
    compressor = BaseCompressor.get_value_from_registry(layout)
    made = compressor.compress(given, how) | {"weight_scale": scale}
    return {name: tensor.contiguous() for name, tensor in made.items()}


def _ranges(weight_OI: Tensor, arguments: Any) -> tuple[Tensor, Tensor]:
    """The smallest and the largest of the weights that share a scale: [O, 1], [O,
    groups] or [blocks, blocks]."""
    if arguments.strategy == "channel":
        return weight_OI.amin(1, keepdim=True), weight_OI.amax(1, keepdim=True)
    if arguments.strategy == "group":
        grouped = weight_OI.reshape(len(weight_OI), -1, arguments.group_size)
        return grouped.amin(-1), grouped.amax(-1)
    height, width = arguments.block_structure
    rows, columns = weight_OI.shape
    padded = torch.nn.functional.pad(
        weight_OI, (0, -columns % width, 0, -rows % height)
    )
    blocks = padded.reshape(-(-rows // height), height, -(-columns // width), width)
    return blocks.amin((1, 3)), blocks.amax((1, 3))
