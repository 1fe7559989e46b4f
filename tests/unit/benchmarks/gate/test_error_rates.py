"""Error rates of the gate: a bound is broken where a simulation's 99 % interval is
beyond."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gate import errors, sequential
from benchmarks.gate.errors import (
    JUDGED,
    KINDS,
    Cell,
    World,
    draw,
    harmless,
    planted,
    rate,
    worst,
)
from evaluator.deciding.criteria import CRITERIA
from evaluator.metrics.sequential_looks import BLOCK_LEVEL, PASS_LEVEL

_CORNERS = (
    World(items=200, accuracy=0.95),  # a pass needs every item
    World(items=1000, accuracy=0.99),
    World(items=1000, cluster=5, correlation=1.0),  # contexts are lost as a whole
    # what is lost may lie in contexts not yet seen
    World(items=1000, cluster=5, correlation=1.0, sizes="skewed"),
)


def above(found, bound, what):
    """What breaks the bound, in words; empty where nothing does."""
    return (
        [f"{found} of runs, at most {100 * bound:g} % may: {what}"]
        if found.ends[0] > bound
        else []
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_at_the_tolerance_seldom_passes(kind):
    passed = 0
    for number, world in enumerate(_CORNERS):
        here = replace(world, languages=3 if kind == "language" else 1)
        plan = planted(kind, here, JUDGED[kind].tolerance)
        found = rate(
            Cell(world=here, plan=plan, what=kind, kind=kind), 300, (1, number)
        )
        assert not above(found, PASS_LEVEL, here)
        passed += found.count
    assert passed > 0  # the planted loss is at the tolerance, and not far beyond it


def test_without_a_loss_a_block_is_rare():
    for number, world in enumerate(_CORNERS):
        here = replace(world, languages=3)
        cell = Cell(
            world=here,
            plan=harmless(here, 0.05, 0.02),
            what="as many flips as tolerated",
        )
        assert not above(rate(cell, 150, (2, number)), BLOCK_LEVEL, here)


def test_a_large_run_decides():
    world = World(items=5000, languages=3, cluster=5, correlation=0.1)
    assert errors.outcomes(world, harmless(world, 0.01, 0.0), 30, (3,))["PASS"] >= 0.9
    for kind in KINDS:
        plan = planted(kind, world, 3 * JUDGED[kind].tolerance, 0.01)
        assert errors.outcomes(world, plan, 30, (4,))["BLOCK"] >= 0.9


def test_looks_at_growing_data_err_no_more_often():
    for number, case in enumerate([*sequential.wrong()][::4]):
        bound = PASS_LEVEL if case.verdict == "PASS" else BLOCK_LEVEL
        assert not above(
            sequential.rate(
                replace(case, world=replace(case.world, items=1000)), 40, number
            ),
            bound,
            case,
        )


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_no_cell_of_the_grid_passes_a_loss_too_often(kind):
    for cell, found in worst(
        errors.at_tolerance((kind,)), rate, runs=200, again=4000, seed=7, kept=5
    ):
        assert not above(found, PASS_LEVEL, cell)


@pytest.mark.long
def test_no_cell_of_the_grid_is_blocked_without_a_loss():
    for cell, found in worst(
        errors.without_loss(), rate, runs=200, again=4000, seed=8, kept=5
    ):
        assert not above(found, BLOCK_LEVEL, cell)


@pytest.mark.long
def test_no_screened_run_errs_too_often():
    for verdict, bound in (("PASS", PASS_LEVEL), ("BLOCK", BLOCK_LEVEL)):
        cases = [case for case in sequential.wrong() if case.verdict == verdict]
        for case, found in worst(cases, sequential.rate, runs=400, again=4000, seed=9):
            assert not above(found, bound, case)


@pytest.mark.long
def test_where_the_truth_is_clear_looks_cost_no_more_than_a_fixed_sample():
    for case in sequential.clear():
        found, fixed = sequential.tried(case, 400, 9), sequential.fixed(case, 9)
        assert found.share(case.verdict) >= 0.9
        assert fixed is None or found.median <= fixed or "0 % flips" in case.what, case


def measured(name, paired):
    (criterion,) = (each for each in CRITERIA if each.name == name)
    return criterion.measure(paired, "left out").evidence.value


@pytest.mark.parametrize("flips", [0.0, 0.01])
@pytest.mark.parametrize(
    ("accuracy", "loss"), [(0.05, 0.02), (0.8, 0.02), (0.99, 0.05)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_true_loss_is_the_one_that_was_planted(kind, accuracy, loss, flips):
    world = World(items=200_000, languages=4, accuracy=accuracy)
    plan = planted(kind, world, loss, flips)
    assert plan is not None
    paired = draw(world, plan, np.random.default_rng(1))
    name = {"open": "open_drop", "choice": "choice_drop", "language": "open_drop"}.get(
        kind, kind
    )
    known = accuracy if kind in ("mc_only", "lost") else 1.0
    where = paired.of("l00") if kind == "language" else paired
    error = (loss / known / len(where.contexts)) ** 0.5 + (
        2 * flips / len(where.contexts)
    ) ** 0.5
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
