"""How much a GPU computes in one step of the engine: chosen from its memory and the model, unless the user says.

Large steps fill the GPU; what they need beside weights and cache bounds them. vLLM's own defaults look at the memory
alone (8,192 tokens, or 16,384 from 70 GiB on) and hold for its `LLM` class only: an engine that is built from its
configuration gets 2,048.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluator.checkpoints.shapes import text_model

_MOST_TOKENS, _LEAST_TOKENS = 16_384, 2_048  # of prompts and answers together, in a step
_MOST_REQUESTS, _LEAST_REQUESTS = 256, 16  # at a time: more cost the driver more than they give the GPU
_ACTIVATIONS = 0.05  # of the memory: what a step's activations, or its logits, may take
_LOGITS_COPIES = 3  # of a step's logits in float32: raw, sampled from, and sorted
_USUAL_LENGTH = 0.5  # of max_model_len: what a request takes of the cache, with what it shares counted once for each


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """What is there for a model: per worker, in bytes."""

    memory: int
    weights: int
    utilization: float  # the share of the memory that the engine may use


@dataclass(frozen=True, slots=True)
class StepSize:
    """The most that one step computes."""

    tokens: int
    requests: int


def step_size(
    model: Mapping[str, Any], accelerator: Accelerator, *, max_model_len: int, width: int, workers: int
) -> StepSize:
    """For a model (its config.json) of `width` bytes a value, divided among `workers`; both numbers are powers of 2.

    Raises nothing: what a configuration does not say counts as nothing, and the result stays within bounds.
    """
    model = text_model(model)
    hidden, heads = _size(model, "hidden_size"), _size(model, "num_attention_heads")
    middle, vocabulary = _size(model, "intermediate_size"), _size(model, "vocab_size")
    head, kv_heads = _cached_heads(model)
    # Alive at once in a layer: its input, the residual, their norm, and either q, k, v or the two halves of the MLP
    # with their product.
    of_layer = max((heads + 2 * kv_heads) * head, 3 * middle) // workers
    per_token = width * (3 * hidden + of_layer)
    per_request = _LOGITS_COPIES * 4 * vocabulary
    room = int(_ACTIVATIONS * accelerator.memory)
    tokens = _power(room // max(1, per_token), _LEAST_TOKENS, _MOST_TOKENS)
    cached = width * cached_values(model, workers=workers)
    cache = int(accelerator.utilization * accelerator.memory) - accelerator.weights - 2 * tokens * per_token
    in_cache = int(cache / max(1.0, cached * max_model_len * _USUAL_LENGTH))
    requests = _power(min(in_cache, room // max(1, per_request)), _LEAST_REQUESTS, _MOST_REQUESTS)
    return StepSize(tokens, requests)


def cached_values(model: Mapping[str, Any], *, workers: int = 1) -> int:
    """How many keys and values a token leaves in each worker's cache: layers of linear attention have none."""
    model = text_model(model)
    kinds = model.get("layer_types")
    layers = _size(model, "num_hidden_layers")
    if isinstance(kinds, list):
        layers = sum(kind != "linear_attention" for kind in kinds)
    head, kv_heads = _cached_heads(model)
    return 2 * layers * max(1, kv_heads // workers) * head


def _cached_heads(model: Mapping[str, Any]) -> tuple[int, int]:
    """The width of a head, and how many of them a token has in the cache of a layer."""
    heads = _size(model, "num_attention_heads")
    head = _size(model, "head_dim") or _size(model, "hidden_size") // max(1, heads)
    return head, _size(model, "num_key_value_heads") or heads


def _size(model: Mapping[str, Any], name: str) -> int:
    value = model.get(name)
    return value if isinstance(value, int) else 0


def _power(most: int, low: int, high: int) -> int:
    """The largest power of two up to `most`, between two of them."""
    return max(low, min(high, 1 << max(0, most.bit_length() - 1) if most > 0 else low))
