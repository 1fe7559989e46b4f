"""The repair against torch's least squares in float64, row by row."""

import pytest
import torch

from evaluator.core.errors import JobError
from pruning.layers.repair import LeastSquares
from pruning.methods import masks
from pruning.methods.base import Pruned
from pruning.methods.patterns import NofM, Unstructured
from pruning.methods.solver import DAMPING

ROWS, COLUMNS, TOKENS = 9, 24, 200


def drawn(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(COLUMNS, COLUMNS, generator=generator)
    inputs_TI = torch.randn(TOKENS, COLUMNS, generator=generator) @ mixing
    return (
        inputs_TI,
        2 / 7 * inputs_TI.T @ inputs_TI,
        torch.randn(ROWS, COLUMNS, generator=generator),
    )


def pruned(
    dense_OI: torch.Tensor, pattern: Unstructured | NofM | None = None
) -> Pruned:
    mask_OI = masks.select(dense_OI.abs(), pattern or Unstructured(0.5), "row")
    return Pruned(masks.zeroed(dense_OI, mask_OI), mask_OI)


def best(
    inputs_TI: torch.Tensor, dense_OI: torch.Tensor, mask_OI: torch.Tensor
) -> torch.Tensor:
    """Each row by itself: outputs as the dense row's, and, weighted by the damping,
    weights as the dense row's."""
    inputs, dense = inputs_TI.double(), dense_OI.double()
    ridge = (DAMPING * inputs.square().sum(dim=0).mean()).sqrt()
    design = torch.cat([inputs, ridge * torch.eye(COLUMNS, dtype=torch.float64)])
    found = torch.zeros_like(dense)
    for row, kept in enumerate(~mask_OI):
        found[row, kept] = torch.linalg.lstsq(
            design[:, kept], (design @ dense[row])[:, None]
        ).solution[:, 0]
    return found


@pytest.mark.parametrize(
    "pattern", [Unstructured(0.5), NofM(2, 4)], ids=["half", "2of4"]
)
def test_kept_weights_are_least_squares(pattern):
    inputs_TI, hessian_II, dense_OI = drawn()
    before = pruned(dense_OI, pattern)
    repaired_OI, facts = LeastSquares(hessian_II, "m").repair(
        before, dense_OI, torch.float32
    )
    expected_OI = best(inputs_TI, dense_OI, before.mask_OI)
    torch.testing.assert_close(repaired_OI.double(), expected_OI, rtol=2e-3, atol=2e-3)
    assert not repaired_OI[before.mask_OI].any()
    whole = (inputs_TI @ dense_OI.T).square().sum()
    for weight_OI, error in (
        (before.weight_OI, facts["pruned_error"]),
        (repaired_OI, facts["repaired_error"]),
    ):
        missed = (inputs_TI @ (dense_OI - weight_OI).T).square().sum()
        assert error == pytest.approx((missed / whole).item(), rel=1e-3)
    assert facts["repaired_error"] < 0.5 * facts["pruned_error"]
    assert 1 < facts["repair_steps"] < 64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_row_gets_worse_by_rounding(dtype):
    inputs_TI, hessian_II, dense_OI = drawn(1)
    fit = LeastSquares(hessian_II, "m")
    first_OI, first = fit.repair(pruned(dense_OI), dense_OI, dtype)
    assert first_OI.dtype == dtype
    # Where the best weights are there already, a repair can only round them otherwise.
    again = Pruned(first_OI.float(), first_OI == 0)
    second_OI, second = fit.repair(again, dense_OI, dtype)
    missed = [
        (inputs_TI @ (dense_OI - weight_OI.float()).T).square().sum(dim=0)
        for weight_OI in (first_OI, second_OI)
    ]
    assert bool((missed[1] <= missed[0] * (1 + 1e-4)).all())
    before = pytest.approx(first["repaired_error"], rel=1e-4)
    assert second["repaired_error"] <= second["pruned_error"] == before


def test_unseen_inputs_keep_their_weights():
    inputs_TI, _, dense_OI = drawn(2)
    inputs_TI[:, [3, 7]] = 0
    before = pruned(dense_OI)
    seen = LeastSquares(inputs_TI.T @ inputs_TI, "m")
    repaired_OI, facts = seen.repair(before, dense_OI, torch.float32)
    assert torch.equal(repaired_OI[:, [3, 7]], before.weight_OI[:, [3, 7]])
    assert facts["repaired_error"] < facts["pruned_error"]
    unseen = LeastSquares(torch.zeros(COLUMNS, COLUMNS), "m")
    silent_OI, facts = unseen.repair(before, dense_OI, torch.float32)
    assert torch.equal(silent_OI, before.weight_OI)
    assert set(facts.values()) == {0}


def test_infinite_hessian_is_named():
    message = r"model\.q: the Hessian of its inputs is not finite"
    with pytest.raises(JobError, match=message):
        LeastSquares(torch.full((4, 4), torch.inf), "model.q")


def test_rows_are_repaired_independently():
    _, hessian_II, dense_OI = drawn(3)
    fit = LeastSquares(hessian_II, "m")
    # more rows than are solved together
    alone, together = (
        fit.repair(pruned(each), each, torch.float32)[0]
        for each in (dense_OI, dense_OI.repeat(70, 1))
    )
    torch.testing.assert_close(together, alone.repeat(70, 1), rtol=2e-3, atol=2e-3)
