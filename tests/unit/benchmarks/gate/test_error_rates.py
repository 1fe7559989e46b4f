"""Error rates of the gate: a bound is broken where a simulation's 99 % interval is
beyond."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gate import cases
from benchmarks.gate.run import rate, worst
from benchmarks.gate.worlds import KINDS, World, draw, harmless, planted
from evaluator.deciding.criteria import CRITERIA
from evaluator.deciding.decision import BLOCK_LEVEL, PASS_LEVEL, decide
from evaluator.deciding.thresholds import Thresholds

_BOUNDS = {"PASS": PASS_LEVEL, "BLOCK": BLOCK_LEVEL}


def corners(languages):
    yield World(200, languages, accuracy=0.95)  # a pass needs every item
    yield World(1000, languages, accuracy=0.99)
    correlated = World(1000, languages, cluster=5, correlation=1.0)
    yield correlated  # contexts are lost as a whole
    # what is lost may lie in contexts not yet seen
    yield replace(correlated, sizes="skewed")


def check(rows):
    for case, measured in rows:
        assert measured.ends[0] <= _BOUNDS[case.verdict], f"{measured}: {case}"


@pytest.mark.parametrize("kind", KINDS)
def test_loss_at_tolerance_seldom_passes(kind):
    some = [*cases.at_tolerance(corners, (kind,))][:8:2]
    rows = [(case, rate(case, 300, (1, i))) for i, case in enumerate(some)]
    check(rows)
    # the planted loss is at the tolerance, and not far beyond it
    assert sum(measured.count for _, measured in rows) > 0


def test_block_without_loss_is_rare():
    some = [case for case in cases.without_loss(corners) if case.world.languages == 3]
    check((case, rate(case, 150, (2, i))) for i, case in enumerate(some))


def test_large_run_decides():
    world = World(5000, 3, cluster=5, correlation=0.1)
    plans = {"PASS": [harmless(world, 0.01, 0.0)], "BLOCK": []}
    for kind in KINDS:
        loss = 3 * cases.LOSSES[kind].tolerance
        plans["BLOCK"].append(planted(kind, world, loss, 0.01))
    for verdict, of_verdict in plans.items():
        for plan in of_verdict:
            rng = np.random.default_rng(3)
            drawn = [draw(world, plan, rng) for _ in range(30)]
            outcomes = [decide(paired, Thresholds()).outcome for paired in drawn]
            assert outcomes.count(verdict) >= 27


@pytest.mark.long
@pytest.mark.parametrize("wrong", [cases.at_tolerance, cases.without_loss])
def test_no_cell_errs_too_often(wrong):
    some = wrong(cases.worlds)
    check(worst(some, runs=200, again=4000, seed=7, kept=5))


def measured(name, paired):
    (criterion,) = (each for each in CRITERIA if each.name == name)
    return criterion.measure(paired, "left out").evidence.value


@pytest.mark.parametrize("flips", [0.0, 0.01])
@pytest.mark.parametrize(
    ("accuracy", "loss"), [(0.05, 0.02), (0.8, 0.02), (0.99, 0.05)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_true_loss_is_planted(kind, accuracy, loss, flips):
    world = World(200_000, 4, accuracy=accuracy)
    plan = planted(kind, world, loss, flips)
    assert plan is not None
    paired = draw(world, plan, np.random.default_rng(1))
    name, language = cases.LOSSES[kind].check
    of_loss = paired.of(language)
    known = accuracy if kind in ("mc_only", "lost") else 1.0
    contexts = len(of_loss.contexts)
    error = (loss / known / contexts) ** 0.5 + (2 * flips / contexts) ** 0.5
    assert measured(name, of_loss) == pytest.approx(loss, abs=4 * error)
    if kind == "language":
        assert measured(name, paired.of("l01")) == pytest.approx(0.0, abs=4 * error)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 1.0])
def test_contexts_correlate_as_requested(correlation):
    world = World(100_000, cluster=5, correlation=correlation, accuracy=0.5)
    paired = draw(world, harmless(world, 0.0, 0.0), np.random.default_rng(4))
    sums = np.bincount(paired.contexts, paired.base_said)
    # The variance of a beta-binomial count: n p (1 - p) (1 + (n - 1) correlation).
    assert sums.var() == pytest.approx(5 * 0.25 * (1 + 4 * correlation), rel=0.04)
