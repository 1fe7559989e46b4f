"""Which part of the files each worker holds, on vLLM's own layers. Stand-ins of such
layers: test_worker.py."""

from types import SimpleNamespace

import pytest
import torch

from evaluator.engine.vllm.verify.sharding import pieces, rows_held
from tests.support.engines import needs_vllm

HIDDEN = 8


def attention(
    rank: int, workers: int, heads: int, kv_heads: int, size: int
) -> SimpleNamespace:
    held_kv = max(1, kv_heads // workers)
    return SimpleNamespace(
        tp_rank=rank, tp_size=workers, head_size=size, v_head_size=size,
        num_heads=heads // workers, total_num_heads=heads, num_kv_heads=held_kv, total_num_kv_heads=kv_heads,
        num_kv_head_replicas=max(1, workers // kv_heads), input_size_per_partition=HIDDEN,
    )  # fmt: skip


def vocabulary(first: int, end: int, size: int) -> SimpleNamespace:
    held = SimpleNamespace(org_vocab_start_index=first, org_vocab_end_index=end)
    return SimpleNamespace(shard_indices=held, org_vocab_size=size, tp_size=2)


def test_unfit_layers_are_not_guessed():
    """What does not fit the files is not guessed at."""
    wide = [(8, HIDDEN)]
    assert pieces(vocabulary(0, 64, 70), [(72, HIDDEN)]) is None
    assert pieces(vocabulary(70, 70, 70), [(70, HIDDEN)]) == []  # nothing but padding
    assert (
        pieces(SimpleNamespace(tp_rank=3, tp_size=2, output_partition_sizes=[4]), wide)
        is None
    )
    assert (
        pieces(SimpleNamespace(tp_rank=0, tp_size=2, input_size_per_partition=3), wide)
        is None
    )
    across = [(7, HIDDEN), (5, HIDDEN), (4, HIDDEN)]  # a part across two tensors
    assert pieces(attention(1, 2, heads=4, kv_heads=2, size=2), across) is None


@pytest.fixture
def worker(monkeypatch):
    """Makes the layers that follow believe that they are built in one worker of
    several."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor import parameter
    from vllm.model_executor.layers import linear, vocab_parallel_embedding

    def become(rank, workers):
        for module in (linear, vocab_parallel_embedding, parameter):
            monkeypatch.setattr(module, "get_tensor_model_parallel_rank", lambda: rank)
            monkeypatch.setattr(
                module, "get_tensor_model_parallel_world_size", lambda: workers
            )

    with set_current_vllm_config(VllmConfig()):
        yield become


def numbered(rows: int, columns: int, start: int = 0) -> torch.Tensor:
    return torch.arange(start, start + rows * columns, dtype=torch.float32).reshape(
        rows, columns
    )


def assembled(module, tensors: list[torch.Tensor]) -> torch.Tensor:
    found = pieces(module, [tuple(each.shape) for each in tensors])
    assert found
    return torch.cat(
        [tensors[piece.source][piece.rows, piece.columns] for piece in found]
    )


class TestVllmsOwnLayers:
    pytestmark = needs_vllm

    @pytest.mark.parametrize(
        ("workers", "kv_heads"), [(1, 2), (2, 2), (2, 4), (4, 2), (4, 1)]
    )
    def test_qkv(self, worker, workers, kv_heads):
        from vllm.model_executor.layers.linear import QKVParallelLinear

        heads, size = 4, 2
        rows = [heads * size, kv_heads * size, kv_heads * size]
        tensors = [
            numbered(each, HIDDEN, 1000 * index) for index, each in enumerate(rows)
        ]
        for rank in range(workers):
            worker(rank, workers)
            layer = QKVParallelLinear(HIDDEN, size, heads, kv_heads, bias=False)
            for name, tensor in zip("qkv", tensors, strict=True):
                layer.weight.weight_loader(layer.weight, tensor, name)
            assert torch.equal(assembled(layer, tensors), layer.weight)
            fused = QKVParallelLinear(HIDDEN, size, heads, kv_heads, bias=False)
            fused.weight.weight_loader(fused.weight, torch.cat(tensors))
            assert torch.equal(assembled(fused, [torch.cat(tensors)]), fused.weight)

    @pytest.mark.parametrize("workers", [1, 2, 4])
    def test_gate_up_down_and_replicated(self, worker, workers):
        from vllm.model_executor.layers import linear

        gate, up = numbered(12, HIDDEN), numbered(12, HIDDEN, 1000)
        down = numbered(HIDDEN, 12)
        for rank in range(workers):
            worker(rank, workers)
            merged = linear.MergedColumnParallelLinear(HIDDEN, [12, 12], bias=False)
            for index, tensor in enumerate((gate, up)):
                merged.weight.weight_loader(merged.weight, tensor, index)
            both = [torch.cat((gate, up))]
            assert torch.equal(assembled(merged, [gate, up]), merged.weight)
            assert torch.equal(assembled(merged, both), merged.weight)
            for layer, tensor in (
                (linear.ColumnParallelLinear(HIDDEN, 12, bias=False), gate),
                (linear.RowParallelLinear(12, HIDDEN, bias=False), down),
                (linear.ReplicatedLinear(HIDDEN, 12, bias=False), gate),
            ):
                layer.weight.weight_loader(layer.weight, tensor)
                assert torch.equal(assembled(layer, [tensor]), layer.weight)

    @pytest.mark.parametrize("size", [64, 70, 128, 300])
    @pytest.mark.parametrize("workers", [1, 2, 4])
    def test_vocabulary(self, worker, workers, size):
        from vllm.model_executor.layers.vocab_parallel_embedding import (
            ParallelLMHead,
            VocabParallelEmbedding,
        )

        tensor = numbered(size, HIDDEN, 1)
        kinds = (VocabParallelEmbedding, ParallelLMHead)
        rows = dict.fromkeys(kinds, 0)
        for rank in range(workers):
            worker(rank, workers)
            for kind in kinds:
                layer = kind(size, HIDDEN)
                layer.weight_loader(layer.weight, tensor)
                found = pieces(layer, [tuple(tensor.shape)])
                rows[kind] += rows_held(found)
                for piece in found:
                    held = layer.weight[piece.start : piece.start + piece.height]
                    assert torch.equal(held, tensor[piece.rows, piece.columns])
                # vLLM fills its padding with zeros
                assert not layer.weight[rows_held(found) :].any()
        assert set(rows.values()) == {size}
