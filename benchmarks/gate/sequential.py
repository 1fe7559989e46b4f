"""What looks at growing data cost, and how often they err: the rule of `screen:` on
made-up and on recorded runs.

    errors(runs=2000, seed=0)                  # runs whose truth makes one verdict
                                               wrong
    costs(runs=2000, seed=0)                   # runs whose truth is clear, beside the
                                               smallest fixed sample
    recorded(Path("runs/demo"), repeats=2000)  # a recorded run, redrawn; its own losses
                                               are the tolerances

The smallest fixed sample has one look and reaches the right verdict in 90 % of runs, at
the same error.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.gate import errors
from benchmarks.gate.errors import Kind, Plan, Rate, World
from evaluator.deciding.criteria import CRITERIA, Paired, paired_of
from evaluator.deciding.decision import Outcome, Replay, decide, replay, stopped
from evaluator.deciding.thresholds import Thresholds
from evaluator.report import read_inputs

ITEMS, FIRST = 5000, 100
_POWER = 0.9
_FIXED_RUNS = 1000  # at each size that is tried
# What must be judged beside a loss, so that a run without it would pass: something that
# is said.
_BESIDE: dict[Kind, Thresholds] = {
    **{kind: judged.alone for kind, judged in errors.JUDGED.items()},
    "lost": errors.alone(max_lost=2.0, max_mc_only=5.0),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Runs of one kind, and the verdict in question: a wrong one, or the right one."""

    what: str
    world: World
    plan: Plan
    verdict: Outcome
    thresholds: Thresholds = errors.DEFAULT

    def __str__(self) -> str:
        return f"{self.what}{self.world}"


_SINGLE = World(items=ITEMS)
_WORLDS = (
    _SINGLE,
    replace(_SINGLE, accuracy=0.5),
    World(items=ITEMS, cluster=5, correlation=0.3),
)


def wrong() -> Iterator[Case]:
    """Runs that must not pass, and runs that must not be blocked."""
    for kind in errors.KINDS:
        tolerance = errors.JUDGED[kind].tolerance
        for world in _WORLDS:
            world = replace(world, languages=3 if kind == "language" else 1)
            for flips in (0.0, 0.02):
                if plan := errors.planted(kind, world, tolerance, flips):
                    what = f"{kind} {100 * tolerance:g} % lost, {100 * flips:g} % flips"
                    yield Case(
                        what=what,
                        world=world,
                        plan=plan,
                        verdict="PASS",
                        thresholds=_BESIDE[kind],
                    )
    for world in _WORLDS:
        for languages in (1, 3):
            here = replace(world, languages=languages)
            what = "no loss, as many flips as tolerated"
            yield Case(
                what=what, world=here, plan=errors.at_edge(here), verdict="BLOCK"
            )


def clear() -> Iterator[Case]:
    """Runs whose right verdict is clear: no loss, or three times a tolerance."""
    for world in (
        *_WORLDS[::2],
        replace(_SINGLE, languages=3),
        World(items=ITEMS, languages=12),
    ):
        for flips in (0.0, 0.005, 0.01, 0.02):
            plan = errors.harmless(world, flips / world.accuracy, 0.0)
            yield Case(
                what=f"no loss, {100 * flips:g} % flips",
                world=world,
                plan=plan,
                verdict="PASS",
            )
        for kind in errors.KINDS:
            if kind == "language" and world.languages == 1:
                continue
            if large := errors.planted(
                kind, world, 3 * errors.JUDGED[kind].tolerance, 0.01
            ):
                what = (
                    f"{kind} {300 * errors.JUDGED[kind].tolerance:g} % lost, 1 % flips"
                )
                yield Case(what=what, world=world, plan=large, verdict="BLOCK")


def tried(case: Case, runs: int, seed: int | Sequence[int]) -> Replay:
    """The verdicts of screened runs, and their costs."""
    rng = np.random.default_rng(seed)
    found = [
        stopped(errors.draw(case.world, case.plan, rng), case.thresholds, FIRST, rng)
        for _ in range(runs)
    ]
    return Replay(
        tuple(outcome for outcome, _ in found), tuple(cost for _, cost in found)
    )


def rate(case: Case, runs: int, seed: int | Sequence[int]) -> Rate:
    """How many of the screened runs end with the verdict in question."""
    return Rate(tried(case, runs, seed).outcomes.count(case.verdict), runs)


def fixed(case: Case, seed: int) -> int | None:
    """The fewest items at which one look gives the verdict in 90 % of runs, to 3 %;
    None: more than the run has."""
    rng = np.random.default_rng(seed)

    def enough(items: int) -> bool:
        world, missed = replace(case.world, items=items), 0
        for _ in range(_FIXED_RUNS):
            missed += (
                decide(errors.draw(world, case.plan, rng), case.thresholds).outcome
                != case.verdict
            )
            if missed > (1 - _POWER) * _FIXED_RUNS:
                return False
        return True

    low, high = 10, 20
    while not enough(high):
        if high == ITEMS:
            return None
        low, high = high, min(2 * high, ITEMS)
    while high - low > max(1, 0.03 * high):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def recorded(
    run: Path, *, repeats: int, seed: int
) -> Iterator[tuple[str, str, float, int, Rate]]:
    """Checkpoint, criterion, its loss, items, and how often the redrawn run passes
    with that loss as the tolerance."""
    inputs = read_inputs(run)
    for comparison in inputs.comparisons().values():
        if comparison.reason is not None:
            continue
        paired = paired_of(inputs, comparison)
        for what, loss, thresholds in _own_losses(paired):
            found = replay(paired, thresholds, first=FIRST, repeats=repeats, seed=seed)
            passed = Rate(found.outcomes.count("PASS"), repeats)
            yield (
                comparison.subject.checkpoint,
                what,
                loss,
                len(paired.contexts),
                passed,
            )


def _own_losses(paired: Paired) -> Iterator[tuple[str, float, Thresholds]]:
    """Each loss that the records have, and thresholds with exactly that loss."""
    losses = {}
    for criterion in CRITERIA:
        evidence = (
            criterion.measure(paired, "left out").evidence
            if criterion.measure
            else None
        )
        losses[criterion.name] = evidence.value if evidence is not None else 0.0
    drop = max(losses["open_drop"], losses["choice_drop"])
    if drop > 0:
        yield "open_drop or choice_drop", drop, errors.alone(max_drop=100 * drop)
    if losses["mc_only"] > 0:
        yield (
            "mc_only",
            losses["mc_only"],
            errors.alone(max_mc_only=100 * losses["mc_only"]),
        )
    if losses["lost"] > 0:
        yield (
            "lost",
            losses["lost"],
            errors.alone(max_lost=100 * losses["lost"], max_mc_only=100.0),
        )
