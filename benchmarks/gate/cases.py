"""Kinds of runs, and the verdict that would be wrong: PASS at a tolerance, BLOCK
without a loss."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from benchmarks.gate.worlds import KINDS, Kind, Plan, World, draw, harmless, planted
from evaluator.deciding.decision import Outcome, decide
from evaluator.deciding.thresholds import Thresholds
from evaluator.metrics.inputs import ALL

SIZES, LANGUAGES = (50, 200, 1000, 5000), (1, 3, 12)
_ACCURACIES = (0.05, 0.5, 0.8, 0.95, 0.99)
# Cluster and correlation: contexts of one item; of five, from little to all in common.
_CONTEXTS = ((1, 0.0), (5, 0.0), (5, 0.3), (5, 1.0))


@dataclass(frozen=True)
class Loss:
    """How a loss is found: the check, its tolerance, and thresholds that judge as
    little else as possible."""

    check: tuple[str, str]
    tolerance: float
    thresholds: Thresholds


def alone(**bounds: float) -> Thresholds:
    """Thresholds that judge nothing else."""
    nothing = dict.fromkeys(("max_drop", "max_mc_only", "max_lost"))
    return Thresholds.model_validate({**nothing, "languages": False, **bounds})


_DEFAULT = Thresholds()
_BY_LANGUAGE = Thresholds(max_mc_only=None, max_lost=None)
LOSSES: dict[Kind, Loss] = {
    "open": Loss(("open_drop", ALL), 0.02, alone(max_drop=2.0)),
    "choice": Loss(("choice_drop", ALL), 0.02, alone(max_drop=2.0)),
    "language": Loss(("open_drop", "l00"), 0.05, _BY_LANGUAGE),
    "mc_only": Loss(("mc_only", ALL), 0.05, alone(max_mc_only=5.0)),
    # without a second criterion, a run in which all is lost would not be judged
    "lost": Loss(("lost", ALL), 0.02, alone(max_lost=2.0, max_mc_only=5.0)),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Runs of one kind, and the verdict that would be wrong."""

    what: str  # in words
    world: World
    plan: Plan
    verdict: Outcome
    thresholds: Thresholds = _DEFAULT
    # "within" of this check counts as PASS: no run passes more often
    check: tuple[str, str] | None = None

    def __str__(self) -> str:
        return f"{self.what}: {self.world}"

    def ends(self, rng: np.random.Generator) -> bool:
        """Whether a run ends with the verdict."""
        decision = decide(draw(self.world, self.plan, rng), self.thresholds)
        if self.check is None:
            return decision.outcome == self.verdict
        return any(
            (check.criterion.name, check.language) == self.check
            and check.state == "within"
            for check in decision.checks
        )


Worlds = Callable[[int], Iterator[World]]  # of so many languages


def worlds(languages: int) -> Iterator[World]:
    """The grid: contexts of one size; of unequal sizes; shared by all languages."""
    for items, context, accuracy in product(SIZES, _CONTEXTS, _ACCURACIES):
        yield World(items, languages, *context, accuracy)
    for items, correlation, accuracy in product(
        SIZES[1:], (0.1, 0.3, 1.0), (0.5, 0.95)
    ):
        world = World(items, languages, 5, correlation, accuracy)
        yield replace(world, sizes="skewed")
        if languages > 1:
            yield replace(world, shared=True)


def at_tolerance(some: Worlds, kinds: tuple[Kind, ...] = KINDS) -> Iterator[Case]:
    """Runs whose true loss is exactly the tolerance: losses alone, and with as much
    again lost and gained. To pass is wrong."""
    for kind in kinds:
        loss = LOSSES[kind]
        for languages in LANGUAGES[1:] if kind == "language" else (1,):
            for world, flips in product(some(languages), (0.0, 0.02)):
                flips = min(flips, (1 - world.accuracy) / 2)
                if plan := planted(kind, world, loss.tolerance, flips):
                    yield Case(
                        what=f"{kind} {loss.tolerance:.0%} lost, {flips:.1%} flips",
                        world=world,
                        plan=plan,
                        verdict="PASS",
                        thresholds=loss.thresholds,
                        check=loss.check,
                    )


def without_loss(some: Worlds) -> Iterator[Case]:
    """Runs without a loss of accuracy: each gained answer costs a known one, exactly
    as many as mc_only and lost allow. To block is wrong."""
    for languages in LANGUAGES:
        for world in some(languages):
            plan = harmless(
                world, LOSSES["mc_only"].tolerance, LOSSES["lost"].tolerance
            )
            what = "no loss, as many flips as tolerated"
            yield Case(what=what, world=world, plan=plan, verdict="BLOCK")
