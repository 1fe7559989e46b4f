"""The numbers of the tables that have an interval, and simulated items that each is
computed from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from evaluator.metrics.bootstrap import intervals, language_intervals
from evaluator.metrics.columns import Row
from evaluator.metrics.intervals import Floats, ItemNumbers
from evaluator.metrics.items import Items
from evaluator.metrics.measures import Unbounded, bounds, difference
from evaluator.metrics.tables.pr_gap import delta_pr_of
from evaluator.metrics.tables.prompts import extremes

# Outcomes before and after, and a floor: the corners of a statistic's items.
_ZERO, _QUARTER = (
    [(before, after, floor) for before in (0, 1) for after in (0, 1)]
    for floor in (0.0, 0.25)
)
TOGETHER = 0.6  # correlation of two outcomes of one item

Values = list[Floats]  # of statistics: each a number per item


@dataclass(frozen=True)
class Statistic:
    """A number of a table. `values` makes items from `normals` standard normal numbers
    each and the base's accuracy; `value` is the number itself, from the same, and `row`
    a table's columns: `x`, `x_low` and `x_high`.
    """

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


def _languages(contexts: ItemNumbers) -> Items:
    """Two languages; one has a fifth of the contexts."""
    languages = np.where(contexts % 5 == 0, "b", "a")
    columns = {"language": languages, "context": contexts, "item": contexts}
    return Items.of_columns(columns)


def _language_value(
    contexts: ItemNumbers, *values: Floats, of: Callable[..., Floats]
) -> float:
    languages = _languages(contexts)["language"]
    parts = []
    for name in "ab":
        means = (np.asarray(each[languages == name].mean()) for each in values)
        parts.append(of(*means))
    return float(np.mean(parts))


def _of_means(
    statistic: Callable[..., Floats], kinds: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """`value` and `row` of a statistic of means."""

    def value(contexts: ItemNumbers, *values: Floats) -> float:
        return float(statistic(*(np.asarray(each.mean()) for each in values)))

    def row(contexts: ItemNumbers, *values: Floats) -> Row:
        return {
            "x": value(contexts, *values),
            **bounds("x", *intervals(statistic, values, contexts, kinds)),
        }

    return {"value": value, "row": row}


def _of_language_means(
    statistic: Callable[..., Floats], kinds: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """The same for the mean over languages."""

    def row(contexts: ItemNumbers, *values: Floats) -> Row:
        value = _language_value(contexts, *values, of=statistic)
        found = language_intervals(statistic, values, _languages(contexts), kinds)
        return {"x": value, **bounds("x", *found)}

    return {"value": partial(_language_value, of=statistic), "row": row}


def _opened(normals: Floats, accuracy: float) -> Values:
    return [*_right(normals, accuracy, accuracy * 0.8), np.zeros(normals.shape[1])]


def _chosen(normals: Floats, accuracy: float) -> Values:
    base = 0.25 + 0.75 * accuracy
    return [*_right(normals, base, base * 0.9), np.full(normals.shape[1], 0.25)]


def _known(normals: Floats, accuracy: float) -> Values:
    base = _right(normals[:2], accuracy, 0.25 + 0.75 * accuracy)
    own = _right(normals[2:], accuracy * 0.8, (0.25 + 0.75 * accuracy) * 0.95)
    known = base[0] * base[1]
    return [known, known * (1 - own[0]) * own[1], known * (1 - own[0]) * (1 - own[1])]


def _posed(normals: Floats, accuracy: float) -> Values:
    return _right(
        normals, accuracy, max(0.0, accuracy - 0.02), max(0.0, accuracy - 0.05)
    )


def _extreme(name: str) -> Callable[..., Row]:
    def row(contexts: ItemNumbers, *right: Floats) -> Row:
        found = extremes(np.stack(right), contexts)
        return {f"x{end}": found.get(f"{name}{end}") for end in ("_low", "_high")} | {
            "x": 0.0
        }

    return row


def _ratio(contexts: ItemNumbers, over: Floats, under: Floats) -> float:
    return float(over.sum() / under.sum())


def _divergence(contexts: ItemNumbers, over: Floats, under: Floats) -> Row:
    return Unbounded.ratio(over, under, contexts).row("x", "log")


# fmt: off
STATISTICS = (
    Statistic("mc_only, chance-corrected", 4, _known, lambda c, k, m, f: float((m - f / 3).sum() / k.sum()),
              lambda c, known, m, f: difference("x", (m - f / 3)[known == 1], c[known == 1], low=-1 / 3)),
    Statistic("Delta_PR", 4, lambda z, p: [*_opened(z[:2], p), *_chosen(z[2:], p)],
              **_of_means(delta_pr_of, [(*a, *b) for a, b in product(_ZERO, _QUARTER)])),
    Statistic("Delta_PR, mean over languages", 4, lambda z, p: [*_opened(z[:2], p), *_chosen(z[2:], p)],
              **_of_language_means(delta_pr_of, [(*a, *b) for a, b in product(_ZERO, _QUARTER)])),
    Statistic("prompts, worst", 3, _posed, lambda c, *right: min(float(each.mean()) for each in right),
              _extreme("worst")),
    Statistic("prompts, spread", 3, _posed, lambda c, *right: float(np.ptp([each.mean() for each in right])),
              _extreme("spread")),
    Statistic("divergence", 1, lambda z, p: [-np.log(np.clip(ndtr(z[0]), 1e-300, 1)), np.ones(z.shape[1])], _ratio,
              _divergence),
)
# fmt: on
