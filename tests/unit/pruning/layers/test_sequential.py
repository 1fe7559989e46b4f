"""Statistics do not depend on how sequences are batched, nor outcomes on how many
experts are held; OWL's ratios."""

import functools
import random

import pytest
import torch
from torch import nn

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.core.errors import JobError
from pruning.layers import sequential
from pruning.layers.flow import Activations, Gathered, Observer
from pruning.layers.sequential import owl, portions
from pruning.methods.base import Statistic
from pruning.model.architectures import Routed
from pruning.model.decoder import Decoder
from pruning.model.packing import ALONE_BELOW, Batch, batches
from pruning.run import prune
from tests.support import pruning as tiny
from tests.support.sweeps import refused

CPU = torch.device("cpu")


def drawn(lengths: list[int]) -> list[tuple[int, ...]]:
    draw = random.Random(0)
    return [
        tuple(draw.randrange(tiny.VOCABULARY) for _ in range(length))
        for length in lengths
    ]


def observed(
    decoder: Decoder, made: list[Batch], kind: Statistic
) -> dict[str, torch.Tensor]:
    count = sum(len(batch.order) for batch in made)
    found = {}
    with torch.no_grad():
        hidden = [decoder.embed(batch) for batch in made]
        for index in range(2):
            layer = decoder.load(index)
            observer = Observer(
                decoder.linears(index),
                lambda columns: Gathered([kind], columns, count, CPU),
            )
            for inputs, batch in zip(hidden, made, strict=True):
                observer.run(layer, inputs, decoder.keywords(index, batch), batch)
            found |= {
                f"{index}.{name}": statistic.result()[kind]
                for name, statistic in observer.statistics.items()
            }
            hidden = [
                layer(h, **decoder.keywords(index, b))
                for h, b in zip(hidden, made, strict=True)
            ]
            decoder.release(index)
    return found


@pytest.mark.parametrize("name", [*tiny.ARCHITECTURES, *tiny.MIXTURES])
def test_batches_of_mixed_length_give_the_statistics_of_batch_one(name, checkpoints):
    decoder = Decoder(Checkpoint(checkpoints(name)), CPU)
    sequences = drawn([40, 3, 17, 40, 90, 16, 31, 90, 7])
    decoder.open_skeleton(
        torch.tensor([token for sequence in sequences for token in sequence])
    )
    one = observed(decoder, batches(sequences, 1), Statistic.COLUMN_NORMS)
    many = observed(decoder, batches(sequences, 120), Statistic.COLUMN_NORMS)
    assert len(batches(sequences, 1)) == 9
    assert len(batches(sequences, 120)) < 8
    assert len(one) >= 8
    assert all(torch.equal(one[key], many[key]) for key in one)
    one, many = (
        observed(decoder, batches(sequences, budget), Statistic.HESSIAN)
        for budget in (1, 120)
    )
    for key in one:
        torch.testing.assert_close(one[key], many[key], rtol=1e-4, atol=1e-4)


def test_batches_hold_every_sequence_once_and_experts_come_first_where_memory_is_short():
    lengths = [1, 15, 16, 17, 300, 40, 40, 40, 100]
    made = batches(drawn(lengths), 128)
    assert sorted(i for batch in made for i in batch.order) == list(range(len(lengths)))
    for batch in made:
        assert batch.lengths == tuple(lengths[i] for i in batch.order)
        assert sum(batch.lengths) <= 128 or len(batch.order) == 1
        assert min(batch.lengths) >= ALONE_BELOW or len(batch.order) == 1
    linears = layer()
    one = (8**2 + 4**2) * 4  # bytes of an expert's Hessians
    assert portions(linears, Statistic.HESSIAN, 3 * one) == [linears]
    assert portions(linears, Statistic.COLUMN_NORMS, 1) == [linears]
    for limit, experts in (
        (2 * one, [[0, 1], [2]]),
        (one, [[0], [1], [2]]),
        (1, [[0], [1], [2]]),
    ):
        *some, rest = portions(layer(), Statistic.HESSIAN, limit)
        assert [
            sorted({int(name.split(".")[2]) for name in each}) for each in some
        ] == experts
        assert all(len(each) % 3 == 0 for each in some)
        assert set(rest) == {"self_attn.o_proj"}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.o, self.unused = (nn.Linear(4, 4) for _ in range(4))
        self.finished = 0

    def forward(self, hidden):
        hidden = self.o(self.q(hidden) + self.k(hidden))
        self.finished += 1
        return hidden


def test_modules_share_statistics_and_layers_with_more_outliers_keep_more():
    layer = Layer()
    linears = {name: getattr(layer, name) for name in "qko"}
    observer = Observer(
        linears, lambda columns: Gathered([Statistic.COLUMN_NORMS], columns, 2, CPU)
    )
    for i in range(2):
        observer.run(layer, torch.randn(1, 3, 4), {}, Batch((torch.zeros(3),), (i,)))
    assert observer.groups == {"q": ["q", "k"], "o": ["o"]}
    assert layer.finished == 0  # every pass stops at the last input, the first one too
    assert not any(module._forward_pre_hooks for module in linears.values())
    observer = Observer(
        {"unused": layer.unused},
        lambda columns: Gathered([Statistic.COLUMN_NORMS], columns, 1, CPU),
    )
    with pytest.raises(JobError, match="unused did not run"):
        observer.run(layer, torch.randn(1, 3, 4), {}, Batch((torch.zeros(3),), (0,)))
    ratios = [pattern.ratio for pattern in owl([0.01, 0.04, 0.02, 0.01], 0.7)]
    assert sum(ratios) / 4 == pytest.approx(0.7)
    assert max(ratios) - min(ratios) == pytest.approx(0.16)
    assert ratios[1] < ratios[2] < ratios[0] == ratios[3]
    assert [pattern.ratio for pattern in owl([0.1, 0.1], 0.5)] == [0.5, 0.5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("limit", "spilled"), [(10**6, False), (0, True)])
def test_what_is_put_comes_back(dtype, limit, spilled, tmp_path):
    made = [Batch((torch.zeros(length),), (i,)) for i, length in enumerate((5, 3, 3))]
    with (tmp_path / "file").open("w+b") as file:
        held = Activations(made, tiny.of_width(4, dtype), limit, file)
        assert held.bytes == 44 * dtype.itemsize
        for _ in range(2):  # the second layer writes over the first
            values = [torch.randn(1, length, 4).to(dtype) for length in (5, 3, 3)]
            for number, value in enumerate(values):
                held.put(number, value)
            assert bool(held.held) is not spilled
            assert all(
                torch.equal(held.get(number), value)
                for number, value in enumerate(values)
            )
    assert bool((tmp_path / "file").stat().st_size) is spilled


@pytest.mark.parametrize("ratio", [0.02, 0.97])
def test_a_ratio_out_of_range_names_the_layer(ratio):
    assert f"sparsity: {ratio} with allocation 'owl' gives layer" in refused(
        owl, [0.0, 1.0, 0.5], ratio
    )


def layer() -> dict[str, nn.Linear]:
    found: dict[str, nn.Linear] = {"self_attn.o_proj": nn.Linear(8, 8)}
    for number in range(3):
        found |= {
            f"mlp.experts.{number}.{name}": Routed(8, 4, bias=False)
            for name in ("gate", "up")
        }
        found[f"mlp.experts.{number}.down"] = Routed(4, 8, bias=False)
    return found


def test_the_outcome_is_that_of_one_pass(checkpoints, passages, tmp_path, monkeypatch):
    source = checkpoints(
        "qwen3_moe", torch.float32, num_hidden_layers=1, mlp_only_layers=[]
    )
    job = tiny.job(source, passages, "sparsegpt")
    prune(job, tmp_path / "one")
    monkeypatch.setattr(
        sequential, "portions", functools.partial(portions, limit=50_000)
    )
    prune(job, tmp_path / "some")
    one, some = tiny.weights(tmp_path / "one"), tiny.weights(tmp_path / "some")
    assert all(torch.equal(one[name], some[name]) for name in one)
