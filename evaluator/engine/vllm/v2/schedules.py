"""FlashAttention 3 beside CUDA graphs: each step describes itself as vLLM described
the graph when it captured it.

FlashAttention 3 computes a schedule for each step, outside the graph. The schedule's
layout depends on the mask:

- If no query has more than one token, heads of up to 64 or of more than 128 need no
  causal mask.
- If no context is longer than a sliding window, no head needs the window.

vLLM captures graphs of mixed steps with long queries, and all graphs with the
longest context. But it describes a step by the step's own lengths. The captured
kernel then reads a schedule of another layout, and nothing reports it. Measured on
an H100 with vLLM 0.32:

- heads of 32, graphs of mixed steps: all generated tokens were noise, 22 nats from
  the oracle
- heads of 64, a window of 128 tokens, also with vLLM's own choice of graphs: seeded
  samples depended on their batch

Replaces `FlashAttentionMetadataBuilder.build`. Reads the builder's `aot_schedule`,
`use_full_cuda_graph`, `compilation_config.cudagraph_mode` and
`model_config.max_model_len`."""

from dataclasses import replace
from functools import wraps
from typing import Any


def describe_as_captured() -> None:
    """From now on, steps in this process are described like their graphs. No graph
    may have a single token, as vLLM describes it otherwise (`graph_arguments`)."""
    from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder

    build = FlashAttentionMetadataBuilder.build
    if hasattr(build, "__wrapped__"):  # by another engine of this process
        return

    @wraps(build)
    def build_as_captured(
        builder: Any,
        common_prefix_len: int,
        common_attn_metadata: Any,
        *more: Any,
        **named: Any,
    ) -> Any:
        step = common_attn_metadata
        if builder.aot_schedule and builder.use_full_cuda_graph:
            mixed = builder.compilation_config.cudagraph_mode.name == "FULL"
            query = max(step.max_query_len, 2 if mixed else 1)
            step = replace(
                step,
                max_query_len=query,
                max_seq_len=builder.model_config.max_model_len,
            )
        return build(builder, common_prefix_len, step, *more, **named)

    FlashAttentionMetadataBuilder.build = build_as_captured
