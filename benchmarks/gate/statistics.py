"""The numbers of the tables that have an interval, and simulated items that each is computed from."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from evaluator.metrics.columns import Row
from evaluator.metrics.draws import DRAWS, intervals, over_languages
from evaluator.metrics.drops import normalised
from evaluator.metrics.intervals import Floats, ItemNumbers, Mean, Ratio
from evaluator.metrics.measures import Unbounded, apart, bounds, difference, language_mean, median, of_mean, rate
from evaluator.metrics.tables.judges import Fitness
from evaluator.metrics.tables.ladder import delta_pr_of
from evaluator.metrics.tables.matching import scott_pi, without_error
from evaluator.metrics.tables.overlap import beyond_chance
from evaluator.metrics.tables.prompts import extremes

# Outcomes before and after, and a floor: the corners of a statistic's items.
_ZERO, _QUARTER = ([(before, after, floor) for before in (0, 1) for after in (0, 1)] for floor in (0.0, 0.25))
TOGETHER = 0.6  # correlation of two outcomes of one item
_MOST = 32  # tokens of an answer

Values = list[Floats]  # of statistics: each a number per item


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """A number of a table. `values` makes items from `normals` standard normal numbers each and the base's accuracy;
    `value` is the number itself, from the same, and `row` a table's columns: `x`, `x_low` and `x_high`."""

    name: str
    normals: int
    values: Callable[[Floats, float], Values]
    value: Callable[..., float]
    row: Callable[..., Row]  # of the contexts and the values


def _right(normals: Floats, *rates: float) -> Values:
    return [
        (one < ndtri(min(max(each, 1e-9), 1 - 1e-9))).astype(np.float64)
        for one, each in zip(normals, rates, strict=True)
    ]


def _drop(contexts: ItemNumbers, dense: Floats, pruned: Floats) -> Row:
    return difference("x", dense - pruned, contexts)


def _languages(contexts: ItemNumbers) -> pd.DataFrame:
    """Two languages; one has a fifth of the contexts."""
    return pd.DataFrame({"language": np.where(contexts % 5 == 0, "b", "a")})


def _language_value(contexts: ItemNumbers, *values: Floats, of: Callable[..., Floats]) -> float:
    languages = _languages(contexts)["language"].to_numpy()
    return float(np.mean([of(*(np.asarray(each[languages == name].mean()) for each in values)) for name in "ab"]))


def _of_means(statistic: Callable[..., Floats], kinds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """`value` and `row` of a statistic of means."""

    def value(contexts: ItemNumbers, *values: Floats) -> float:
        return float(statistic(*(np.asarray(each.mean()) for each in values)))

    def row(contexts: ItemNumbers, *values: Floats) -> Row:
        return {"x": value(contexts, *values), **bounds("x", *intervals(statistic, values, contexts, kinds))}

    return {"value": value, "row": row}


def _of_language_means(statistic: Callable[..., Floats], kinds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The same for the mean over languages."""

    def row(contexts: ItemNumbers, *values: Floats) -> Row:
        value = _language_value(contexts, *values, of=statistic)
        mean, parts, shared = over_languages(statistic, values, _languages(contexts)["language"], kinds)
        return {"x": value, **bounds("x", *intervals(mean, parts, contexts, shared))}

    return {"value": partial(_language_value, of=statistic), "row": row}


def _opened(normals: Floats, accuracy: float) -> Values:
    return [*_right(normals, accuracy, accuracy * 0.8), np.zeros(normals.shape[1])]


def _chosen(normals: Floats, accuracy: float) -> Values:
    base = 0.25 + 0.75 * accuracy
    return [*_right(normals, base, base * 0.9), np.full(normals.shape[1], 0.25)]


def _left(dense: Floats, pruned: Floats, floor: Floats) -> Floats:
    return np.asarray(1 - normalised(dense, pruned, floor))


def _agreement(normals: Floats, accuracy: float) -> Values:
    first, second = _right(normals, accuracy, max(accuracy - 0.1, accuracy / 2))
    return [(first == second).astype(np.float64), first, second, np.ones(len(first))]


def _options(normals: Floats, accuracy: float) -> Values:
    """Two checkpoints' choices among four options: one is certain, the other gives the rest to the next option."""
    first, second = _right(normals, accuracy, max(accuracy - 0.1, accuracy / 2))
    sure = 0.4 + 0.6 * first
    return [sure * second + (1 - sure) * (1 - second), sure, second, np.full(len(first), 1 / 3)]


def _known(normals: Floats, accuracy: float) -> Values:
    base = _right(normals[:2], accuracy, 0.25 + 0.75 * accuracy)
    own = _right(normals[2:], accuracy * 0.8, (0.25 + 0.75 * accuracy) * 0.95)
    known = base[0] * base[1]
    return [known, known * (1 - own[0]) * own[1], known * (1 - own[0]) * (1 - own[1])]


def _posed(normals: Floats, accuracy: float, further: float = 0.05) -> Values:
    return _right(normals, accuracy, max(0.0, accuracy - 0.4 * further), max(0.0, accuracy - further))


def _extreme(name: str) -> Callable[..., Row]:
    def row(contexts: ItemNumbers, *right: Floats) -> Row:
        found = extremes(np.stack(right), contexts)
        return {f"x{end}": found.get(f"{name}{end}") for end in ("_low", "_high")} | {"x": 0.0}

    return row


def _shift(contexts: ItemNumbers, *right: Floats) -> Row:
    differences = np.stack([right[0] - right[1], right[1] - right[2], right[2] - right[0]])
    shifts = differences - differences.mean(axis=0)
    return difference("x", shifts[0], contexts, low=-4 / 3, high=4 / 3)


def _excess(contexts: ItemNumbers, dense: Floats, pruned: Floats) -> Row:
    mine = contexts % 3 == 0  # every third context's first kind of question
    parts = (Mean((dense - pruned)[these], contexts[these], low=-1.0) for these in (mine, ~mine))
    return apart("x", *parts)


def _excess_value(contexts: ItemNumbers, dense: Floats, pruned: Floats) -> float:
    mine = contexts % 3 == 0
    return float((dense - pruned)[mine].mean() - (dense - pruned)[~mine].mean())


def _tokens(normals: Floats, accuracy: float) -> Values:
    """The worse, the longer."""
    shares = -np.log(np.clip(ndtr(normals), 1e-12, 1))
    base, own = (
        np.minimum(_MOST, np.ceil(4 * factor * each)) for factor, each in zip((1, 2 - accuracy), shares, strict=True)
    )
    return [own, base]


def _ratio(contexts: ItemNumbers, over: Floats, under: Floats) -> float:
    return float(over.sum() / under.sum())


def _unbounded(scale: str) -> Callable[..., Row]:
    def row(contexts: ItemNumbers, over: Floats, under: Floats) -> Row:
        ratio = Unbounded.ratio(over, under, contexts)
        return {"x": ratio.value, **bounds("x", ratio.interval(scale))}

    return row


def _judged(normals: Floats, accuracy: float) -> Values:
    """Answers that contain a gold answer, answers that a matcher accepts (9 in 10 right ones, 1 in 20 wrong ones), and
    a number that draws its control pairs."""
    right, found = _right(normals[:2], accuracy, 0.6)
    # A matcher errs on each answer alike: its correlation with the other two outcomes is removed.
    shared = TOGETHER / (1 + TOGETHER)
    own = (normals[2] - shared * (normals[0] + normals[1])) / np.sqrt(1 - 2 * TOGETHER * shared)
    accepts = ndtr(own) < np.where(right == 1, 0.9, 0.05)
    return [right * found, np.maximum(right * found, accepts), right, normals[2]]


def _corrected(contexts: ItemNumbers, contained: Floats, accepted: Floats, right: Floats, chance: Floats) -> Row:
    rng = np.random.default_rng(zlib.crc32(chance.tobytes()))
    fitness = Fitness(int(rng.binomial(60, 0.9)), 60, int(rng.binomial(60, 0.95)), 60)
    rates = (fitness.sensitivity or 0.0, fitness.specificity or 0.0)
    value = without_error(np.asarray(contained.mean()), np.asarray(accepted.mean()), *map(np.asarray, rates))
    beside = tuple(zip(rates, fitness.drawn(DRAWS), strict=True))
    found = intervals(without_error, [contained, accepted], contexts, [(1, 1), (0, 1), (0, 0)], beside)
    return {"x": float(value), **bounds("x", *found)}


_ERRORS = [(1, 1, 1, 1), (1, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1)]
_CAPA = [(*kind[:3], 1 / 3) for kind in (*_ERRORS, (0, 0, 0))]
STATISTICS = (
    Statistic(
        name="rate",
        normals=1,
        values=_right,
        value=lambda c, right: float(right.mean()),
        row=lambda c, right: rate("x", right, c),
    ),
    Statistic(
        name="drop",
        normals=2,
        values=lambda z, p: _right(z, p, p * 0.9),
        value=lambda c, a, b: float((a - b).mean()),
        row=_drop,
    ),
    Statistic(name="no drop", normals=2, values=lambda z, p: _right(z, p, p), value=lambda c, a, b: 0.0, row=_drop),
    Statistic(
        name="mean over languages",
        normals=1,
        values=_right,
        value=partial(_language_value, of=lambda mean: mean),
        row=lambda c, right: language_mean("x", right, _languages(c), c),
    ),
    Statistic(
        name="drop, mean over languages",
        normals=2,
        values=lambda z, p: _right(z, p, p * 0.9),
        value=partial(_language_value, of=np.subtract),
        row=lambda c, a, b: language_mean("x", a - b, _languages(c), c, low=-1.0),
    ),
    Statistic(
        name="mc_only",
        normals=4,
        values=_known,
        value=lambda c, k, m, f: float(m.sum() / k.sum()),
        row=lambda c, known, mc_only, lost: rate("x", mc_only[known == 1], c[known == 1]),
    ),
    Statistic(
        name="mc_only, chance-corrected",
        normals=4,
        values=_known,
        value=lambda c, k, m, f: float((m - f / 3).sum() / k.sum()),
        row=lambda c, known, m, f: difference("x", (m - f / 3)[known == 1], c[known == 1], low=-1 / 3),
    ),
    Statistic(name="recovery percent", normals=2, values=_opened, **_of_means(_left, _ZERO)),
    Statistic(name="recovery above guessing", normals=2, values=_chosen, **_of_means(_left, _QUARTER)),
    Statistic(name="recovery, mean over languages", normals=2, values=_opened, **_of_language_means(_left, _ZERO)),
    Statistic(name="normalised drop", normals=2, values=_chosen, **_of_means(normalised, _QUARTER)),
    Statistic(
        name="Delta_PR",
        normals=4,
        values=lambda z, p: [*_opened(z[:2], p), *_chosen(z[2:], p)],
        **_of_means(delta_pr_of, [(*a, *b) for a, b in product(_ZERO, _QUARTER)]),
    ),
    Statistic(
        name="Delta_PR, mean over languages",
        normals=4,
        values=lambda z, p: [*_opened(z[:2], p), *_chosen(z[2:], p)],
        **_of_language_means(delta_pr_of, [(*a, *b) for a, b in product(_ZERO, _QUARTER)]),
    ),
    Statistic(name="kappa", normals=2, values=_agreement, **_of_means(beyond_chance, _ERRORS)),
    Statistic(name="CAPA", normals=2, values=_options, **_of_means(beyond_chance, _CAPA)),
    Statistic(name="Scott's pi", normals=2, values=_agreement, **_of_means(scott_pi, _ERRORS)),
    Statistic(
        name="corrected",
        normals=3,
        values=_judged,
        value=lambda c, contained, accepted, right, chance: float(right.mean()),
        row=_corrected,
    ),
    Statistic(
        name="prompts, mean",
        normals=3,
        values=_posed,
        value=lambda c, *right: float(np.mean(right)),
        row=lambda c, *right: rate("x", np.mean(right, axis=0), c),
    ),
    Statistic(
        name="prompts, worst",
        normals=3,
        values=_posed,
        value=lambda c, *right: min(float(each.mean()) for each in right),
        row=_extreme("worst"),
    ),
    Statistic(
        name="prompts, spread",
        normals=3,
        values=_posed,
        value=lambda c, *right: float(np.ptp([each.mean() for each in right])),
        row=_extreme("spread"),
    ),
    Statistic(
        name="prompts alike, spread",
        normals=3,
        values=partial(_posed, further=0.0),
        value=lambda c, *right: 0.0,
        row=_extreme("spread"),
    ),
    Statistic(
        name="prompt_order, shift", normals=3, values=_posed, value=lambda c, a, b, d: float((a - b).mean()), row=_shift
    ),
    Statistic(
        name="weak, excess", normals=2, values=lambda z, p: _right(z, p, p * 0.9), value=_excess_value, row=_excess
    ),
    Statistic(
        name="rank, median",
        normals=1,
        # Rank 1 with a probability that is not the accuracy's, so that the median is not always 1.
        values=lambda z, p: [1 + np.floor(np.exp(1.5 * z[0] + 2 * (0.6 - p)))],
        value=lambda c, ranks: float(np.median(ranks)),
        row=lambda c, ranks: median("x", ranks, c),
    ),
    Statistic(
        name="length, ratio",
        normals=2,
        values=_tokens,
        value=_ratio,
        row=lambda c, own, base: of_mean("x", Ratio(own / _MOST, base / _MOST, c)),
    ),
    Statistic(
        name="divergence",
        normals=1,
        values=lambda z, p: [-np.log(np.clip(ndtr(z[0]), 1e-300, 1)), np.ones(z.shape[1])],
        value=_ratio,
        row=_unbounded("log"),
    ),
    Statistic(
        name="fertility",
        normals=2,
        values=lambda z, p: list(1 + np.round(np.exp(0.5 * z))),
        value=_ratio,
        row=_unbounded("log"),
    ),
    Statistic(
        name="perplexity",
        normals=1,
        values=lambda z, p: [100 * (2 + 0.5 * z[0]), np.full(z.shape[1], 100.0)],
        value=lambda c, a, b: float(np.exp(_ratio(c, a, b))),
        row=_unbounded("exp"),
    ),
)
