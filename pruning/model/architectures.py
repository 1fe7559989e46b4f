"""Which models can be pruned: where an architecture keeps its decoder, and how its
layers differ.

To support an architecture, add its name to the table. Only `nn.Linear` modules
inside decoder layers are pruned. A router sends tokens to experts and stays
unchanged. transformers keeps all experts of a layer in two tensors of three
dimensions; checkpoints hold three matrices for each expert. `separate` makes each
matrix an `nn.Linear` again, whose input is the tokens that the router sends to its
expert."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.shapes import expert_field
from evaluator.core.errors import InputError
from pruning.model.packing import ALONE_BELOW


@dataclass(frozen=True, slots=True)
class Architecture:
    """Where a model type keeps its decoder."""

    # of the decoder's tensor names; the first one in the checkpoint counts
    prefixes: tuple[str, ...] = ("model.",)
    # its settings are a section of config.json, since it is one of several towers
    text_config: bool = False
    # The checkpoint's names of an expert's gate, up and down matrices; None: no mixture
    # of experts.
    experts: tuple[str, str, str] | None = None
    # transformers' first part of a name -> the checkpoint's
    renamed: Mapping[str, str] = field(default_factory=dict)
    # Linear modules that are not pruned, by the last part of their name
    dense: frozenset[str] = frozenset()
    # some layers hand a state from token to token: sequences cannot run end to end
    recurrent: bool = False
    # Settings that make layers depend on each other, and the feature that each turns
    # on.
    whole: Mapping[str, str] = field(default_factory=dict)


_TOWERS = ("model.language_model.", "language_model.model.")
_EXPERTS = ("gate_proj", "up_proj", "down_proj")
# one number for each head and token, as a router has for each expert
_GATES = frozenset({"in_proj_a", "in_proj_b"})
_GEMMA4 = {
    "hidden_size_per_layer_input": "embeddings of each layer's own",
    "num_kv_shared_layers": "layers that read another layer's keys and values",
    "enable_moe_block": "experts beside its dense matrices",
}

_PLAIN = {
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "granite",
    "llama",
    "mistral",
    "olmo2",
    "olmo3",
    "phi3",
}
_PLAIN |= {"qwen2", "qwen3", "smollm3"}

# By the model_type of config.json.
_KNOWN = {
    **dict.fromkeys(_PLAIN, Architecture()),
    "gemma3": Architecture(
        ("language_model.model.", "model.language_model."), text_config=True
    ),
    "gemma4": Architecture(_TOWERS, text_config=True, whole=_GEMMA4),
    "gemma4_text": Architecture(("model.", *_TOWERS), whole=_GEMMA4),
    "mixtral": Architecture(
        experts=("w1", "w3", "w2"), renamed={"mlp.": "block_sparse_moe."}
    ),
    **dict.fromkeys(("olmoe", "qwen3_moe"), Architecture(experts=_EXPERTS)),
    "qwen3_5": Architecture(_TOWERS, text_config=True, dense=_GATES, recurrent=True),
    "qwen3_5_text": Architecture(("model.", *_TOWERS), dense=_GATES, recurrent=True),
}
ARCHITECTURES = dict(sorted(_KNOWN.items()))


def architecture_of(checkpoint: Checkpoint) -> Architecture:
    """The architecture of a checkpoint. Raises InputError, naming it, for one that
    cannot be pruned."""
    file, config = checkpoint.config_file, checkpoint.config
    kind = config["model_type"]
    known = ARCHITECTURES.get(kind)
    experts = expert_field(config)
    if experts is not None and (known is None or known.experts is None):
        mixtures = ", ".join(
            name for name, each in ARCHITECTURES.items() if each.experts
        )
        raise InputError(
            f"{file}: model_type {kind!r} is a mixture of experts ({experts}), which"
            f" cannot be pruned; those that can: {mixtures}"
        )
    if checkpoint.quantisation is not None:
        raise InputError(
            f"{file}: the checkpoint is already quantised (quant_method"
            f" {checkpoint.quantisation.library!r}); compress the dense model that it was made from"
        )
    if known is None:
        raise InputError(
            f"{file}: model_type {kind!r} is not one of {', '.join(ARCHITECTURES)}"
        )
    return known


class Routed(nn.Linear):
    # which tokens of the call its input's first rows are, in their order; other rows
    # are filling
    tokens_R: Tensor


class Expert(nn.Module):
    """down(activation(gate(x)) * up(x)), its matrices named as in the checkpoint."""

    def __init__(
        self,
        width: int,
        inner: int,
        activation: Callable[[Tensor], Tensor],
        names: tuple[str, ...],
    ) -> None:
        super().__init__()
        for name, sizes in zip(
            names, ((width, inner), (width, inner), (inner, width)), strict=True
        ):
            self.add_module(name, Routed(*sizes, bias=False))
        self._names = names
        self._activation = activation

    def forward(self, inputs_RH: Tensor, tokens_R: Tensor) -> Tensor:
        """(routed tokens, width) to the same. Its modules are called even where
        there is no token."""
        rows = len(inputs_RH)
        gate, up, down = (self.get_submodule(name) for name in self._names)
        for module in (gate, up, down):
            module.tokens_R = tokens_R
        # so that a token's result does not depend on who else is sent here
        if 0 < rows < ALONE_BELOW:
            inputs_RH = functional.pad(inputs_RH, (0, 0, 0, ALONE_BELOW - rows))
        outputs_RH: Tensor = down(self._activation(gate(inputs_RH)) * up(inputs_RH))
        return outputs_RH[:rows]


class Experts(nn.Module):
    """All experts of a layer; in the place of transformers' module, and called as
    that is."""

    def __init__(self, fused: Any, names: tuple[str, ...]) -> None:
        """`fused` has gate_up_proj (experts, 2 * inner, width) and down_proj
        (experts, width, inner)."""
        super().__init__()
        experts, width, inner = fused.down_proj.shape
        assert fused.gate_up_proj.shape == (experts, 2 * inner, width), (
            fused.gate_up_proj.shape
        )
        for number in range(experts):
            self.add_module(str(number), Expert(width, inner, fused.act_fn, names))

    def forward(
        self, hidden_TH: Tensor, chosen_TK: Tensor, weights_TK: Tensor
    ) -> Tensor:
        """The sum of each token's experts by their weights; `chosen_TK` are the K
        experts of each token."""
        outputs_TH = torch.zeros_like(hidden_TH)
        for number, expert in enumerate(self.children()):
            tokens_R, places_R = (chosen_TK == number).nonzero(as_tuple=True)
            routed_RH = (
                expert(hidden_TH[tokens_R], tokens_R)
                * weights_TK[tokens_R, places_R, None]
            )
            outputs_TH.index_add_(0, tokens_R, routed_RH.to(outputs_TH.dtype))
        return outputs_TH


def separate(module: nn.Module, names: tuple[str, ...]) -> None:
    """Replace fused experts below `module`, on meta; `names`: the checkpoint's gate,
    up and down matrices."""
    for child_name, child in list(module.named_children()):
        weight = getattr(child, "gate_up_proj", None)
        if isinstance(weight, nn.Parameter) and weight.ndim == 3:
            with torch.device("meta"):
                setattr(module, child_name, Experts(child, names))
        else:
            separate(child, names)
