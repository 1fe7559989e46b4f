"""The gate's error rates, on runs whose true loss is known: the whole grid (long), and its hardest corners.

A bound is broken where the simulation's own exact 99 % interval lies above it.
"""

from dataclasses import replace

import pytest

from benchmarks.gate import sequential
from benchmarks.gate.errors import (
    JUDGED,
    KINDS,
    Cell,
    Rate,
    World,
    at_tolerance,
    harmless,
    outcomes,
    planted,
    rate,
    without_loss,
    worst,
)
from evaluator.metrics.looks import BLOCK_LEVEL, PASS_LEVEL

_CORNERS = (
    World(items=200, accuracy=0.95),  # a pass needs every item
    World(items=1000, accuracy=0.99),
    World(items=1000, cluster=5, correlation=1.0),  # contexts are lost as a whole
    World(items=1000, cluster=5, correlation=1.0, sizes="skewed"),  # what is lost may lie in contexts not yet seen
)


def above(found: Rate, bound: float, what: object) -> list[str]:
    """What breaks the bound, in words; empty where nothing does."""
    return [f"{found} of runs, at most {100 * bound:g} % may: {what}"] if found.ends[0] > bound else []


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_at_the_tolerance_seldom_passes(kind):
    passed = 0
    for number, world in enumerate(_CORNERS):
        here = replace(world, languages=3 if kind == "language" else 1)
        plan = planted(kind, here, JUDGED[kind].tolerance)
        found = rate(Cell(world=here, plan=plan, what=kind, kind=kind), 300, (1, number))
        assert not above(found, PASS_LEVEL, here)
        passed += found.count
    assert passed > 0  # the planted loss is at the tolerance, and not far beyond it


def test_without_a_loss_a_block_is_rare():
    for number, world in enumerate(_CORNERS):
        here = replace(world, languages=3)
        cell = Cell(world=here, plan=harmless(here, 0.05, 0.02), what="as many flips as tolerated")
        assert not above(rate(cell, 150, (2, number)), BLOCK_LEVEL, here)


def test_a_large_run_decides():
    world = World(items=5000, languages=3, cluster=5, correlation=0.1)
    assert outcomes(world, harmless(world, 0.01, 0.0), 30, (3,))["PASS"] >= 0.9
    for kind in KINDS:
        plan = planted(kind, world, 3 * JUDGED[kind].tolerance, 0.01)
        assert outcomes(world, plan, 30, (4,))["BLOCK"] >= 0.9


def test_looks_at_growing_data_err_no_more_often():
    for number, case in enumerate([*sequential.wrong()][::4]):
        bound = PASS_LEVEL if case.verdict == "PASS" else BLOCK_LEVEL
        assert not above(sequential.rate(replace(case, world=replace(case.world, items=1000)), 40, number), bound, case)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_no_cell_of_the_grid_passes_a_loss_too_often(kind):
    for cell, found in worst(at_tolerance((kind,)), rate, runs=200, again=4000, seed=7, kept=5):
        assert not above(found, PASS_LEVEL, cell)


@pytest.mark.long
def test_no_cell_of_the_grid_is_blocked_without_a_loss():
    for cell, found in worst(without_loss(), rate, runs=200, again=4000, seed=8, kept=5):
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
