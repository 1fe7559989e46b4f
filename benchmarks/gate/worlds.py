"""Made-up checkpoints with a known loss: the outcome of a base and a checkpoint at each
item.

    world = World(items=1000, cluster=5, correlation=0.3, accuracy=0.8)
    plan = planted("open", world, loss=0.02, flips=0.01)
    paired = draw(world, plan, np.random.default_rng(0))

Items of a context depend on each other: each takes its chance from an earlier item of
the context or draws a new one (the urn of D. Blackwell and J. MacQueen, Annals of
Statistics 1, 1973). So the counts of a context are beta-binomial.
"""

from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from evaluator.deciding.criteria import Paired
from evaluator.metrics.intervals import Floats

# Of contexts: all `cluster`; one in ten 4 * cluster, the others 1.
Sizes = Literal["equal", "skewed"]
Kind = Literal["open", "choice", "language", "mc_only", "lost"]
KINDS: tuple[Kind, ...] = ("open", "choice", "language", "mc_only", "lost")
# Outcomes of an item, in the order of their probabilities: both, picks it only, says it
# only, neither.
_SAID, _PICKED = np.array([1.0, 0.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0, 0.0])
Chances = tuple[float, float, float, float]


@dataclass(frozen=True)
class World:
    items: int
    languages: int = 1
    cluster: int = 1  # items of a context
    correlation: float = 0.0  # of two items of a context
    accuracy: float = 0.8  # of the base, open and choice
    sizes: Sizes = "equal"
    shared: bool = False  # a context has `cluster` items in every language

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items())


@dataclass(frozen=True)
class Plan:
    """The chances of a checkpoint's outcomes: with answers that the base knows, and
    with the others. `language`: with those that the base knows in the first
    language, where it differs."""

    known: Chances
    unknown: Chances
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
    kept, never = max(0.0, 1 - lost), 1 - gained
    open_lost, open_gained = (kept, lost, 0.0, 0.0), (0.0, 0.0, gained, never)
    if kind == "choice":
        return Plan((kept, 0.0, lost, 0.0), (0.0, gained, 0.0, never))
    if kind == "lost":
        return Plan((kept, 0.0, 0.0, lost), (gained, 0.0, 0.0, never))
    if kind == "language":
        usual = flips / known
        return Plan((1 - usual, usual, 0.0, 0.0), open_gained, language=open_lost)
    return Plan(open_lost, open_gained)


def harmless(world: World, mc_only: float, lost: float) -> Plan:
    """A checkpoint without a loss of accuracy: the shares `mc_only` and `lost` of
    the known answers go, and as many others come. Less goes where the base leaves
    less room."""
    odds = world.accuracy / (1 - world.accuracy)
    scale = min(1.0, 1 / (odds * (mc_only + lost))) if mc_only + lost else 1.0
    mc_only, lost = mc_only * scale, lost * scale
    gains = (odds * lost, 0.0, odds * mc_only)
    never = max(0.0, 1 - sum(gains))
    return Plan((1 - mc_only - lost, mc_only, 0.0, lost), (*gains, never))


def draw(world: World, plan: Plan, rng: np.random.Generator) -> Paired:
    contexts, languages = _places(world, rng)
    size = int(np.bincount(contexts).max())
    within = np.arange(len(contexts)) - np.searchsorted(contexts, contexts)
    shape = (int(contexts[-1]) + 1, size)

    def numbers() -> Floats:
        rows: Floats = _correlated(shape, world.correlation, rng)[contexts, within]
        return rows

    right, change, gain = numbers(), numbers(), numbers()
    knows = right < world.accuracy
    lost = _end(change, plan.known)
    if plan.language is not None:
        lost = np.where(languages == 0, _end(change, plan.language), lost)
    end = np.where(knows, lost, _end(gain, plan.unknown))
    base, every = knows.astype(np.float64), np.ones(len(contexts), dtype=bool)
    names = [f"l{number:02}" for number in range(world.languages)]
    return Paired(
        languages=np.array(names, dtype=object)[languages],
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
    items = np.arange(world.items)
    if world.shared:
        return items // (world.cluster * world.languages), items % world.languages
    contexts = items // world.cluster
    if world.sizes == "skewed":
        sizes = np.where(rng.random(world.items) < 0.1, 4 * world.cluster, 1)
        contexts = np.repeat(items, sizes)[: world.items]
    return contexts, contexts % world.languages


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
