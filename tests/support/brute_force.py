"""The published algorithms, written plainly over a whole model in memory: what masks
are compared with. Nothing of `pruning` is used. One sequence at a time, the whole model
for every layer, a full stable sort.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.models import load_model

# of linear attention: one number for each head, as a router has
LEFT_DENSE = ("in_proj_a", "in_proj_b")
# Where a layer's experts are in the files, and what their gate, up and down matrices
# are called there.
_EXPERTS = {
    "qwen3_moe": ("mlp.experts", ("gate_proj", "up_proj", "down_proj")),
    "olmoe": ("mlp.experts", ("gate_proj", "up_proj", "down_proj")),
    "mixtral": ("block_sparse_moe.experts", ("w1", "w3", "w2")),
}


def sequences_of(directory: Path, texts: list[str], length: int) -> list[Tensor]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return [torch.tensor([tokenizer.encode(text).ids[:length]]) for text in texts]


def wanda_mask(
    weight: Tensor, norm_sq: Tensor, ratio: float, n_of_m: tuple[int, int] | None
) -> Tensor:
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
    """By tensor name; a layer's inputs are from pruned layers. `statistic`: summed
    over sequences, divided by their number."""
    model = load_model(directory)
    prefix = _prefix(directory)
    pruned: dict[str, Tensor] = {}
    for index, layer in enumerate(model.model.layers):
        inputs = _Inputs(statistic)
        names = {
            m: n
            for n, m in layer.named_modules()
            if isinstance(m, nn.Linear) and not n.endswith(LEFT_DENSE)
        }
        hooks = [
            m.register_forward_pre_hook(partial(inputs.see_call, n))
            for m, n in names.items()
        ]
        mixtures = {
            n: m
            for n, m in layer.named_modules()
            if isinstance(getattr(m, "gate_up_proj", 0), nn.Parameter)
        }
        for name, experts in mixtures.items():
            experts.forward = partial(
                plain_experts, experts, see=partial(inputs.see_expert, name)
            )
        with torch.no_grad():
            for ids in sequences:
                model(input_ids=ids, use_cache=False)
        for hook in hooks:
            hook.remove()
        for module, name in names.items():
            module.weight.data = apply(
                module.weight.data, inputs.mean(name, len(sequences))
            )
            pruned[f"{prefix}layers.{index}.{name}.weight"] = module.weight.data
        for name, experts in mixtures.items():
            experts.forward = partial(plain_experts, experts)
            theirs, (gate, up, down) = _EXPERTS[model.config.model_type]
            for number in range(len(experts.down_proj)):
                read, middle = (
                    inputs.mean(f"{name}.{number}.{what}", len(sequences))
                    for what in ("read", "middle")
                )
                halves = [
                    apply(half, read)
                    for half in experts.gate_up_proj.data[number].chunk(2)
                ]
                experts.gate_up_proj.data[number] = torch.cat(halves)
                experts.down_proj.data[number] = apply(
                    experts.down_proj.data[number], middle
                )
                new = dict(
                    zip(
                        (gate, up, down),
                        (*halves, experts.down_proj.data[number]),
                        strict=True,
                    )
                )
                pruned |= {
                    f"{prefix}layers.{index}.{theirs}.{number}.{n}.weight": w
                    for n, w in new.items()
                }
    return pruned


def plain_experts(
    experts: Any,
    hidden: Tensor,
    chosen: Tensor,
    weights: Tensor,
    see: Callable[[int, str, Tensor], None] = lambda number, what, inputs: None,
) -> Tensor:
    """Every token through every expert, with at least 16 rows: a product of fewer
    may be rounded otherwise."""
    out = torch.zeros_like(hidden)
    rows = torch.cat(
        [hidden, hidden.new_zeros(max(0, 16 - len(hidden)), hidden.shape[1])]
    )
    for number in range(len(experts.down_proj)):
        gate, up = experts.gate_up_proj[number].chunk(2)
        middle = experts.act_fn(functional.linear(rows, gate)) * functional.linear(
            rows, up
        )
        result = functional.linear(middle, experts.down_proj[number])
        tokens, places = torch.where(chosen == number)
        see(number, "read", hidden[tokens])
        see(number, "middle", middle[tokens])
        out[tokens] += result[tokens] * weights[tokens, places, None]
    return out


class _Inputs:
    """The summed statistics of inputs, by name."""

    def __init__(self, statistic: Callable[[Tensor], Tensor]) -> None:
        self._statistic = statistic
        self._sums: dict[str, Tensor] = {}
        self._tokens: dict[str, int] = {}

    def see(self, name: str, inputs: Tensor) -> None:
        new = self._statistic(inputs)
        self._sums[name] = self._sums[name] + new if name in self._sums else new
        self._tokens[name] = self._tokens.get(name, 0) + len(inputs)

    def see_call(
        self, name: str, _module: nn.Module, given: tuple[Tensor, ...]
    ) -> None:
        self.see(name, given[0][0])

    def see_expert(self, name: str, number: int, what: str, inputs: Tensor) -> None:
        self.see(f"{name}.{number}.{what}", inputs)

    def mean(self, name: str, sequences: int) -> Tensor:
        """Of inputs without a token: all alike."""
        total = self._sums[name]
        if self._tokens[name]:
            return total / sequences
        return (
            torch.ones_like(total)
            if total.ndim == 1
            else torch.eye(len(total), dtype=total.dtype)
        )


def _prefix(directory: Path) -> str:
    """What the names of the decoder's tensors begin with in the files."""
    from safetensors import safe_open

    with safe_open(next(directory.glob("*.safetensors")), "pt") as opened:
        names = list(opened.keys())
    (name,) = (name for name in names if name.endswith("embed_tokens.weight"))
    return str(name).removesuffix("embed_tokens.weight")


def plain_sparsegpt(
    weight: Tensor,
    hessian: Tensor,
    block: int,
    ratio: float,
    n_of_m: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Algorithm 1 of the SparseGPT paper in float64: one column at a time, all later
    columns updated at once."""
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
            order = (
                score.flatten().sort(stable=True).indices[: int(score.numel() * ratio)]
            )
            chosen = torch.zeros(score.numel(), dtype=torch.bool)
            chosen[order] = True
            mask[:, column:end] = chosen.view(score.shape)
        if n_of_m is not None and column % n_of_m[1] == 0:
            n, m = n_of_m
            score = (
                weight[:, column : column + m] ** 2
                / upper.diagonal()[column : column + m] ** 2
            )
            mask.scatter_(
                1, column + score.sort(dim=1, stable=True).indices[:, :n], True
            )
        removed = (
            torch.where(mask[:, column], weight[:, column], 0) / upper[column, column]
        )
        weight[:, column + 1 :] -= removed[:, None] * upper[column, column + 1 :]
        weight[mask[:, column], column] = 0
    return weight, mask
