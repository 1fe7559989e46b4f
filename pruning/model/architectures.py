"""Which models can be pruned: where an architecture keeps its decoder, and what is special about its layers.

To support an architecture, add its name to the table. Only `nn.Linear` modules inside decoder layers are pruned; a
router, which sends tokens to experts, stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluator.checkpoints.mixture import expert_field
from evaluator.core.errors import InputError
from pruning.model.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Architecture:
    """Where a model type keeps its decoder."""

    prefixes: tuple[str, ...] = ("model.",)  # of the decoder's tensor names; the first one in the checkpoint counts
    text_config: bool = False  # its settings are a section of config.json, since it is one of several towers
    # The checkpoint's names of an expert's gate, up and down matrices; None: no mixture of experts.
    experts: tuple[str, str, str] | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)  # transformers' first part of a name -> the checkpoint's
    dense: frozenset[str] = frozenset()  # Linear modules that are not pruned, by the last part of their name
    recurrent: bool = False  # some layers hand a state from token to token: sequences cannot run end to end
    # Settings under which its layers need more than one layer at a time: what they turn on.
    whole: Mapping[str, str] = field(default_factory=dict)


_TOWERS = ("model.language_model.", "language_model.model.")
_EXPERTS = ("gate_proj", "up_proj", "down_proj")
_GATES = frozenset({"in_proj_a", "in_proj_b"})  # one number for each head and token, as a router has for each expert
_GEMMA4 = {
    "hidden_size_per_layer_input": "embeddings of each layer's own",
    "num_kv_shared_layers": "layers that read another layer's keys and values",
    "enable_moe_block": "experts beside its dense matrices",
}

# By the model_type of config.json.
ARCHITECTURES = {
    "gemma2": Architecture(),
    "gemma3": Architecture(("language_model.model.", "model.language_model."), text_config=True),
    "gemma3_text": Architecture(),
    "gemma4": Architecture(_TOWERS, text_config=True, whole=_GEMMA4),
    "gemma4_text": Architecture(("model.", *_TOWERS), whole=_GEMMA4),
    "glm": Architecture(),
    "glm4": Architecture(),
    "granite": Architecture(),
    "llama": Architecture(),
    "mistral": Architecture(),
    "mixtral": Architecture(experts=("w1", "w3", "w2"), renamed={"mlp.": "block_sparse_moe."}),
    "olmo2": Architecture(),
    "olmo3": Architecture(),
    "olmoe": Architecture(experts=_EXPERTS),
    "phi3": Architecture(),
    "qwen2": Architecture(),
    "qwen3": Architecture(),
    "qwen3_5": Architecture(_TOWERS, text_config=True, dense=_GATES, recurrent=True),
    "qwen3_5_text": Architecture(("model.", *_TOWERS), dense=_GATES, recurrent=True),
    "qwen3_moe": Architecture(experts=_EXPERTS),
    "smollm3": Architecture(),
}


def recognise(checkpoint: Checkpoint) -> Architecture:
    """The architecture of a checkpoint. Raises InputError, naming it, for one that cannot be pruned."""
    file, config = checkpoint.directory / "config.json", checkpoint.config
    kind = config.get("model_type")
    known = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    experts = expert_field(config)
    if experts is not None and (known is None or known.experts is None):
        mixtures = ", ".join(name for name, each in ARCHITECTURES.items() if each.experts)
        raise InputError(
            f"{file}: model_type {kind!r} is a mixture of experts ({experts}), which cannot be pruned; those that can: "
            f"{mixtures}"
        )
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        quantised = part.get("quantization_config")
        if quantised:
            name = quantised.get("quant_method", "unnamed") if isinstance(quantised, dict) else quantised
            raise InputError(
                f"{file}: the checkpoint is already quantised (quant_method {name!r}); it cannot be pruned"
            )
    if known is None:
        raise InputError(f"{file}: model_type {kind!r} is not one of {', '.join(ARCHITECTURES)}")
    return known


def check_by_layers(architecture: Architecture, file: Path, config: Any) -> None:
    """Raises InputError, naming the field, for settings under which layers cannot be run one at a time.

    `config` is transformers' own, with the defaults of what `file` leaves out.
    """
    for name, what in architecture.whole.items():
        if value := getattr(config, name, None):
            raise InputError(f"{file}: field {name!r} is {value!r}: a model with {what} cannot be pruned")
