"""Which steps of an engine on a GPU are CUDA graphs. Written from vLLM 0.32's source, untested until a GPU ran it.

Without a graph, Python launches every kernel of every layer: 6 to 8 ms (estimate) for the 28 layers of a model of
0.6 B, whose step takes a GPU about 4 ms. A graph is launched at once. It has one number of tokens; a smaller step is
padded to it. `EngineConfig.cuda_graphs` chooses:

- `full`, the default: every step is one graph, also one that computes prompts. This launches least, needs nothing
  before vLLM is imported, and captures each size once. The attention must support it: FlashAttention 3 (Hopper) and
  Triton's (float32) do. For others vLLM falls back to `decode` by itself, and refuses attention that no graph can hold.
- `piecewise`: a step that computes prompts is a graph between two layers' attentions, and each attention is launched
  alone. This suits FlashAttention 2 and 4, and FlashInfer. vLLM calls the mechanism experimental. It captures a graph
  for each layer and size, twice.
- `decode`: a step that computes prompts is launched kernel by kernel. Only steps that generate are graphs.
"""

from __future__ import annotations

from typing import Any

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

    Steps of eight tokens, and from 64 on of an eighth: so much is padding at most. `requests` is one of them, else a
    full batch that generates would have no graph: vLLM captures none for more requests than it has places.
    """
    sizes = [1, 2, 4, 8]
    while sizes[-1] < most:
        power = 1 << (sizes[-1].bit_length() - 1)
        sizes.append(sizes[-1] + max(8, power // 8))
    return sorted({requests, most, *(size for size in sizes if size < most)})
