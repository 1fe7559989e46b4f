"""The numbers that tables are made of, as the columns of a row: rates, paired differences, means over languages.

Every function returns a part of a row: the value under `name`, its interval under `<name>_low` and `<name>_high`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from evaluator.metrics.columns import Row
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.intervals import (
    UNDEFINED,
    Floats,
    Interval,
    ItemNumbers,
    holm,
    mcnemar_exact,
    nan_mean,
    percentile_interval,
    wilson,
)


def as_floats(column: pd.Series) -> Floats:
    """A fully measured column as floats: a boolean one as 0.0 and 1.0."""
    return np.asarray(column, dtype=np.float64)


def item_numbers(frame: pd.DataFrame) -> ItemNumbers:
    """Each row's item, as its number within the task: what a `Resampler` knows it by."""
    return np.asarray(frame["item"], dtype=np.intp)


def bounds(name: str, interval: Interval) -> Row:
    return {f"{name}_low": interval[0], f"{name}_high": interval[1]}


def rate(name: str, count: int, n: int) -> Row:
    """A rate with its Wilson interval; all null when there is nothing to count."""
    return {name: count / n if n else None, **bounds(name, wilson(count, n))}


def difference(inputs: Inputs, task: str, items: pd.DataFrame, values: Floats, name: str) -> Row:
    """The mean of a paired difference, a value per row of `items`, with its bootstrap interval; empty without rows."""
    if len(values) == 0:
        return {}
    interval = inputs.resampler(task).mean_interval(item_numbers(items), values)
    return {name: float(values.mean()), **bounds(name, interval)}


def language_mean(inputs: Inputs, task: str, items: pd.DataFrame, **values: Floats) -> Row:
    """The unweighted mean over languages of each of `values` (one number per row of `items`), with its bootstrap
    interval: undefined where a language has fewer than two clusters. Empty without rows."""
    if items.empty:
        return {}
    resampler, numbers, languages = inputs.resampler(task), item_numbers(items), items["language"].to_numpy()
    rows = [np.flatnonzero(languages == language) for language in sorted(set(languages))]
    drawn = [resampler.means(numbers[here], *(each[here] for each in values.values())) for here in rows]
    defined = all(resampler.clusters(numbers[here]) >= 2 for here in rows)
    row: Row = {}
    for place, (name, each) in enumerate(values.items()):
        row[name] = float(np.mean([each[here].mean() for here in rows]))
        interval = percentile_interval(nan_mean([draws[place] for draws in drawn])) if defined else UNDEFINED
        row |= bounds(name, interval)
    return row


def paired_p(first: Floats, second: Floats) -> float | None:
    """Exact McNemar p of two outcomes (0.0 or 1.0) of the same items; null without items."""
    if len(first) == 0:
        return None
    return mcnemar_exact(int((first > second).sum()), int((second > first).sum()))


def paired_difference(
    inputs: Inputs, task: str, items: pd.DataFrame, outcomes: tuple[Floats, Floats], name: str, p: str = "mcnemar_p"
) -> Row:
    """`difference` of the first minus the second of two outcomes (0.0 or 1.0, a value per row of `items`), and under
    `p` whether it may be chance (`paired_p`)."""
    first, second = outcomes
    return difference(inputs, task, items, first - second, name) | {p: paired_p(first, second)}


def correct_for_many(
    rows: Sequence[Row], family: Sequence[str], p: str = "mcnemar_p", adjusted: str = "holm_p"
) -> None:
    """Fill `adjusted` with Holm's correction of `p` over the checkpoints: the rows that agree in all of `family`.

    The caller leaves out what could not differ (`Inputs.could_differ`).
    """
    families: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.get(p) is not None:
            families.setdefault(tuple(row[name] for name in family), []).append(row)
    for members in families.values():
        for row, value in zip(members, holm([row[p] for row in members]), strict=True):
            row[adjusted] = value
