"""The interval of a statistic other than a mean, such as a ratio: random weights of
contexts.

    intervals(ratio, [after, before], contexts, kinds=[(0, 1), (1, 0), ...])

Every context gets a random weight (Dirichlet, each parameter 1), and the statistic
of the weighted means is computed: the Bayesian bootstrap (D. B. Rubin, Annals of
Statistics 9, 1981). Alone it is too narrow for few contexts, because it ignores
values that the items do not show. So one more context joins the others at each end,
as in Gaffke's bound of a mean (`evaluator.metrics.intervals`). All its items are of
the kind that moves the statistic furthest.

Weights depend only on the place of a context among the items: equal values give
equal intervals, and checkpoints on the same items share them.
`tests/support/coverage.py` measures the coverage."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from evaluator.metrics.intervals import ALPHA, FEWEST, Floats, Interval, too_few
from evaluator.metrics.items import Items
from evaluator.metrics.measures import Grouped, as_floats, contexts_of

DRAWS = 2000
NO_END = "the items do not bound the interval"
_OUTSIDE = int(ALPHA / 2 * DRAWS)  # draws beyond each end
_ONE_THREAD = 2**18  # multiplications: up to this size OpenBLAS starts no threads
_LEAST_COLUMNS = 64
_BLOCK = 1024  # contexts whose weights are drawn at once

# of means, each a number or an array; elementwise; NaN if undefined
Statistic = Callable[..., Floats]
Kinds = Sequence[Sequence[float]]  # the values of an item of each kind


def intervals(
    statistic: Statistic, values: Sequence[Floats], items: Grouped, kinds: Kinds
) -> list[Interval | str]:
    """The 95 % interval of `statistic` of the means of `values`, or the reason why
    there is none.

    `values`: each has one number an item, or several such rows for as many intervals.
    `kinds`: the extreme values that an item may have.
    """
    rows = [np.atleast_2d(each) for each in values]
    place = pd.factorize(contexts_of(items))[0]
    contexts = int(place.max(initial=-1)) + 1
    if contexts < FEWEST:
        return [too_few(contexts)] * max(map(len, rows))
    weights = _weights(1 + contexts // _BLOCK)
    drawn = _drawn_sums(
        [*np.concatenate(rows), np.ones(len(place))], place, weights[1 : contexts + 1]
    )
    *sums, total = np.split(drawn, np.cumsum([len(row) for row in rows]))
    # One more context of usual size, all of whose items are of one kind.
    size = len(place) / contexts
    kinds_VK = np.array(kinds, dtype=np.float64).T
    means = []
    for row, kind_K in zip(rows, kinds_VK, strict=True):
        row_total = row.sum(axis=1, keepdims=True)
        means.append((row_total + size * kind_K) / (len(place) + size))
    moved_PK = statistic(*means)
    more = size * weights[0].astype(np.float64)
    ends = []
    for sign, nth in ((-1.0, _OUTSIDE - 1), (1.0, DRAWS - _OUTSIDE)):
        furthest = np.argmax(np.nan_to_num(sign * moved_PK, nan=-np.inf), axis=1)
        means = []
        for row_sum, kind_P in zip(sums, kinds_VK[:, furthest], strict=True):
            means.append((row_sum + kind_P[:, None] * more) / (total + more))
        values_PD = statistic(*means)
        ordered = np.partition(np.nan_to_num(values_PD, nan=sign * np.inf), nth)
        ends.append(ordered[:, nth].tolist())
    return [
        (low, high) if math.isfinite(low) and math.isfinite(high) else NO_END
        for low, high in zip(*ends, strict=True)
    ]


def _drawn_sums(
    rows: Sequence[Floats], place: npt.NDArray[np.intp], weights: npt.NDArray[Any]
) -> Floats:
    """rows x draws: each row's sum over contexts with each draw's weights.

    In blocks that one thread computes: several threads start more slowly, and wait for
    each other under load.
    """
    sums = np.stack([np.bincount(place, row) for row in rows]).astype(np.float32)
    wide = max(_LEAST_COLUMNS, _ONE_THREAD // sums.size)
    high = _ONE_THREAD // (wide * sums.shape[1])
    if not high:
        high, wide = len(sums), DRAWS
    starts = range(0, DRAWS, wide)
    blocks = [
        [sums[top : top + high] @ weights[:, start : start + wide] for start in starts]
        for top in range(0, len(sums), high)
    ]
    return as_floats(np.block(blocks))


def language_intervals(
    statistic: Statistic, values: Sequence[Floats], items: Items, kinds: Kinds
) -> list[Interval | str]:
    """The intervals of the unweighted mean over languages of a statistic."""
    codes, names = pd.factorize(items["language"])
    parts: list[Floats] = []
    kinds_of_parts: list[list[float]] = [[] for _ in kinds]
    for code in range(len(names)):
        here = (codes == code).astype(np.float64)
        parts += [each * here for each in (*values, np.ones(len(codes)))]
        for kind, kind_of_parts in zip(kinds, kinds_of_parts, strict=True):
            kind_of_parts += [float(here.mean()) * value for value in (*kind, 1.0)]
    width = len(values) + 1

    def mean(*means: Floats) -> Floats:
        total: Any = 0
        for start in range(0, len(means), width):
            *sums, count = means[start : start + width]
            total = total + statistic(*(each / count for each in sums))
        return np.asarray(total / len(names))

    return intervals(mean, parts, items, kinds_of_parts)


@lru_cache(maxsize=1)
def _weights(blocks: int) -> npt.NDArray[np.float32]:
    """contexts x draws; a larger number of blocks begins with the same weights."""
    return np.random.default_rng(0).standard_exponential(
        (blocks * _BLOCK, DRAWS), dtype=np.float32
    )
