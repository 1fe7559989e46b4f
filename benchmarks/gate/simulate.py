"""Made-up checkpoints whose true loss is known: what a base and a checkpoint did with each item.

    world = World(items=1000, cluster=5, correlation=0.3, accuracy=0.8)
    paired = draw(world, planted("open", world, loss=0.02, flips=0.01), np.random.default_rng(0))

The base either says and picks an item's answer, or does neither. What the checkpoint does is one of four ends. Items of
a context depend on each other: each takes its chance from an earlier item of the context or draws a new one (the urn of
D. Blackwell and J. MacQueen, Annals of Statistics 1, 1973). So the counts of a context are beta-binomial, and
Dirichlet-multinomial for the ends. Any two items of a context have the correlation that was requested.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from evaluator.metrics.gate import Paired
from evaluator.metrics.intervals import Floats

# Of contexts: all `cluster`; 1 to 2 * cluster - 1, each as often; one in ten 4 * cluster, the others 1.
Sizes = Literal["equal", "uneven", "skewed"]
Kind = Literal["open", "choice", "language", "mc_only", "lost"]
KINDS: tuple[Kind, ...] = ("open", "choice", "language", "mc_only", "lost")
# What a checkpoint does with an item, by the place of its probability: both, picks it only, says it only, neither.
_SAID, _PICKED = np.array([1.0, 0.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0, 0.0])
Chances = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class World:
    """The items and the base."""

    items: int
    languages: int = 1
    cluster: int = 1  # items of a context
    correlation: float = 0.0  # of two items of a context
    accuracy: float = 0.8  # of the base, open and choice
    sizes: Sizes = "equal"
    shared: bool = False  # a context has `cluster` items in every language


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The chances of what a checkpoint does: with answers that the base knows, and with the others. `language`: with
    those that the base knows in the first language, where it differs."""

    known: Chances
    unknown: Chances = (0.0, 0.0, 0.0, 1.0)
    language: Chances | None = None


def planted(kind: Kind, world: World, loss: float, flips: float = 0.0) -> Plan | None:
    """A checkpoint whose true loss is `loss`: of all items, or for mc_only and lost of the known answers.

    The share `flips` of all items is gained. Of a kind in which gains count, as much is lost beside the loss. None
    where the base leaves too little room.
    """
    known, unknown = world.accuracy, 1 - world.accuracy
    lost = loss if kind in ("mc_only", "lost") else (loss + flips) / known
    gained = flips / unknown if unknown else 0.0
    if lost > 1 + 1e-12 or gained > 1 or (flips and not unknown):
        return None
    kept = max(0.0, 1 - lost)
    if kind == "choice":
        return Plan(known=(kept, 0.0, lost, 0.0), unknown=(0.0, gained, 0.0, 1 - gained))
    if kind == "lost":
        return Plan(known=(kept, 0.0, 0.0, lost), unknown=(gained, 0.0, 0.0, 1 - gained))
    unknowns = (0.0, 0.0, gained, 1 - gained)
    if kind == "language":
        usual = flips / known
        return Plan(known=(1 - usual, usual, 0.0, 0.0), unknown=unknowns, language=(kept, lost, 0.0, 0.0))
    return Plan(known=(kept, lost, 0.0, 0.0), unknown=unknowns)


def harmless(world: World, mc_only: float, lost: float) -> Plan:
    """A checkpoint without a loss of accuracy: the shares `mc_only` and `lost` of the known answers go, and as many
    others come. Less goes where the base leaves less room."""
    odds = world.accuracy / (1 - world.accuracy)
    scale = min(1.0, 1 / (odds * (mc_only + lost))) if mc_only + lost else 1.0
    mc_only, lost = mc_only * scale, lost * scale
    gains = (odds * lost, 0.0, odds * mc_only)
    return Plan(known=(1 - mc_only - lost, mc_only, 0.0, lost), unknown=(*gains, max(0.0, 1 - sum(gains))))


def draw(world: World, plan: Plan, rng: np.random.Generator) -> Paired:
    """One run of the checkpoint."""
    contexts, languages = _places(world, rng)
    size = int(np.bincount(contexts).max())
    within = np.arange(len(contexts)) - np.searchsorted(contexts, contexts)
    right, change, gain = (
        _correlated((int(contexts[-1]) + 1, size), world.correlation, rng)[contexts, within] for _ in range(3)
    )
    knows = right < world.accuracy
    lost = _end(change, plan.known)
    if plan.language is not None:
        lost = np.where(languages == 0, _end(change, plan.language), lost)
    end = np.where(knows, lost, _end(gain, plan.unknown))
    base, every = knows.astype(np.float64), np.ones(len(contexts), dtype=bool)
    return Paired(
        languages=_names(world.languages)[languages],
        contexts=contexts,
        base_said=base,
        said=_SAID[end],
        base_picked=base,
        picked=_PICKED[end],
        open=every,
        choice=every,
    )


def name_of(language: int) -> str:
    return f"l{language:02}"


def _names(count: int) -> npt.NDArray[np.object_]:
    return np.array([name_of(number) for number in range(count)], dtype=object)


def _places(world: World, rng: np.random.Generator) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Each item's context, in order, and its language."""
    if world.sizes == "equal":
        contexts = np.arange(world.items) // (world.cluster * (world.languages if world.shared else 1))
    else:
        uneven = rng.integers(1, 2 * world.cluster, size=world.items)
        skewed = np.where(rng.random(world.items) < 0.1, 4 * world.cluster, 1)
        sizes = uneven if world.sizes == "uneven" else skewed
        contexts = np.repeat(np.arange(len(sizes)), sizes)[: world.items]
    return contexts, (np.arange(world.items) if world.shared else contexts) % world.languages


def _correlated(shape: tuple[int, int], correlation: float, rng: np.random.Generator) -> Floats:
    """Uniform numbers, a row a context. An item takes an earlier one's number with the chance that gives any two of a
    row the correlation."""
    numbers = rng.random(shape)
    if correlation:
        rows = np.arange(shape[0])
        for place in range(1, shape[1]):
            taken = rng.random(shape[0]) < place * correlation / (place * correlation + 1 - correlation)
            earlier = numbers[rows, rng.integers(place, size=shape[0])]
            numbers[:, place] = np.where(taken, earlier, numbers[:, place])
    return numbers


def _end(numbers: Floats, chances: Chances) -> npt.NDArray[np.intp]:
    return np.searchsorted(np.cumsum(chances[:-1]), numbers, side="right")
