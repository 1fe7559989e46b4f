"""How often the 95 % intervals of the tables hold the truth: simulated runs, whose truth is known.

    python -m benchmarks.gate.coverage [--samples 400] [--only kappa]

Items of a context share a random effect; `alike` says how much: 0 for items that are independent of each other, 1 for
items that are the same. A cell is a number of contexts, items in each, an accuracy and how alike they are. What has no
interval does not count, but is reported (`shown`). Prints, for each statistic and size, the worst cell and all cells
together, and as its last line JSON.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri
from scipy.stats import binomtest

from evaluator.metrics.columns import Row
from evaluator.metrics.draws import DRAWS, intervals, over_languages
from evaluator.metrics.drops import normalised
from evaluator.metrics.intervals import Floats, Interval, ItemNumbers
from evaluator.metrics.judging import Fitness
from evaluator.metrics.means import Mean, Ratio
from evaluator.metrics.measures import Unbounded, apart, bounds, difference, language_mean, median, of_mean, rate
from evaluator.metrics.tables.matching import pi_of_sums, without_error
from evaluator.metrics.tables.overlap import beyond_chance
from evaluator.metrics.tables.pr_gap import delta_pr_of
from evaluator.metrics.tables.prompts import extremes

CONTEXTS, ITEMS, ACCURACIES, ALIKE = (10, 50, 200), (1, 5), (0.05, 0.3, 0.5, 0.8, 0.95, 0.99), (0.0, 0.3, 1.0)
NOMINAL, WANTED = 0.95, 0.93
_POPULATION = 400_000  # items that the truth is computed from, where it has no formula
_TOGETHER = 0.6  # correlation of two outcomes of one item
_MOST = 32  # tokens of an answer

Values = list[Floats]  # of statistics: each a number per item


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """A number of a table. `values` makes items from `normals` standard normal numbers each and the base's accuracy;
    `value` is the number itself, from the same, and `row` what a table shows: `x`, `x_low` and `x_high`."""

    name: str
    normals: int
    values: Callable[[Floats, float], Values]
    value: Callable[..., float]
    row: Callable[..., Row]  # of the contexts and the values


@dataclass(frozen=True)
class Cell:
    """One kind of run."""

    contexts: int
    items: int
    accuracy: float
    alike: float


@dataclass(frozen=True)
class Coverage:
    """What `samples` runs of a cell gave."""

    statistic: str
    cell: Cell
    samples: int
    shown: int
    held: int
    empty: int  # intervals without width
    width: float | None

    @property
    def share(self) -> float:
        return self.held / self.shown if self.shown else 1.0

    @property
    def at_most(self) -> float:
        """The upper end of the simulation's own 99 % interval: the coverage is surely below."""
        if not self.shown:
            return 1.0
        return float(binomtest(self.held, self.shown).proportion_ci(0.99, "exact").high)


def _right(normals: Floats, *rates: float) -> Values:
    return [
        (one < ndtri(min(max(each, 1e-9), 1 - 1e-9))).astype(np.float64)
        for one, each in zip(normals, rates, strict=True)
    ]


def _of(places: Sequence[int], name: str, make: Callable[..., Row] = rate) -> Callable[..., Row]:
    """A row of some of the values."""
    return lambda contexts, *values: make(name, *(values[place] for place in places), contexts)


def _mean_of(at: int = 0) -> Callable[..., float]:
    return lambda contexts, *values: float(values[at].mean())


def _drop(contexts: ItemNumbers, dense: Floats, pruned: Floats) -> Row:
    return difference("x", dense - pruned, contexts)


def _languages(contexts: ItemNumbers) -> pd.DataFrame:
    """Two languages, one of which has a fifth of the contexts."""
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
    """The same of the mean over languages."""

    def row(contexts: ItemNumbers, *values: Floats) -> Row:
        value = _language_value(contexts, *values, of=statistic)
        mean, parts, shared = over_languages(statistic, values, _languages(contexts)["language"], kinds)
        return {"x": value, **bounds("x", *intervals(mean, parts, contexts, shared))}

    return {"value": partial(_language_value, of=statistic), "row": row}


def _before_after(floor: float) -> list[tuple[float, ...]]:
    return [(before, after, floor) for before in (0, 1) for after in (0, 1)]


def _opened(normals: Floats, accuracy: float) -> Values:
    return [*_right(normals, accuracy, accuracy * 0.8), np.zeros(normals.shape[1])]


def _chosen(normals: Floats, accuracy: float) -> Values:
    base = 0.25 + 0.75 * accuracy
    return [*_right(normals, base, base * 0.9), np.full(normals.shape[1], 0.25)]


def _both(normals: Floats, accuracy: float) -> Values:
    return [*_opened(normals[:2], accuracy), *_chosen(normals[2:], accuracy)]


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


def _fate(contexts: ItemNumbers, known: Floats, mc_only: Floats, lost: Floats) -> Row:
    return rate("x", mc_only[known == 1], contexts[known == 1])


def _corrected_fate(contexts: ItemNumbers, known: Floats, mc_only: Floats, lost: Floats) -> Row:
    return difference("x", (mc_only - lost / 3)[known == 1], contexts[known == 1], low=-1 / 3)


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


def _kind(contexts: ItemNumbers) -> Floats:
    """Every third context's first kind of question."""
    return (contexts % 3 == 0).astype(np.float64)


def _excess(contexts: ItemNumbers, dense: Floats, pruned: Floats) -> Row:
    mine = _kind(contexts) == 1
    parts = (Mean((dense - pruned)[these], contexts[these], low=-1.0) for these in (mine, ~mine))
    return apart("x", *parts)


def _excess_value(contexts: ItemNumbers, dense: Floats, pruned: Floats) -> float:
    mine = _kind(contexts) == 1
    return float((dense - pruned)[mine].mean() - (dense - pruned)[~mine].mean())


def _ranks(normals: Floats, accuracy: float) -> Values:
    """Rank 1 with a probability that is not the accuracy's, so that the median is not always 1."""
    return [1 + np.floor(np.exp(1.5 * normals[0] + 2 * (0.6 - accuracy)))]


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
    """What contains a gold answer, what a matcher accepts (of right answers 9 in 10, of wrong ones 1 in 20), and a
    number that its control pairs are drawn by."""
    right, found = _right(normals[:2], accuracy, 0.6)
    accepts = ndtr(normals[2]) < np.where(right == 1, 0.9, 0.05)
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
    Statistic(name="rate", normals=1, values=_right, value=_mean_of(), row=_of([0], "x")),
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
    Statistic(name="mc_only", normals=4, values=_known, value=lambda c, k, m, f: float(m.sum() / k.sum()), row=_fate),
    Statistic(
        name="mc_only, chance-corrected",
        normals=4,
        values=_known,
        value=lambda c, k, m, f: float((m - f / 3).sum() / k.sum()),
        row=_corrected_fate,
    ),
    Statistic(name="recovery percent", normals=2, values=_opened, **_of_means(_left, _before_after(0.0))),
    Statistic(name="recovery above guessing", normals=2, values=_chosen, **_of_means(_left, _before_after(0.25))),
    Statistic(
        name="recovery, mean over languages", normals=2, values=_opened, **_of_language_means(_left, _before_after(0.0))
    ),
    Statistic(name="normalised drop", normals=2, values=_chosen, **_of_means(normalised, _before_after(0.25))),
    Statistic(
        name="Delta_PR",
        normals=4,
        values=_both,
        **_of_means(delta_pr_of, [(*a, *b) for a, b in product(_before_after(0.0), _before_after(0.25))]),
    ),
    Statistic(
        name="Delta_PR, mean over languages",
        normals=4,
        values=_both,
        **_of_language_means(delta_pr_of, [(*a, *b) for a, b in product(_before_after(0.0), _before_after(0.25))]),
    ),
    Statistic(name="kappa", normals=2, values=_agreement, **_of_means(beyond_chance, _ERRORS)),
    Statistic(name="CAPA", normals=2, values=_options, **_of_means(beyond_chance, _CAPA)),
    Statistic(name="Scott's pi", normals=2, values=_agreement, **_of_means(pi_of_sums, _ERRORS)),
    Statistic(name="corrected", normals=3, values=_judged, value=_mean_of(2), row=_corrected),
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
        values=_ranks,
        value=lambda c, ranks: float(np.median(ranks)),
        row=_of([0], "x", median),
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


def normals(rng: np.random.Generator, kinds: int, contexts: int, items: int, alike: float) -> Floats:
    """kinds x items: standard normal numbers, correlated within an item and within a context."""

    def correlated(*shape: int) -> Floats:
        shared, own = rng.standard_normal((1, *shape)), rng.standard_normal((kinds, *shape))
        return np.asarray(np.sqrt(_TOGETHER) * shared + np.sqrt(1 - _TOGETHER) * own)

    effects = np.sqrt(alike) * correlated(contexts)[:, :, None] + np.sqrt(1 - alike) * correlated(contexts, items)
    return np.asarray(effects.reshape(kinds, -1))


@lru_cache(maxsize=None)
def truth(statistic: Statistic, accuracy: float) -> float:
    """Of a large population; how alike a context's items are does not move it."""
    population = normals(np.random.default_rng(0), statistic.normals, _POPULATION, 1, 0.0)
    if statistic.name == "prompt_order, shift":
        rates = [float(each.mean()) for each in statistic.values(population, accuracy)]
        return rates[0] - rates[1]
    return statistic.value(np.arange(_POPULATION), *statistic.values(population, accuracy))


def cover(statistic: Statistic, cell: Cell, samples: int) -> Coverage:
    """Draw runs of a cell, and count the intervals that hold the truth."""
    rng = np.random.default_rng(
        [zlib.crc32(statistic.name.encode()), cell.contexts, cell.items, int(100 * cell.accuracy)]
    )
    contexts, true = np.repeat(np.arange(cell.contexts), cell.items), truth(statistic, cell.accuracy)
    found: list[Interval] = []
    for _ in range(samples):
        values = statistic.values(normals(rng, statistic.normals, cell.contexts, cell.items, cell.alike), cell.accuracy)
        row = statistic.row(contexts, *values)
        if np.isfinite(row.get("x", np.nan)):  # a table shows no interval of what is undefined
            found.append((row["x_low"], row["x_high"]))
    ends = np.array([each for each in found if each[0] is not None], dtype=np.float64).reshape(-1, 2)
    # Sums are exact to about ten digits.
    held = (ends[:, 0] <= true + 1e-9) & (true - 1e-9 <= ends[:, 1])
    widths = ends[:, 1] - ends[:, 0]
    width = float(np.median(widths)) if len(ends) else None
    return Coverage(statistic.name, cell, samples, len(ends), int(held.sum()), int((widths <= 0).sum()), width)


def cells(contexts: Sequence[int] = CONTEXTS, accuracies: Sequence[float] = ACCURACIES) -> Iterator[Cell]:
    """All kinds of runs; one item a context is like itself."""
    for number, items, accuracy in product(contexts, ITEMS, accuracies):
        for alike in ALIKE if items > 1 else (0.0,):
            yield Cell(number, items, accuracy, alike)


def table(found: Sequence[Coverage]) -> pd.DataFrame:
    """Per statistic, contexts and items a context: the worst cell, and all cells together."""
    rows = []
    groups: dict[tuple[str, int, int], list[Coverage]] = {}
    for each in found:
        groups.setdefault((each.statistic, each.cell.contexts, each.cell.items), []).append(each)
    for (name, contexts, items), group in groups.items():
        shown = sum(each.shown for each in group)
        worst = min(group, key=lambda each: each.share)
        widths = [each.width for each in group if each.width is not None]
        rows.append(
            {
                "statistic": name,
                "contexts": contexts,
                "items a context": items,
                "worst": worst.share,
                "at accuracy": worst.cell.accuracy,
                "together": sum(each.held for each in group) / shown if shown else None,
                "shown": shown / sum(each.samples for each in group),
                "width": float(np.median(widths)) if widths else None,
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--only", action="append", help="a statistic's name")
    parser.add_argument("--contexts", type=int, action="append")
    asked = parser.parse_args()
    chosen = [each for each in STATISTICS if not asked.only or each.name in asked.only]
    found: list[Coverage] = []
    for each in chosen:
        own = [cover(each, cell, asked.samples) for cell in cells(asked.contexts or CONTEXTS)]
        found += own
        print(table(own).to_string(index=False, float_format=lambda value: f"{value:.3f}"), flush=True)
    short = [each for each in found if each.at_most < WANTED]
    print(
        json.dumps(
            {"nominal": NOMINAL, "short": [asdict(each) for each in short], "rows": table(found).to_dict("records")}
        )
    )


if __name__ == "__main__":
    main()
