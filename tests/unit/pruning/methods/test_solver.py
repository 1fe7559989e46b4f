"""The solver against the paper's algorithm written plainly in float64."""

import pytest
import torch
from torch import Tensor

from evaluator.core.errors import JobError
from pruning.methods import solver
from pruning.methods.patterns import NofM, Unstructured
from pruning.methods.sparsegpt import BLOCK
from tests.support import brute_force


def problem(rows: int = 24, columns: int = 160, tokens: int = 400, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A weight and a Hessian of correlated inputs."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.eye(columns) + 0.3 * torch.randn(columns, columns, generator=generator)
    inputs = torch.randn(tokens, columns, generator=generator) @ mixing
    return torch.randn(rows, columns, generator=generator), 2 / 8 * inputs.T @ inputs


@pytest.mark.parametrize("pattern", [Unstructured(0.5), Unstructured(0.7), NofM(2, 4), NofM(3, 8)])
def test_equals_the_plain_algorithm(pattern):
    weight, hessian = problem()
    n_of_m = (pattern.n, pattern.m) if isinstance(pattern, NofM) else None
    wanted, wanted_mask = brute_force.plain_sparsegpt(weight, hessian, 128, pattern.ratio, n_of_m)
    ((solved, mask),) = solver.solve([weight], solver.factorise(hessian.clone(), "w"), pattern, block=BLOCK)
    assert torch.equal(mask, wanted_mask)
    assert (solved[mask] == 0).all()
    torch.testing.assert_close(solved.double(), wanted, rtol=1e-4, atol=1e-5)


def test_stacked_matrices_are_those_solved_alone():
    weight, hessian = problem(rows=36)
    factor = solver.factorise(hessian, "w")
    parts = [weight[:20], weight[20:26], weight[26:]]
    for pattern in (Unstructured(0.6), NofM(2, 4)):
        together = solver.solve(parts, factor, pattern, block=BLOCK)
        for part, (solved, mask) in zip(parts, together, strict=True):
            ((alone, alone_mask),) = solver.solve([part], factor, pattern, block=BLOCK)
            assert torch.equal(mask, alone_mask)
            torch.testing.assert_close(solved, alone, rtol=1e-5, atol=1e-6)


def test_dead_columns_become_zero_and_are_counted():
    weight, hessian = problem()
    hessian[5], hessian[:, 5] = 0, 0
    factor = solver.factorise(hessian, "w")
    ((solved, _),) = solver.solve([weight], factor, Unstructured(0.5), block=BLOCK)
    assert factor.dead_I.sum() == 1
    assert (solved[:, 5] == 0).all()


def test_the_ladder_is_climbed_and_recorded():
    hessian = torch.eye(4)
    hessian[0, 0] = -0.03  # a negative direction that only ten times the usual damping outweighs
    factor = solver.factorise(hessian, "w")
    assert (factor.damping, factor.dtype) == (pytest.approx(0.1), "float32")


@pytest.mark.parametrize(("value", "message"), [(float("nan"), "not finite"), (-50.0, "not positive definite")])
def test_a_hopeless_hessian_is_an_error_that_names_the_matrix(value, message):
    hessian = torch.eye(4)
    hessian[0, 0] = value
    with pytest.raises(JobError, match=f"layer.q: .*{message}"):
        solver.factorise(hessian, "layer.q")
