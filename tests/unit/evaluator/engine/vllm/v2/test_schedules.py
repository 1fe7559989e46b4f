"""FlashAttention's builder in vLLM gets each step as the graphs were captured; which
kernels need it: tests/gpu."""

from types import SimpleNamespace

import pytest
import torch

from evaluator.engine.vllm.v2 import schedules


@pytest.fixture
def described(monkeypatch):
    """The lengths that vLLM's own `build` gets for a step of these lengths, after
    two engines of one process."""
    flash_attn = pytest.importorskip("vllm.v1.attention.backends.flash_attn")
    from vllm.v1.attention.backend import CommonAttentionMetadata

    def build(builder, common_prefix_len, common_attn_metadata, fast_build=False):
        return common_attn_metadata.max_query_len, common_attn_metadata.max_seq_len

    monkeypatch.setattr(flash_attn.FlashAttentionMetadataBuilder, "build", build)
    schedules.describe_as_captured()
    schedules.describe_as_captured()

    def describe(query, context, *, mode="FULL", scheduled=True):
        builder = SimpleNamespace(
            aot_schedule=scheduled,
            use_full_cuda_graph=mode != "NONE",
            compilation_config=SimpleNamespace(
                cudagraph_mode=SimpleNamespace(name=mode)
            ),
            model_config=SimpleNamespace(max_model_len=1088),
        )
        none = torch.empty(0)
        lengths = {"max_query_len": query, "max_seq_len": context}
        step = CommonAttentionMetadata(
            none,
            none,
            none,
            4,
            4,
            block_table_tensor=none,
            slot_mapping=none,
            **lengths,
        )
        built = flash_attn.FlashAttentionMetadataBuilder.build
        told = built(builder, common_prefix_len=0, common_attn_metadata=step)
        assert (
            told
            == built(builder, 0, step, fast_build=True)
            == built(builder, 0, step, True)
        )
        # other builders read it too
        assert (step.max_query_len, step.max_seq_len) == (query, context)
        return told

    return describe


@pytest.mark.parametrize(
    ("query", "step", "told"),
    [
        # a step that only generates, as one of a mixed graph
        (1, {}, (2, 1088)),
        (300, {}, (300, 1088)),
        # graphs of steps that only generate
        (1, {"mode": "FULL_AND_PIECEWISE"}, (1, 1088)),
        (1, {"mode": "FULL_DECODE_ONLY"}, (1, 1088)),
        # without a graph or a schedule ahead vLLM agrees with itself
        (1, {"mode": "NONE"}, (1, 40)),
        (1, {"scheduled": False}, (1, 40)),
    ],
)
def test_steps_are_described_as_captured(described, query, step, told):
    assert described(query, 40, **step) == told
