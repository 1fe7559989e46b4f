"""Masks are those of a stable ascending sort, with exact counts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pruning.methods import masks
from pruning.methods.masks import count_zeros
from pruning.methods.patterns import NofM, Unstructured
from tests.support import brute_force


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_zeros_of_either_sign_count_and_the_smallest_number_does_not(dtype):
    smallest = torch.tensor([1], dtype={2: torch.int16, 4: torch.int32}[dtype.itemsize]).view(dtype)
    weight = torch.tensor([[0.0, -0.0, 1.0, -1.0], [0.0, 3.0, float("inf"), 0.0]]).to(dtype)
    weight[1, 3] = smallest[0]
    assert count_zeros(weight) == 3
    assert count_zeros(weight.T) == 3


def scores(rows: int, columns: int, levels: int, seed: int) -> torch.Tensor:
    """Few distinct levels make many ties."""
    return torch.randint(0, levels, (rows, columns), generator=torch.Generator().manual_seed(seed)).float()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 9), st.floats(0, 0.999), st.integers(0, 99))
def test_rows_equal_a_stable_sort(rows, columns, levels, ratio, seed):
    score = scores(rows, columns, levels, seed)
    mask = masks.select(score, Unstructured(ratio), "row")
    assert torch.equal(mask, brute_force.sorted_mask(score, ratio, None))
    assert (mask.sum(dim=1) == int(columns * ratio)).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 9), st.floats(0, 0.999), st.integers(0, 99))
def test_a_matrix_equals_a_stable_sort_of_all_its_weights(rows, columns, levels, ratio, seed):
    score = scores(rows, columns, levels, seed)
    mask = masks.select(score, Unstructured(ratio), "matrix")
    assert torch.equal(mask.view(1, -1), brute_force.sorted_mask(score.view(1, -1), ratio, None))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.data(), st.integers(1, 5), st.integers(1, 9), st.integers(0, 99))
def test_groups_equal_a_stable_sort(m, data, groups, levels, seed):
    n = data.draw(st.integers(0, m))
    score = scores(4, groups * m, levels, seed)
    mask = masks.select(score, NofM(n, m), "row")
    assert torch.equal(mask, brute_force.sorted_mask(score, 0.0, (n, m)))
    assert masks.groups_hold(mask, n, m)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 60),
    st.data(),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    st.integers(0, 99),
)
def test_halving_finds_the_same_threshold_as_a_sort(rows, columns, data, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    score = torch.randn(rows, columns, generator=generator, dtype=torch.float64).mul(10.0 ** (seed % 9 - 4)).to(dtype)
    drawn = torch.randint(0, 4, score.shape, generator=generator)
    for number, value in enumerate((0.0, -0.0, float("inf"))):  # with ties, both zeros and what overflowed
        score = torch.where(drawn == number, torch.tensor(value, dtype=dtype), score) if seed % 2 else score
    count = data.draw(st.integers(1, columns))
    assert torch.equal(masks._kth_by_halving(score, count), score.sort(dim=1).values[:, count - 1 : count])


def test_ties_go_to_the_lowest_column():
    score = torch.ones(2, 8)
    assert masks.lowest_of_rows(score, 3)[0].tolist() == [True] * 3 + [False] * 5
    assert masks.lowest_of_groups(score, 2, 4)[1].tolist() == [True, True, False, False] * 2
    assert masks.lowest_of_rows(score.reshape(1, -1), 9).view(2, 8).int().tolist() == [[1] * 8, [1] + [0] * 7]


def test_groups_that_lack_zeros_are_seen():
    assert not masks.groups_hold(torch.tensor([[True, False, False, False]]), 2, 4)
    assert not masks.groups_hold(torch.ones(1, 6, dtype=torch.bool), 2, 4)


@pytest.mark.parametrize(("columns", "ratio", "count"), [(1024, 0.7, 716), (10, 0.7, 7), (100, 0.29, 28)])
def test_counts_are_rounded_down_as_published(columns, ratio, count):
    assert Unstructured(ratio).count(columns) == count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_what_goes_is_plus_zero_and_the_rest_stays(dtype):
    weight = torch.randn(5, 7).to(dtype)
    weight[0, 0] = -0.0
    mask = torch.rand(5, 7) < 0.5
    mask[1, 1], mask[0, 0] = True, False
    zeroed = masks.zeroed(weight, mask)
    assert torch.equal(zeroed, weight.masked_fill(mask, 0))
    assert not torch.signbit(zeroed[mask]).any()
    assert torch.signbit(zeroed[0, 0])
