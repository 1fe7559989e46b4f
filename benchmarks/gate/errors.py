"""How often the gate errs: a PASS where the true loss is exactly a tolerance, a BLOCK
where nothing is lost.

    cells = at_tolerance(KINDS)
    worst(cells, rate, runs=400, again=10_000, seed=0)

The rate of a loss's check bounds the rate of every run's false PASS. A BLOCK is the
whole run's, by any of its checks. Of many cells the worst is bad by chance too. So the
worst cells are drawn again, and only these rates are reported.

Made-up checkpoints with a known loss: the outcome of a base and a checkpoint at each
item.

    world = World(items=1000, cluster=5, correlation=0.3, accuracy=0.8) paired =
    draw(world, planted("open", world, loss=0.02, flips=0.01), np.random.default_rng(0))

Items of a context depend on each other: each takes its chance from an earlier item of
the context or draws a new one (the urn of D. Blackwell and J. MacQueen, Annals of
Statistics 1, 1973). So the counts of a context are beta-binomial.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from evaluator.deciding.criteria import Paired
from evaluator.deciding.decision import decide
from evaluator.deciding.thresholds import Thresholds
from evaluator.metrics.inputs import ALL
from evaluator.metrics.intervals import Floats, Mean

# Of contexts: all `cluster`; 1 to 2 * cluster - 1, each as often; one in ten 4 *
# cluster, the others 1.
Sizes = Literal["equal", "uneven", "skewed"]
Kind = Literal["open", "choice", "language", "mc_only", "lost"]
KINDS: tuple[Kind, ...] = ("open", "choice", "language", "mc_only", "lost")
# Outcomes of an item, in the order of their probabilities: both, picks it only, says it
# only, neither.
_SAID, _PICKED = np.array([1.0, 0.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0, 0.0])
Chances = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class World:
    items: int
    languages: int = 1
    cluster: int = 1  # items of a context
    correlation: float = 0.0  # of two items of a context
    accuracy: float = 0.8  # of the base, open and choice
    sizes: Sizes = "equal"
    shared: bool = False  # a context has `cluster` items in every language

    def __str__(self) -> str:
        """After what it is of: `, 3 languages, 5 a context, correlation 0.3, base 80
        %`."""
        tongues = f", {self.languages} languages" if self.languages > 1 else ""
        most = {
            "equal": self.cluster,
            "uneven": 2 * self.cluster - 1,
            "skewed": 4 * self.cluster,
        }[self.sizes]
        least = {"equal": "", "uneven": "1 to ", "skewed": "1 or "}[self.sizes]
        apart = " in every language" if self.shared else ""
        contexts = (
            f", {least}{most} a context{apart}, correlation {self.correlation:g}"
            if self.cluster > 1
            else ""
        )
        return f"{tongues}{contexts}, base {100 * self.accuracy:g} %"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The chances of a checkpoint's outcomes: with answers that the base knows, and
    with the others. `language`: with those that the base knows in the first
    language, where it differs."""

    known: Chances
    unknown: Chances = (0.0, 0.0, 0.0, 1.0)
    language: Chances | None = None


def planted(kind: Kind, world: World, loss: float, flips: float = 0.0) -> Plan | None:
    """A checkpoint whose true loss is `loss`: a share of all items, or of the known
    answers for mc_only and lost.

    The share `flips` of all items is gained. Of a kind in which gains count, as much
    is lost beside the loss. None where the base leaves too little room."""
    known, unknown = world.accuracy, 1 - world.accuracy
    lost = loss if kind in ("mc_only", "lost") else (loss + flips) / known
    gained = flips / unknown if unknown else 0.0
    if lost > 1 + 1e-12 or gained > 1 or (flips and not unknown):
        return None
    kept = max(0.0, 1 - lost)
    if kind == "choice":
        return Plan(
            known=(kept, 0.0, lost, 0.0), unknown=(0.0, gained, 0.0, 1 - gained)
        )
    if kind == "lost":
        return Plan(
            known=(kept, 0.0, 0.0, lost), unknown=(gained, 0.0, 0.0, 1 - gained)
        )
    unknowns = (0.0, 0.0, gained, 1 - gained)
    if kind == "language":
        usual = flips / known
        return Plan(
            known=(1 - usual, usual, 0.0, 0.0),
            unknown=unknowns,
            language=(kept, lost, 0.0, 0.0),
        )
    return Plan(known=(kept, lost, 0.0, 0.0), unknown=unknowns)


def harmless(world: World, mc_only: float, lost: float) -> Plan:
    """A checkpoint without a loss of accuracy: the shares `mc_only` and `lost` of
    the known answers go, and as many others come. Less goes where the base leaves
    less room."""
    odds = world.accuracy / (1 - world.accuracy)
    scale = min(1.0, 1 / (odds * (mc_only + lost))) if mc_only + lost else 1.0
    mc_only, lost = mc_only * scale, lost * scale
    gains = (odds * lost, 0.0, odds * mc_only)
    return Plan(
        known=(1 - mc_only - lost, mc_only, 0.0, lost),
        unknown=(*gains, max(0.0, 1 - sum(gains))),
    )


def draw(world: World, plan: Plan, rng: np.random.Generator) -> Paired:
    contexts, languages = _places(world, rng)
    size = int(np.bincount(contexts).max())
    within = np.arange(len(contexts)) - np.searchsorted(contexts, contexts)
    right, change, gain = (
        _correlated((int(contexts[-1]) + 1, size), world.correlation, rng)[
            contexts, within
        ]
        for _ in range(3)
    )
    knows = right < world.accuracy
    lost = _end(change, plan.known)
    if plan.language is not None:
        lost = np.where(languages == 0, _end(change, plan.language), lost)
    end = np.where(knows, lost, _end(gain, plan.unknown))
    base, every = knows.astype(np.float64), np.ones(len(contexts), dtype=bool)
    return Paired(
        languages=np.array(
            [f"l{number:02}" for number in range(world.languages)], dtype=object
        )[languages],
        contexts=contexts,
        base_said=base,
        said=_SAID[end],
        base_picked=base,
        picked=_PICKED[end],
        open=every,
        choice=every,
    )


def _places(
    world: World, rng: np.random.Generator
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Each item's context, in order, and its language."""
    if world.sizes == "equal":
        contexts = np.arange(world.items) // (
            world.cluster * (world.languages if world.shared else 1)
        )
    else:
        uneven = rng.integers(1, 2 * world.cluster, size=world.items)
        skewed = np.where(rng.random(world.items) < 0.1, 4 * world.cluster, 1)
        sizes = uneven if world.sizes == "uneven" else skewed
        contexts = np.repeat(np.arange(len(sizes)), sizes)[: world.items]
    return (
        contexts,
        (np.arange(world.items) if world.shared else contexts) % world.languages,
    )


def _correlated(
    shape: tuple[int, int], correlation: float, rng: np.random.Generator
) -> Floats:
    """Uniform numbers, a row a context. An item takes an earlier one's number with
    the chance that gives any two of a row the correlation."""
    numbers = rng.random(shape)
    if correlation:
        rows = np.arange(shape[0])
        for place in range(1, shape[1]):
            taken = rng.random(shape[0]) < place * correlation / (
                place * correlation + 1 - correlation
            )
            earlier = numbers[rows, rng.integers(place, size=shape[0])]
            numbers[:, place] = np.where(taken, earlier, numbers[:, place])
    return numbers


def _end(numbers: Floats, chances: Chances) -> npt.NDArray[np.intp]:
    return np.searchsorted(np.cumsum(chances[:-1]), numbers, side="right")


SIZES, LANGUAGES, ACCURACIES = (
    (50, 200, 1000, 5000),
    (1, 3, 12),
    (0.05, 0.5, 0.8, 0.95, 0.99),
)
DEFAULT = Thresholds()
_Of = TypeVar("_Of")
_SURE = 0.01  # the simulation's own intervals have 99 %


@dataclass(frozen=True)
class Judged:
    """How a loss is found: the check, its tolerance, and thresholds that judge as
    little else as possible."""

    check: tuple[str, str]
    tolerance: float
    alone: Thresholds


def alone(**bounds: float) -> Thresholds:
    """Thresholds that judge nothing else."""
    nothing = dict.fromkeys(("max_drop", "max_mc_only", "max_lost"))
    return Thresholds.model_validate({**nothing, "languages": False, **bounds})


_DROP = alone(max_drop=2.0)
JUDGED: dict[Kind, Judged] = {
    "open": Judged(("open_drop", ALL), 0.02, _DROP),
    "choice": Judged(("choice_drop", ALL), 0.02, _DROP),
    "language": Judged(
        ("open_drop", "l00"), 0.05, Thresholds(max_mc_only=None, max_lost=None)
    ),
    "mc_only": Judged(("mc_only", ALL), 0.05, alone(max_mc_only=5.0)),
    "lost": Judged(("lost", ALL), 0.02, alone(max_lost=2.0)),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One kind of run: its items, what the checkpoint truly lost, and what would be
    an error."""

    world: World
    plan: Plan
    what: str  # in words, for a table
    kind: Kind | None = None  # None: nothing is lost

    def errs(self, paired: Paired) -> bool:
        """Whether the gate is wrong about this run."""
        if self.kind is None:
            return decide(paired, DEFAULT).outcome == "BLOCK"
        judged = JUDGED[self.kind]
        return any(
            (each.criterion.name, each.language) == judged.check
            and each.state == "within"
            for each in decide(paired, judged.alone).checks
        )

    def __str__(self) -> str:
        return f"{self.what}: {self.world.items:,} items{self.world}"


@dataclass(frozen=True)
class Rate:
    count: int
    runs: int

    @property
    def share(self) -> float:
        return self.count / self.runs

    @property
    def ends(self) -> tuple[float, float]:
        mean = Mean(
            (np.arange(self.runs) < self.count).astype(np.float64), np.arange(self.runs)
        )
        return mean.lower(_SURE / 2), mean.upper(_SURE / 2)

    def __str__(self) -> str:
        low, high = self.ends
        return f"{100 * self.share:.2f} % ({100 * low:.2f} to {100 * high:.2f})"


def worlds(languages: Sequence[int] = (1,)) -> Iterator[World]:
    """Contexts of one item; of five, from little to all in common; of unequal sizes;
    shared by all languages."""
    contexts = ((1, 0.0), (5, 0.0), (5, 0.3), (5, 1.0))
    for items, count, (cluster, correlation), accuracy in product(
        SIZES, languages, contexts, ACCURACIES
    ):
        yield World(
            items=items,
            languages=count,
            cluster=cluster,
            correlation=correlation,
            accuracy=accuracy,
        )
    for items, count, correlation, accuracy in product(
        SIZES[1:], languages, (0.1, 0.3, 1.0), (0.5, 0.95)
    ):
        world = World(
            items=items,
            languages=count,
            cluster=5,
            correlation=correlation,
            accuracy=accuracy,
        )
        yield from (replace(world, sizes="uneven"), replace(world, sizes="skewed"))
        if count > 1:
            yield replace(world, shared=True)


def at_tolerance(kinds: Sequence[Kind] = KINDS) -> list[Cell]:
    """Runs whose true loss is exactly the tolerance: losses alone, and with as much
    again lost and gained."""
    found = []
    for kind in kinds:
        for world, flips in product(
            worlds(LANGUAGES[1:] if kind == "language" else (1,)), (0.0, 0.02)
        ):
            plan = planted(
                kind,
                world,
                JUDGED[kind].tolerance,
                min(flips, (1 - world.accuracy) / 2),
            )
            if plan is not None:
                what = (
                    f"{kind} {100 * JUDGED[kind].tolerance:g} % lost, {100 * flips:g} %"
                    " flips"
                )
                found.append(Cell(world=world, plan=plan, what=what, kind=kind))
    return found


def without_loss() -> list[Cell]:
    """Runs without a loss of accuracy, and with all the flips that the tolerances
    allow."""
    return [
        Cell(world=world, plan=at_edge(world), what="as many flips as tolerated")
        for world in worlds(LANGUAGES)
    ]


def at_edge(world: World) -> Plan:
    """Each gained answer costs a known one, exactly as many as mc_only and lost
    allow."""
    return harmless(world, JUDGED["mc_only"].tolerance, JUDGED["lost"].tolerance)


def rate(cell: Cell, runs: int, seed: Sequence[int]) -> Rate:
    """How often the gate errs in this cell."""
    rng = np.random.default_rng(seed)
    return Rate(
        sum(cell.errs(draw(cell.world, cell.plan, rng)) for _ in range(runs)), runs
    )


def worst(
    cells: Iterable[_Of],
    rate: Callable[[_Of, int, Sequence[int]], Rate],
    *,
    runs: int,
    again: int,
    seed: int,
    kept: int = 3,
) -> list[tuple[_Of, Rate]]:
    """The cells in which the gate errs most, of `runs` runs each. Their rates are
    those of `again` new runs."""
    found = [
        (rate(cell, runs, (seed, number)).count, number, cell)
        for number, cell in enumerate(cells)
    ]
    found.sort(key=lambda each: (-each[0], each[1]))
    rates = [
        (cell, rate(cell, again, (seed + 1, number)))
        for _, number, cell in found[:kept]
    ]
    return sorted(rates, key=lambda each: -each[1].share)


def outcomes(
    world: World, plan: Plan, runs: int, seed: Sequence[int]
) -> dict[str, float]:
    """The share of runs that pass, and of those that are blocked, by the default
    thresholds."""
    rng = np.random.default_rng(seed)
    found = Counter(
        decide(draw(world, plan, rng), DEFAULT).outcome for _ in range(runs)
    )
    return {verdict: found[verdict] / runs for verdict in ("PASS", "BLOCK")}
