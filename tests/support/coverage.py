"""How often the 95 % intervals of the tables hold the truth: simulated runs, whose
truth is known.

Items of a context share a random effect; `alike` is its strength, from 0 to 1 (items
that are the same).
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
from scipy.stats import binomtest

from evaluator.metrics.intervals import Floats
from tests.support.interval_statistics import TOGETHER, Statistic

CONTEXTS, ITEMS, ACCURACIES, ALIKE = (
    (10, 50, 200),
    (1, 5),
    (0.05, 0.3, 0.5, 0.8, 0.95, 0.99),
    (0.0, 0.3, 1.0),
)
WANTED = 0.93  # of the nominal 95 %
_POPULATION = 400_000  # items that the truth is computed from, where it has no formula


@dataclass(frozen=True)
class Cell:
    contexts: int
    items: int
    accuracy: float
    alike: float


@dataclass(frozen=True)
class Coverage:
    """How often the intervals of a cell's runs held the truth."""

    statistic: str
    cell: Cell
    shown: int
    held: int
    empty: int  # intervals without width

    @property
    def share(self) -> float:
        return self.held / self.shown if self.shown else 1.0

    @property
    def at_most(self) -> float:
        """The upper end of the simulation's own 99 % interval: the coverage is
        surely below."""
        if not self.shown:
            return 1.0
        return float(binomtest(self.held, self.shown).proportion_ci(0.99, "exact").high)


def normals(
    rng: np.random.Generator, kinds: int, contexts: int, items: int, alike: float
) -> Floats:
    """kinds x items: standard normal numbers, correlated within an item and within a
    context."""

    def correlated(*shape: int) -> Floats:
        shared, own = (
            rng.standard_normal((1, *shape)),
            rng.standard_normal((kinds, *shape)),
        )
        return np.asarray(np.sqrt(TOGETHER) * shared + np.sqrt(1 - TOGETHER) * own)

    effects = np.sqrt(alike) * correlated(contexts)[:, :, None] + np.sqrt(
        1 - alike
    ) * correlated(contexts, items)
    return np.asarray(effects.reshape(kinds, -1))


@cache
def truth(statistic: Statistic, accuracy: float) -> float:
    """Of a large population; how alike a context's items are does not move it."""
    population = normals(
        np.random.default_rng(0), statistic.normals, _POPULATION, 1, 0.0
    )
    return statistic.value(
        np.arange(_POPULATION), *statistic.values(population, accuracy)
    )


def cover(statistic: Statistic, cell: Cell, samples: int) -> Coverage:
    """Draw runs of a cell, and count the intervals that hold the truth."""
    seed = [
        zlib.crc32(statistic.name.encode()),
        cell.contexts,
        cell.items,
        int(100 * cell.accuracy),
    ]
    rng = np.random.default_rng(seed)
    contexts, true = (
        np.repeat(np.arange(cell.contexts), cell.items),
        truth(statistic, cell.accuracy),
    )
    found: list[tuple[float | None, float | None]] = []
    for _ in range(samples):
        values = statistic.values(
            normals(rng, statistic.normals, cell.contexts, cell.items, cell.alike),
            cell.accuracy,
        )
        row = statistic.row(contexts, *values)
        # an undefined number has no interval
        if (value := row.get("x")) is not None and np.isfinite(value):
            found.append((row.get("x_low"), row.get("x_high")))
    ends = np.array(
        [each for each in found if each[0] is not None], dtype=np.float64
    ).reshape(-1, 2)
    # Sums are exact to about ten digits.
    held = (ends[:, 0] <= true + 1e-9) & (true - 1e-9 <= ends[:, 1])
    widths = ends[:, 1] - ends[:, 0]
    return Coverage(
        statistic.name, cell, len(ends), int(held.sum()), int((widths <= 0).sum())
    )


def cells() -> Iterator[Cell]:
    """All kinds of runs; one item a context is like itself."""
    for number, items, accuracy in product(CONTEXTS, ITEMS, ACCURACIES):
        for alike in ALIKE if items > 1 else (0.0,):
            yield Cell(number, items, accuracy, alike)
