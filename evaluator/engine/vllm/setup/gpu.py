"""An engine's settings on a GPU: CUDA graphs, the size of a step, and free memory. No GPU has run it yet.

## Graphs

Without a graph, Python launches every kernel of every layer. For the 28 layers of a model of 0.6 B, this takes 6 to
8 ms (estimate), while the GPU computes the step in about 4 ms. A graph is launched at once. It has one number of
tokens; a smaller step is padded to it. `EngineConfig.cuda_graphs` chooses:

- `full`, the default: every step is one graph, also one that computes prompts. This launches least, needs nothing
  before vLLM is imported, and captures each size once. The attention must support it: FlashAttention 3 (Hopper) and
  Triton's (float32) do. For others vLLM falls back to `decode` by itself, and refuses attention that no graph can hold.
- `piecewise`: a step that computes prompts is a graph between two layers' attentions, and each attention is launched
  alone. This suits FlashAttention 2 and 4, and FlashInfer. vLLM calls the mechanism experimental. It captures a graph
  for each layer and size, twice.
- `decode`: a step that computes prompts is launched kernel by kernel. Only steps that generate are graphs.

## Size of a step

Large steps fill the GPU, but they need memory in addition to weights and cache. The defaults of vLLM depend only on
the memory: 8,192 tokens, or 16,384 from 70 GiB on. They apply only to its `LLM` class: an engine that is built from
its configuration gets 2,048.
"""

from __future__ import annotations

import functools
import math
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluator.checkpoints.shapes import text_model
from evaluator.engine.config import Graphs

BREAKABLE = "VLLM_USE_BREAKABLE_CUDAGRAPH"  # in the environment: graphs of pieces, without torch.compile
# vLLM's names of the graphs that launch a step which only generates faster than one that computes prompts too.
FASTER_DECODE = ("FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
_MODES = {"full": "FULL", "piecewise": "FULL_AND_PIECEWISE", "decode": "FULL_DECODE_ONLY"}
# Tokens of the largest graph. A step of 2,048 tokens keeps an H100 busy for about 5 ms at 0.6 B (estimate), so that
# launches hide behind larger ones. Beyond it, FlashAttention 3 would need more memory too: it divides each row of a
# graph into 32 parts in float32, .5 GiB for 2,048 tokens of 16 heads of 128.
_MOST = 2048


def graph_arguments(graphs: Graphs | None, *, compile: bool, requests: int, tokens: int) -> dict[str, Any]:
    """EngineArgs for torch.compile and CUDA graphs, which vLLM's `enforce_eager` turns off together.

    `requests` and `tokens` are the most that a step computes.
    """
    if compile:  # graphs are vLLM's own
        return {"enforce_eager": False, "compilation_config": {"cudagraph_mode": "NONE"} if graphs is False else {}}
    if graphs is False:
        return {"enforce_eager": True}
    chosen = graphs if isinstance(graphs, str) else "full"
    most = requests if chosen == "decode" else max(requests, min(_MOST, tokens))
    config = {"mode": 0, "cudagraph_mode": _MODES[chosen], "cudagraph_capture_sizes": capture_sizes(most, requests)}
    return {"enforce_eager": False, "compilation_config": config}


def capture_sizes(most: int, requests: int) -> list[int]:
    """Tokens of each graph, up to `most`: 51 for 2,048. vLLM's own list has 51 up to 512, and 147 up to 2,048.

    Sizes rise by eight tokens, and from 64 on by an eighth. This bounds the padding. `requests` is one of the sizes.
    Otherwise a full batch that generates would have no graph: vLLM captures none for more requests than it has places.
    """
    sizes = [1, 2, 4, 8]
    while sizes[-1] < most:
        power = 1 << (sizes[-1].bit_length() - 1)
        sizes.append(sizes[-1] + max(8, power // 8))
    return sorted({requests, most, *(size for size in sizes if size < most)})


_MOST_TOKENS, _LEAST_TOKENS = 16_384, 2_048  # of prompts and answers together, in a step
_MOST_REQUESTS, _LEAST_REQUESTS = 256, 16  # at a time: with more, the driver loses more time than the GPU gains
_ACTIVATIONS = 0.05  # the share of the memory for a step's activations, or for its logits
_LOGITS_COPIES = 3  # of a step's logits in float32: raw, sampled from, and sorted
_USUAL_LENGTH = 0.5  # the share of max_model_len that a request has in the cache, shared tokens included


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """The memory for a model: per worker, in bytes."""

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

    Raises nothing: a missing field counts as 0, and the result stays within bounds.
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
    """The number of keys and values per token in each worker's cache. Layers of linear attention have none."""
    model = text_model(model)
    kinds = model.get("layer_types")
    layers = _size(model, "num_hidden_layers")
    if isinstance(kinds, list):
        layers = sum(kind != "linear_attention" for kind in kinds)
    head, kv_heads = _cached_heads(model)
    return 2 * layers * max(1, kv_heads // workers) * head


def _cached_heads(model: Mapping[str, Any]) -> tuple[int, int]:
    """The width of a head, and the number of heads that a token has in the cache of a layer."""
    heads = _size(model, "num_attention_heads")
    head = _size(model, "head_dim") or _size(model, "hidden_size") // max(1, heads)
    return head, _size(model, "num_key_value_heads") or heads


def _size(model: Mapping[str, Any], name: str) -> int:
    value = model.get(name)
    return value if isinstance(value, int) else 0


def _power(most: int, low: int, high: int) -> int:
    """The largest power of two up to `most`, at least `low` and at most `high`."""
    return max(low, min(high, 1 << max(0, most.bit_length() - 1) if most > 0 else low))


_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.5


def wait_for_memory(share: float, gpus: int = 1) -> None:
    """Wait until `share` of each of an engine's GPUs is free, a minute at most.

    The driver may take seconds to free the memory of a process that has ended. But vLLM checks only once, and does not
    start if it finds too little.
    """
    # A query through CUDA occupies some GPU memory. An engine in this process needs that memory anyway. But workers in
    # other processes would lose it, so their GPUs are queried with nvidia-smi.
    look = _of_this_process if gpus == 1 else functools.partial(_of_workers, gpus)
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        if all(free >= math.ceil(total * share) for free, total in look()):
            return
        time.sleep(_LOOK_SECONDS)


def _of_this_process() -> list[tuple[int, int]]:
    import torch

    return [torch.cuda.mem_get_info()]


def _of_workers(gpus: int) -> list[tuple[int, int]]:
    """The free and the whole memory of the first visible GPUs, in MiB; empty without an answer of nvidia-smi."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(number) for number in range(gpus)] if visible is None else visible.split(",")[:gpus]
    command = ["nvidia-smi", "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run([*command, "-i", ",".join(names)], capture_output=True, text=True, check=True)
        rows = [line.split(",") for line in done.stdout.splitlines() if line.strip()]
        return [(int(free), int(total)) for free, total in rows]
    except (OSError, subprocess.CalledProcessError, ValueError):
        return []
