"""Every matrix of the decoder layers rounded to the nearest value of a scheme, a shard
at a time.

The scales are those of the largest weight that shares one, kept in the weights' own
dtype as llm-compressor keeps them; weights are divided by what is kept. Scales,
rounding and layout are compressed-tensors' functions. No data is needed.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.tensors import INDEX
from evaluator.core.errors import InputError
from pruning.model.architectures import architecture_of
from pruning.model.decoder import Decoder
from quantising.schemes import SCHEMES, preset, quantization_config


def matrices(
    checkpoint: Checkpoint, scheme: str, group_size: int | None, ignore: Sequence[str]
) -> list[str]:
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
    decoder = Decoder(checkpoint, torch.device("cpu"))
    found = {
        name: shape
        for name, shape in decoder.matrices().items()
        if not ignored(name.removesuffix(".weight"), ignore)
    }
    if not found:
        raise InputError(
            f"compress: ignore: {', '.join(ignore)}: leaves no matrix to quantise"
        )
    group = group_size or SCHEMES[scheme].group
    for name, (_, columns) in found.items():
        if group is not None and columns % group:
            raise InputError(
                f"{checkpoint.path}: scheme {scheme}: group_size {group} does not"
                f" divide the {columns} columns of {name}; set group_size"
            )
    return list(found)


def ignored(module: str, patterns: Iterable[str]) -> bool:
    """Whether `ignore`, as llm-compressor reads it, names a module: by its name, or
    by a pattern after `re:`."""
    return any(
        (
            re.match(pattern.removeprefix("re:"), module)
            if pattern.startswith("re:")
            else pattern == module
        )
        for pattern in patterns
    )


def write(
    checkpoint: Checkpoint,
    folder: Path,
    scheme: str,
    group_size: int | None,
    ignore: Sequence[str],
) -> None:
    """Fill `folder`, one shard in memory; recipe.yaml names the algorithm. Raises
    InputError as `matrices` does."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    chosen = set(matrices(checkpoint, scheme, group_size, ignore))
    how = preset(scheme, group_size)
    homes: dict[str, str] = {}
    size = 0
    for file in checkpoint.shards:
        shard: dict[str, Tensor] = {}
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (not a dict)
                weight = opened.get_tensor(name)
                if name in chosen:
                    base = name.removesuffix("weight")
                    shard |= {
                        f"{base}{part}": each
                        for part, each in rounded(weight, how, scheme).items()
                    }
                else:
                    shard[name] = weight
        homes |= dict.fromkeys(shard, file.name)
        size += sum(each.nbytes for each in shard.values())
        save_file(shard, folder / file.name, metadata={"format": "pt"})
    if checkpoint.index is not None:
        index = {
            "metadata": {"total_size": size},
            "weight_map": dict(sorted(homes.items())),
        }
        (folder / INDEX).write_text(
            json.dumps(index, indent=2) + "\n", encoding="utf-8"
        )
    config = checkpoint.stored_config | {
        "quantization_config": quantization_config(scheme, group_size, ignore)
    }
    (folder / "config.json").write_text(
        json.dumps(config, indent=2) + "\n", encoding="utf-8"
    )


def rounded(weight_OI: Tensor, how: Any, scheme: str) -> dict[str, Tensor]:
    """The tensors of one matrix, by the last part of their names. `how`: see
    `schemes.preset`."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams

    dtype, exact_OI = weight_OI.dtype, weight_OI.float()
    low, high = _ranges(exact_OI, how.weights)
    scale, zero_point = calculate_qparams(low, high, how.weights)
    scale = scale.to(dtype)
    given = {
        "weight": exact_OI,
        "weight_scale": scale.float(),
        "weight_zero_point": zero_point,
    }
    made: dict[str, Tensor] = BaseCompressor.get_value_from_registry(
        SCHEMES[scheme].format
    ).compress(given, how)
    return {
        name: each.contiguous()
        for name, each in (made | {"weight_scale": scale}).items()
    }


def _ranges(weight_OI: Tensor, arguments: Any) -> tuple[Tensor, Tensor]:
    """The smallest and the largest of the weights that share a scale: [O, 1], [O,
    groups] or [blocks, blocks]."""
    strategy = str(getattr(arguments.strategy, "value", arguments.strategy))
    if strategy == "channel":
        return weight_OI.amin(1, keepdim=True), weight_OI.amax(1, keepdim=True)
    if strategy == "group":
        grouped = weight_OI.reshape(len(weight_OI), -1, arguments.group_size)
        return grouped.amin(-1), grouped.amax(-1)
    assert strategy == "block", strategy
    height, width = arguments.block_structure
    rows, columns = weight_OI.shape
    padded = torch.nn.functional.pad(
        weight_OI, (0, -columns % width, 0, -rows % height)
    )
    blocks = padded.reshape(-(-rows // height), height, -(-columns // width), width)
    return blocks.amin((1, 3)), blocks.amax((1, 3))
