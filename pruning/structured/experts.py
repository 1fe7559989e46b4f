"""The experts that another program has taken out of a mixture.

They are found by their bytes. What stays is the dense checkpoint's: its experts are
numbered anew, and its routers keep their rows."""

import math
import re
from collections.abc import Iterator, Mapping

import torch

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.manifests import PruneManifest, RemovedParts
from evaluator.checkpoints.tensors import Tensor
from evaluator.core.errors import JobError
from pruning.methods.patterns import format_ranges, read_numbers
from pruning.structured.cut import Slice
from pruning.structured.write import differences, digest

_EXPERT = re.compile(r"(.+\.)experts\.(\d+)(\..+)")
# what follows the name of a block of experts in the names of its router's tensors
_ROUTER = ("gate.", "router.", "e_score_correction_bias", "expert_bias")


def experts_of(checkpoint: Checkpoint) -> dict[str, dict[int, dict[str, Tensor]]]:
    """The tensors of single experts: by their block, in the order of the layers, the
    expert's number and the end of the name."""
    blocks: dict[str, dict[int, dict[str, Tensor]]] = {}
    for name, tensor in checkpoint.tensors.items():
        if match := _EXPERT.fullmatch(name):
            experts = blocks.setdefault(match[1], {})
            experts.setdefault(int(match[2]), {})[match[3]] = tensor
    order = sorted(blocks, key=lambda block: [*map(int, re.findall(r"\d+", block))])
    return {block: blocks[block] for block in order}


def taken_out(source: Checkpoint, other: Checkpoint, count: int) -> RemovedParts:
    """The `count` experts of each layer whose bytes are not in `other`, whatever their
    tensors are called there. Raises JobError for another count, or other experts."""
    left, gone, of = experts_of(other), [], 0
    for block, experts in experts_of(source).items():
        of, stays = len(experts), set(map(_bytes, left.get(block, {}).values()))
        numbers = [number for number in experts if _bytes(experts[number]) not in stays]
        if (len(numbers), len(stays)) != (count, of - count):
            raise JobError(
                f"{block}experts: {len(stays)} of {of} are left, {of - len(numbers)} of"
                f" them as they were: {of - count} were to stay"
            )
        gone.append(format_ranges(sorted(numbers)))
    return RemovedParts(unit="experts", of=of, gone=tuple(gone))


def _bytes(expert: Mapping[str, Tensor]) -> tuple[bytes, ...]:
    return tuple(sorted(digest(tensor.chunks()) for tensor in expert.values()))


def problems(
    made: Checkpoint, removed: RemovedParts, source: Checkpoint | None
) -> Iterator[str]:
    """Every way in which `made` is not `source`, where that is known, without the
    removed experts."""
    counts = [removed.of - len(read_numbers(gone)) for gone in removed.gone]
    left = [len(experts) for experts in experts_of(made).values()]
    if counts != left:
        file = made.path / PruneManifest.FILE
        yield f"{file}: removed: {counts} experts should be left, and {left} are"
    elif source is not None:
        yield from differences(made, source, slices(source, removed))


def slices(source: Checkpoint, removed: RemovedParts) -> Mapping[str, Slice | None]:
    """What stays of every tensor; None: nothing."""
    remains: dict[str, Slice | None] = {
        name: Slice(name, tensor.shape) for name, tensor in source.tensors.items()
    }
    blocks = experts_of(source)
    for (block, experts), numbers in zip(blocks.items(), removed.gone, strict=False):
        gone = read_numbers(numbers)
        kept = [number for number in sorted(experts) if number not in gone]
        for number, tensors in experts.items():
            for end, tensor in tensors.items():
                remains[tensor.name] = None
                if number in kept:
                    name = f"{block}experts.{kept.index(number)}{end}"
                    remains[tensor.name] = Slice(name, tensor.shape)
        for name, tensor in source.tensors.items():
            of_router = name.removeprefix(block).startswith(_ROUTER)
            if name.startswith(block) and of_router and tensor.shape[0] == removed.of:
                shape = (len(kept), *tensor.shape[1:])
                remains[name] = Slice(name, shape, torch.tensor(kept))
    return remains


def share_gone(source: Checkpoint, kept: Mapping[str, Slice | None]) -> float:
    """Of the weights of the layers' matrices."""
    weights = left = 0
    for name, tensor in source.tensors.items():
        if ".layers." in name and len(tensor.shape) > 1:
            part = kept[name]
            weights += math.prod(tensor.shape)
            left += 0 if part is None else math.prod(part.shape)
    return 1 - left / weights
