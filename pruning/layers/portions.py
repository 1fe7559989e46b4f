"""Which matrices of a layer are observed together: all of them, unless the Hessians of many experts fill the memory.

Experts come first then, some at a time, and the rest of the layer last. Nothing is pruned before what reads its output
has been observed, and no expert reads another's, so the outcome is that of one pass.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from pruning.methods.base import Statistic
from pruning.model.experts import Routed

HESSIAN_BYTES = 8 << 30  # of experts whose statistics are held at once
_ENTRY = 4  # bytes, float32


def portions(
    linears: Mapping[str, nn.Linear], statistic: Statistic, limit: int = HESSIAN_BYTES
) -> list[dict[str, nn.Linear]]:
    """A layer's modules in the order in which they are observed and pruned; each portion takes a pass of its own."""
    experts: dict[str, dict[str, nn.Linear]] = {}
    for name, module in linears.items():
        if isinstance(module, Routed):
            experts.setdefault(name.rpartition(".")[0], {})[name] = module
    sizes = {name: _bytes(modules) for name, modules in experts.items()}
    if statistic is not Statistic.HESSIAN or sum(sizes.values()) <= limit:
        return [dict(linears)]
    found: list[dict[str, nn.Linear]] = []
    room = 0
    for name, modules in experts.items():
        if sizes[name] > room:
            found.append({})
            room = limit
        found[-1] |= modules
        room -= sizes[name]
    return [*found, {name: module for name, module in linears.items() if not isinstance(module, Routed)}]


def _bytes(modules: Mapping[str, nn.Linear]) -> int:
    """Of an expert's Hessians: gate and up read the same input."""
    return sum(width**2 * _ENTRY for width in {module.in_features for module in modules.values()})
