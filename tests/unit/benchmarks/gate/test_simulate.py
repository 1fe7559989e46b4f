"""Made-up checkpoints lose what was planted, and items of a context depend on each other as requested."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gate.errors import KINDS, World, draw, harmless, planted
from evaluator.deciding.criteria import CRITERIA

_MEASURE = {each.name: each.measure for each in CRITERIA}
_LARGE = World(items=200_000, languages=4)


def measured(name, paired):
    return _MEASURE[name](paired, "left out").evidence.value


@pytest.mark.parametrize("flips", [0.0, 0.01])
@pytest.mark.parametrize(("accuracy", "loss"), [(0.05, 0.02), (0.8, 0.02), (0.99, 0.05)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_true_loss_is_the_one_that_was_planted(kind, accuracy, loss, flips):
    world = replace(_LARGE, accuracy=accuracy)
    plan = planted(kind, world, loss, flips)
    assert plan is not None
    paired = draw(world, plan, np.random.default_rng(1))
    name = {"open": "open_drop", "choice": "choice_drop", "language": "open_drop"}.get(kind, kind)
    known = accuracy if kind in ("mc_only", "lost") else 1.0
    where = paired.of("l00") if kind == "language" else paired
    error = (loss / known / len(where.contexts)) ** 0.5 + (2 * flips / len(where.contexts)) ** 0.5
    assert measured(name, where) == pytest.approx(loss, abs=4 * error)
    if kind == "language":
        assert measured(name, paired.of("l01")) == pytest.approx(0.0, abs=4 * error)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 1.0])
def test_items_of_a_context_are_correlated_as_requested(correlation):
    world = World(items=100_000, cluster=5, correlation=correlation, accuracy=0.5)
    paired = draw(world, harmless(world, 0.0, 0.0), np.random.default_rng(4))
    sums = np.bincount(paired.contexts, paired.base_said)
    # The variance of a beta-binomial count: n p (1 - p) (1 + (n - 1) correlation).
    assert sums.var() == pytest.approx(5 * 0.25 * (1 + 4 * correlation), rel=0.04)
