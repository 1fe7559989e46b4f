"""The published algorithms, written plainly over a whole model in memory: what masks are compared with.

Nothing of `pruning` is used. One sequence at a time, the whole model for every layer, a full stable sort.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn


def sequences_of(directory: Path, texts: list[str], length: int) -> list[Tensor]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    return [torch.tensor([tokenizer(text)["input_ids"][:length]]) for text in texts]


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


def square_sums(inputs: Tensor) -> Tensor:
    return inputs.pow(2).sum(dim=0)


def second_moments(inputs: Tensor) -> Tensor:
    return inputs.double().T @ inputs.double()


def prune(
    directory: Path,
    sequences: list[Tensor],
    statistic: Callable[[Tensor], Tensor],
    apply: Callable[[Tensor, Tensor], Tensor],
) -> dict[str, Tensor]:
    """Pruned weights by tensor name, layer by layer, each layer observed on inputs from already pruned layers.

    `statistic` is summed over sequences and divided by their number; `apply(weight, statistic)` is the new weight.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    pruned: dict[str, Tensor] = {}
    for index, layer in enumerate(model.model.layers):
        names = {module: name for name, module in layer.named_modules() if isinstance(module, nn.Linear)}
        sums: dict[nn.Module, Tensor] = {}

        def see(module: nn.Module, inputs: tuple[Tensor, ...], sums=sums) -> None:
            new = statistic(inputs[0][0])
            sums[module] = sums[module] + new if module in sums else new

        hooks = [module.register_forward_pre_hook(see) for module in names]
        with torch.no_grad():
            for ids in sequences:
                model(input_ids=ids, use_cache=False)
        for hook in hooks:
            hook.remove()
        for module, name in names.items():
            module.weight.data = apply(module.weight.data, sums[module] / len(sequences))
            pruned[f"model.layers.{index}.{name}.weight"] = module.weight.data
    return pruned


def plain_sparsegpt(
    weight: Tensor, hessian: Tensor, block: int, ratio: float, n_of_m: tuple[int, int] | None = None
) -> tuple[Tensor, Tensor]:
    """Algorithm 1 of the SparseGPT paper in float64: one column at a time, all later columns updated at once."""
    weight, hessian = weight.double().clone(), hessian.double().clone()
    rows, columns = weight.shape
    dead = hessian.diagonal() == 0
    hessian[dead, dead] = 1
    weight[:, dead] = 0
    hessian += torch.eye(columns).double() * 0.01 * hessian.diagonal().mean()
    upper = torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True)
    mask = torch.zeros(rows, columns, dtype=torch.bool)
    for column in range(columns):
        if n_of_m is None and column % block == 0:
            end = min(column + block, columns)
            score = weight[:, column:end] ** 2 / upper.diagonal()[column:end] ** 2
            order = score.flatten().sort(stable=True).indices[: int(score.numel() * ratio)]
            chosen = torch.zeros(score.numel(), dtype=torch.bool)
            chosen[order] = True
            mask[:, column:end] = chosen.view(score.shape)
        if n_of_m is not None and column % n_of_m[1] == 0:
            n, m = n_of_m
            score = weight[:, column : column + m] ** 2 / upper.diagonal()[column : column + m] ** 2
            mask.scatter_(1, column + score.sort(dim=1, stable=True).indices[:, :n], True)
        removed = torch.where(mask[:, column], weight[:, column], 0) / upper[column, column]
        weight[:, column + 1 :] -= removed[:, None] * upper[column, column + 1 :]
        weight[mask[:, column], column] = 0
    return weight, mask
