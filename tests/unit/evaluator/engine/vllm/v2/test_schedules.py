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


def test_generating_step_described_as_mixed_graph(described):
    """A step that only generates is described as one of a mixed graph."""
    assert described(1, 40) == (2, 1088)
    assert described(300, 40) == (300, 1088)


@pytest.mark.parametrize("mode", ["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"])
def test_decode_graphs_have_single_token_queries(described, mode):
    """Graphs of steps that only generate have queries of one token."""
    assert described(1, 40, mode=mode) == (1, 1088)


def test_no_graph_leaves_step_unchanged(described):
    """Without a graph or a schedule ahead vllm agrees with itself."""
    assert described(1, 40, mode="NONE") == (1, 40)
    assert described(1, 40, scheduled=False) == (1, 40)
