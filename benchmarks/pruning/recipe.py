"""The recipe of the published pruning scripts, written plainly: what `bench prune`
compares with.

Wanda and SparseGPT as their authors' repositories run them, made to work with
today's transformers: the whole model in memory, sequences one at a time, a forward
pass per layer to collect and one to propagate, one statistic and one Hessian per
matrix, a full sort per row, the inverse's factor by way of the inverse, blocks of
128 columns. float32 on a CPU. Masks follow the same rules as ours (exact counts), so
that the two can be compared."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class _Caught(Exception):
    """Ends the model's forward pass at its first layer."""


def prune_wanda(weight: Tensor, norm_sq: Tensor, ratio: float) -> Tensor:
    """`weight` [rows, columns] without `ratio` of each row, by |w| times the norm of
    the column's inputs."""
    score = weight.abs() * norm_sq.sqrt()
    order = torch.sort(score, dim=-1, stable=True).indices
    mask = torch.zeros_like(score, dtype=torch.bool)
    mask.scatter_(1, order[:, : int(score.shape[1] * ratio)], True)
    return weight.masked_fill(mask, 0)


def prune_sparsegpt(
    weight: Tensor, hessian: Tensor, ratio: float, block: int = 128
) -> Tensor:
    """`weight` [rows, columns] without `ratio` of each block of columns, the rest
    updated by the `hessian` of its inputs, which is overwritten."""
    weight = weight.clone()
    columns = weight.shape[1]
    dead = hessian.diagonal() == 0
    hessian[dead, dead] = 1
    weight[:, dead] = 0
    hessian.diagonal().add_(0.01 * hessian.diagonal().mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    upper = torch.linalg.cholesky(inverse, upper=True)
    for start in range(0, columns, block):
        end = min(start + block, columns)
        part, errors = (
            weight[:, start:end].clone(),
            torch.zeros_like(weight[:, start:end]),
        )
        corner = upper[start:end, start:end]
        score = part**2 / corner.diagonal() ** 2
        order = torch.sort(score.flatten(), stable=True).indices[
            : int(score.numel() * ratio)
        ]
        mask = torch.zeros(score.numel(), dtype=torch.bool)
        mask[order] = True
        mask = mask.view(score.shape)
        for i in range(end - start):
            column = part[:, i]
            kept = column.clone()
            kept[mask[:, i]] = 0
            error = (column - kept) / corner[i, i]
            part[:, i:] -= error.unsqueeze(1).matmul(corner[i, i:].unsqueeze(0))
            part[:, i] = kept
            errors[:, i] = error
        weight[:, start:end] = part
        weight[:, end:] -= errors.matmul(upper[start:end, end:])
    return weight


def run(
    source: Path, out: Path, method: str, ratio: float, texts: list[str], window: int
) -> None:
    """Prune `source` into `out`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    caught: list[tuple[Tensor, dict[str, Any]]] = []

    def catch(_: nn.Module, inputs: tuple[Tensor], keywords: dict[str, Any]) -> None:
        caught.append((inputs[0], keywords))
        raise _Caught

    hook = model.model.layers[0].register_forward_pre_hook(catch, with_kwargs=True)
    for text in texts:
        ids = torch.tensor([tokenizer(text)["input_ids"][:window]])
        with torch.no_grad(), suppress(_Caught):
            model(input_ids=ids, use_cache=False)
    hook.remove()
    with torch.no_grad():
        for layer in model.model.layers:
            _prune_layer(layer, caught, method, ratio)
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


def _prune_layer(
    layer: nn.Module,
    calls: list[tuple[Tensor, dict[str, Any]]],
    method: str,
    ratio: float,
) -> None:
    linears = [module for module in layer.modules() if isinstance(module, nn.Linear)]
    sums: dict[nn.Module, Tensor] = {}

    def collect(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0][0]
        new = x.T @ x if method == "sparsegpt" else x.pow(2).sum(dim=0)
        sums[module] = sums[module].add_(new) if module in sums else new

    hooks = [module.register_forward_pre_hook(collect) for module in linears]
    for hidden, keywords in calls:
        layer(hidden, **keywords)
    for hook in hooks:
        hook.remove()
    for module in linears:
        statistic, weight = sums.pop(module) / len(calls), module.weight.data
        if method == "sparsegpt":
            pruned = prune_sparsegpt(weight, 2 * statistic, ratio)
        else:
            pruned = prune_wanda(weight, statistic, ratio)
        module.weight.data = pruned.to(torch.bfloat16).float()
    for i, (hidden, keywords) in enumerate(calls):
        calls[i] = (layer(hidden, **keywords), keywords)
