"""The interval of a statistic other than a mean, such as a kappa: random weights of
contexts.

    intervals(kappa, [agreed, first, second], contexts, kinds=[(1, 0, 0), (0, 1, 0),
    ...])

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

import numpy as np
import numpy.typing as npt
import pandas as pd

from evaluator.metrics.intervals import (
    ALPHA,
    FEWEST,
    Floats,
    Interval,
    ItemNumbers,
    too_few,
)

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
    statistic: Statistic,
    values: Sequence[Floats],
    contexts: ItemNumbers,
    kinds: Kinds,
    beside: Sequence[tuple[float, Floats]] = (),
) -> list[Interval | str]:
    """The 95 % interval of `statistic` of the means of `values`, or the reason why
    there is none.

    `values`: each has one number an item, or several such rows for as many intervals.
    `kinds`: the extreme values that an item may have. `beside`: further arguments of
    the statistic from other data, each as a number and its draws.
    """
    rows = [np.atleast_2d(each) for each in values]
    place = pd.factorize(contexts)[0]
    number = int(place.max(initial=-1)) + 1
    if number < FEWEST:
        return [too_few(number)] * max(map(len, rows))
    size = len(place) / number
    known = [point for point, _ in beside]
    kinds_VK = np.array(kinds, dtype=np.float64).T
    totals = [row.sum(axis=1, keepdims=True) for row in rows]
    moved_PK = statistic(
        *(
            (each + size * kind) / (len(place) + size)
            for each, kind in zip(totals, kinds_VK, strict=True)
        ),
        *known,
    )
    weights = _weights(1 + number // _BLOCK)
    by_context = [
        np.bincount(place, row) for row in (*np.concatenate(rows), np.ones(len(place)))
    ]
    small, large = np.stack(by_context).astype(np.float32), weights[1 : number + 1]
    # In blocks that one thread computes: several threads start more slowly, and wait
    # for each other under load.
    columns = (
        _ONE_THREAD // small.size
        if _ONE_THREAD // small.size >= _LEAST_COLUMNS
        else DRAWS
    )
    blocks = [small @ large[:, at : at + columns] for at in range(0, DRAWS, columns)]
    drawn = np.concatenate(blocks, axis=1).astype(np.float64)
    *sums, total = np.split(drawn, np.cumsum([len(row) for row in rows]))
    more = size * weights[0].astype(np.float64)
    ends = []
    for sign, nth in ((-1.0, _OUTSIDE - 1), (1.0, DRAWS - _OUTSIDE)):
        kind_VP = kinds_VK[
            :, np.argmax(np.nan_to_num(sign * moved_PK, nan=-np.inf), axis=1)
        ]
        means = [
            (each + kind[:, None] * more) / (total + more)
            for each, kind in zip(sums, kind_VP, strict=True)
        ]
        values_PD = statistic(*means, *(draws for _, draws in beside))
        ends.append(
            np.partition(np.nan_to_num(values_PD, nan=sign * np.inf), nth, axis=1)[
                :, nth
            ]
        )
    lows, highs = (end.tolist() for end in ends)
    both = zip(lows, highs, strict=True)
    return [
        (low, high) if math.isfinite(low) and math.isfinite(high) else NO_END
        for low, high in both
    ]


def over_languages(
    statistic: Statistic, values: Sequence[Floats], languages: pd.Series, kinds: Kinds
) -> tuple[Statistic, list[Floats], Kinds]:
    """The mean over languages of a statistic, as arguments for `intervals`;
    `languages` names each item's."""
    codes, names = pd.factorize(languages)
    here = [(codes == code).astype(np.float64) for code in range(len(names))]
    parts = [each * mine for mine in here for each in (*values, np.ones(len(codes)))]
    shares = [float(mine.mean()) for mine in here]
    width = len(values) + 1

    def mean(*means: Floats) -> Floats:
        each = [means[start : start + width] for start in range(0, len(means), width)]
        return np.asarray(
            sum(statistic(*(part / count for part in own)) for *own, count in each)
            / len(each)
        )

    return (
        mean,
        parts,
        [
            [share * value for share in shares for value in (*kind, 1.0)]
            for kind in kinds
        ],
    )


@lru_cache(maxsize=1)
def _weights(blocks: int) -> npt.NDArray[np.float32]:
    """contexts x draws; a larger number of blocks begins with the same weights."""
    return np.random.default_rng(0).standard_exponential(
        (blocks * _BLOCK, DRAWS), dtype=np.float32
    )
