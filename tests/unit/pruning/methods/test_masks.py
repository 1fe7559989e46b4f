"""Scores are their formulas, masks a stable ascending sort's; the solver is the
paper's algorithm, written plainly."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evaluator.checkpoints.sparsity import groups_hold
from evaluator.core.errors import JobError
from pruning.methods import masks, solver
from pruning.methods.masks import count_zeros
from pruning.methods.patterns import NofM, Unstructured
from pruning.methods.scores import BLOCK, RIA, Magnitude, SparseGPT, Wanda
from tests.support import brute_force


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_of_either_sign_count(dtype):
    smallest = torch.tensor(
        [1], dtype={2: torch.int16, 4: torch.int32}[dtype.itemsize]
    ).view(dtype)
    weight = torch.tensor([[0.0, -0.0, 1.0, -1.0], [0.0, 3.0, float("inf"), 0.0]]).to(
        dtype
    )
    weight[1, 3] = smallest[0]
    assert count_zeros(weight) == 3
    assert count_zeros(weight.T) == 3


def scores(rows: int, columns: int, levels: int, seed: int) -> torch.Tensor:
    """Few distinct levels make many ties."""
    return torch.randint(
        0, levels, (rows, columns), generator=torch.Generator().manual_seed(seed)
    ).float()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 40),
    st.integers(1, 9),
    st.floats(0, 0.999),
    st.integers(0, 99),
)
def test_masks_equal_a_stable_sort(rows, columns, levels, ratio, seed):
    score = scores(rows, columns, levels, seed)
    mask = masks.select(score, Unstructured(ratio), "row")
    assert torch.equal(mask, brute_force.sorted_mask(score, ratio, None))
    assert (mask.sum(dim=1) == int(columns * ratio)).all()
    mask = masks.select(score, Unstructured(ratio), "matrix")
    assert torch.equal(
        mask.view(1, -1), brute_force.sorted_mask(score.view(1, -1), ratio, None)
    )


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12),
    st.data(),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(0, 99),
)
def test_groups_equal_a_stable_sort(m, data, groups, levels, seed):
    n = data.draw(st.integers(0, m))
    score = scores(4, groups * m, levels, seed)
    mask = masks.select(score, NofM(n, m), "row")
    assert torch.equal(mask, brute_force.sorted_mask(score, 0.0, (n, m)))
    assert groups_hold(mask, n, m)


def test_scores_are_their_formulas():
    weight = torch.tensor([[1.0, -2.0], [0.0, 4.0]], dtype=torch.bfloat16)
    norm_sq = torch.tensor([4.0, 9.0])
    assert Magnitude().score(weight, None).tolist() == [[1, 2], [0, 4]]
    assert Wanda().score(weight, norm_sq).tolist() == [[2, 6], [0, 12]]
    relative = torch.tensor([[1 / 1 + 1 / 3, 2 / 6 + 2 / 3], [0, 4 / 6 + 4 / 4]])
    torch.testing.assert_close(
        RIA().score(weight, norm_sq), relative * torch.tensor([4.0, 9.0]) ** 0.25
    )
    assert Wanda().score(weight, norm_sq).dtype == torch.float32
    empty = RIA().score(torch.tensor([[0.0, 0.0], [0.0, 3.0]]), torch.ones(2))
    assert torch.isfinite(empty).all()
    assert empty[0, 0] == 0


def test_counts_are_rounded_down():
    """In every group that is compared."""
    counts = [Unstructured(0.7).count(size) for size in (1024, 10)]
    assert counts == [716, 7]
    assert Unstructured(0.29).count(100) == 28
    wanda, sparsegpt = Wanda(), SparseGPT()
    third = Unstructured(1 / 3)
    assert wanda.taken(10, 160, third, "row") == 10 * 53
    assert wanda.taken(10, 160, third, "matrix") == 533
    # of 128 columns, then of 32
    assert sparsegpt.taken(10, 160, third, "matrix") == 426 + 106
    for method in (wanda, sparsegpt):
        assert method.taken(10, 160, NofM(2, 4), "matrix") == 800


def problem(
    rows: int = 24, columns: int = 160, tokens: int = 400, seed: int = 0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.eye(columns) + 0.3 * torch.randn(
        columns, columns, generator=generator
    )
    inputs = torch.randn(tokens, columns, generator=generator) @ mixing
    return torch.randn(rows, columns, generator=generator), 2 / 8 * inputs.T @ inputs


@pytest.mark.parametrize(
    "pattern", [Unstructured(0.5), Unstructured(0.7), NofM(2, 4), NofM(3, 8)]
)
def test_equals_the_plain_algorithm(pattern):
    weight, hessian = problem()
    n_of_m = (pattern.n, pattern.m) if isinstance(pattern, NofM) else None
    wanted, wanted_mask = brute_force.plain_sparsegpt(
        weight, hessian, 128, pattern.ratio, n_of_m
    )
    ((solved, mask),) = solver.solve(
        [weight], solver.factorise(hessian.clone(), "w"), pattern, block=BLOCK
    )
    assert torch.equal(mask, wanted_mask)
    assert (solved[mask] == 0).all()
    torch.testing.assert_close(solved.double(), wanted, rtol=1e-4, atol=1e-5)


def test_dead_columns_become_zero():
    weight, hessian = problem()
    hessian[5], hessian[:, 5] = 0, 0
    weight[:, 5] = 1e3  # so large that no mask removes it
    factor = solver.factorise(hessian, "w")
    ((solved, _),) = solver.solve([weight], factor, Unstructured(0.5), block=BLOCK)
    assert factor.dead_I.sum() == 1
    assert (solved[:, 5] == 0).all()
    # A dead column's 0 counts as 1, and 1 % of the mean, 2.5, is added.
    upper = solver.factorise(torch.diag(torch.tensor([4.0, 0.0])), "w").upper_II
    torch.testing.assert_close(upper, torch.diag(torch.tensor([4.025, 1.025]) ** -0.5))


def test_damping_grows_where_needed():
    hessian = torch.eye(4)
    # a negative direction that only ten times the usual damping outweighs
    hessian[0, 0] = -0.03
    factor = solver.factorise(hessian, "w")
    assert (factor.damping, factor.dtype) == (pytest.approx(0.1), "float32")


@pytest.mark.parametrize(
    ("value", "message"),
    [(float("nan"), "not finite"), (-50.0, "not positive definite")],
)
def test_hopeless_hessian_names_the_matrix(value, message):
    hessian = torch.eye(4)
    hessian[0, 0] = value
    with pytest.raises(JobError, match=f"layer.q: .*{message}"):
        solver.factorise(hessian, "layer.q")
