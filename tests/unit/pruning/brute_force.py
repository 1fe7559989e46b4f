"""The published algorithms, written plainly over a whole model in memory: what masks are compared with.

Nothing of `pruning` is used. One sequence at a time, the whole model for every layer, a full stable sort.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn


def sequences_of(directory: Path, texts: list[str], window: int) -> list[Tensor]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    return [torch.tensor([tokenizer(text)["input_ids"][:window]]) for text in texts]


def wanda_mask(weight: Tensor, norm_sq: Tensor, ratio: float, n_of_m: tuple[int, int] | None) -> Tensor:
    return sorted_mask(weight.abs() * norm_sq.sqrt(), ratio, n_of_m)


def sorted_mask(score: Tensor, ratio: float, n_of_m: tuple[int, int] | None) -> Tensor:
    mask = torch.zeros_like(score, dtype=torch.bool)
    if n_of_m is None:
        order = torch.sort(score, dim=-1, stable=True).indices
        mask.scatter_(1, order[:, : int(score.shape[1] * ratio)], True)
        return mask
    n, m = n_of_m
    for start in range(0, score.shape[1], m):
        order = torch.sort(score[:, start : start + m], dim=-1, stable=True).indices
        mask.scatter_(1, start + order[:, :n], True)
    return mask


def prune(directory: Path, sequences: list[Tensor], mask_of: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Tensor]:
    """Masks by tensor name, layer by layer, each layer's statistics taken on inputs from already pruned layers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    masks: dict[str, Tensor] = {}
    for index, layer in enumerate(model.model.layers):
        linears = {name: module for name, module in layer.named_modules() if isinstance(module, nn.Linear)}
        sums = {name: torch.zeros(module.in_features) for name, module in linears.items()}

        def see(module: nn.Module, inputs: tuple[Tensor, ...], sums=sums, names={m: n for n, m in linears.items()}):
            sums[names[module]] += inputs[0][0].pow(2).sum(dim=0)

        hooks = [module.register_forward_pre_hook(see) for module in linears.values()]
        with torch.no_grad():
            for ids in sequences:
                model(input_ids=ids, use_cache=False)
        for hook in hooks:
            hook.remove()
        for name, module in linears.items():
            mask = mask_of(module.weight.data, sums[name] / len(sequences))
            module.weight.data[mask] = 0
            masks[f"model.layers.{index}.{name}.weight"] = mask
    return masks
