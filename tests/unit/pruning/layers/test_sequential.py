"""Statistics do not depend on how sequences are batched, nor outcomes on how many
experts are held; OWL's ratios."""

import functools
import random

import pytest
import torch
from torch import nn

from evaluator.checkpoints.checkpoint import Checkpoint
from pruning.layers import sequential
from pruning.layers.flow import Observer, add_second_moments, mirror
from pruning.layers.sequential import owl, portions
from pruning.methods.base import Statistic
from pruning.model.architectures import Routed
from pruning.model.decoder import Decoder
from pruning.model.packing import Batch, batches
from pruning.run import prune
from tests.support import pruning as tiny
from tests.support.sweeps import refused

CPU = torch.device("cpu")
NORMS, HESSIAN = Statistic.COLUMN_NORMS, Statistic.HESSIAN


def drawn(lengths: list[int]) -> list[torch.Tensor]:
    draw = random.Random(0)
    return [
        torch.tensor([draw.randrange(tiny.VOCABULARY) for _ in range(length)])
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
            observer = Observer(decoder.linears(index), [kind], count)
            for number, batch in enumerate(made):
                keywords = decoder.keywords(index, batch)
                observer.run(layer, hidden[number], keywords, batch)
                hidden[number] = layer(hidden[number], **keywords)
            for name, gathered in observer.inputs.items():
                found[f"{index}.{name}"] = gathered.take()[kind]
            decoder.release(index)
    return found


@pytest.mark.parametrize("name", [*tiny.ARCHITECTURES, *tiny.MIXTURES])
def test_mixed_batches_equal_batch_one(name, checkpoints):
    decoder = Decoder(Checkpoint(checkpoints(name)), CPU)
    sequences = drawn([40, 3, 17, 40, 90, 16, 31, 90, 7])
    decoder.open_skeleton(torch.cat(sequences))
    alone, mixed = batches(sequences, 1), batches(sequences, 120)
    assert len(alone) == 9
    assert len(mixed) < 8
    one, many = (observed(decoder, made, NORMS) for made in (alone, mixed))
    assert len(one) >= 8
    assert all(torch.equal(one[key], many[key]) for key in one)
    one, many = (observed(decoder, made, HESSIAN) for made in (alone, mixed))
    for key in one:
        torch.testing.assert_close(one[key], many[key], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [3, 520])
def test_second_moments_equal_whole_product(columns):
    total = torch.zeros(columns, columns, dtype=torch.float64)
    parts = [torch.randn(700, columns, dtype=torch.float64) for _ in range(2)]
    for part in parts:
        add_second_moments(total, part)
    wanted = sum(part.T @ part for part in parts)
    torch.testing.assert_close(mirror(total), wanted)


def mixture() -> dict[str, nn.Linear]:
    found: dict[str, nn.Linear] = {"self_attn.o_proj": nn.Linear(8, 8)}
    for number in range(3):
        for name in ("gate", "up"):
            found[f"mlp.experts.{number}.{name}"] = Routed(8, 4, bias=False)
        found[f"mlp.experts.{number}.down"] = Routed(4, 8, bias=False)
    return found


def test_short_memory_splits_experts():
    linears = mixture()
    one = (8**2 + 4**2) * 4  # bytes of an expert's Hessians
    assert portions(linears, [HESSIAN], 3 * one) == [linears]
    assert portions(linears, [NORMS], 1) == [linears]
    each = [[0], [1], [2]]
    for limit, experts in ((2 * one, [[0, 1], [2]]), (one, each), (1, each)):
        *some, rest = portions(linears, [HESSIAN], limit)
        assert set(rest) == {"self_attn.o_proj"}
        for part, numbers in zip(some, experts, strict=True):
            assert sorted({int(name.split(".")[2]) for name in part}) == numbers
            assert len(part) == 3 * len(numbers)


def test_split_experts_give_the_same(checkpoints, passages, tmp_path, monkeypatch):
    source = checkpoints(
        "qwen3_moe", torch.float32, num_hidden_layers=1, mlp_only_layers=[]
    )
    job = tiny.job(source, passages, "sparsegpt")
    prune(job, tmp_path / "one")
    split = functools.partial(portions, limit=50_000)
    monkeypatch.setattr(sequential, "portions", split)
    prune(job, tmp_path / "some")
    one, some = tiny.weights(tmp_path / "one"), tiny.weights(tmp_path / "some")
    assert all(torch.equal(one[name], some[name]) for name in one)


def test_owl_keeps_more_with_outliers():
    ratios = [pattern.ratio for pattern in owl([0.01, 0.04, 0.02, 0.01], 0.7)]
    assert sum(ratios) / 4 == pytest.approx(0.7)
    assert max(ratios) - min(ratios) == pytest.approx(0.16)
    assert ratios[1] < ratios[2] < ratios[0] == ratios[3]
    assert [pattern.ratio for pattern in owl([0.1, 0.1], 0.5)] == [0.5, 0.5]


@pytest.mark.parametrize("ratio", [0.02, 0.97])
def test_owl_names_an_impossible_layer(ratio):
    assert f"sparsity: {ratio} with allocation 'owl' gives layer" in refused(
        owl, [0.0, 1.0, 0.5], ratio
    )
