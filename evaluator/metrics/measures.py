"""The numbers in tables, as the columns of a row: rates, paired differences, means over
languages.

Most functions return a part of a row: the value under `name`, its interval under
`<name>_low` and `<name>_high`. `values` has one number an item. `items` are the items
themselves, or the number of each item's context: items of one context depend on each
other.

A `Measure` is a function from items to such a part of a row: of a column, or of a
function that gives a number an item.

    Share("accuracy", "produced")(items)      # accuracy, accuracy_low, accuracy_high
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr, stdtrit

from evaluator.metrics.columns import WHY, Row
from evaluator.metrics.intervals import (
    ALPHA,
    FEWEST,
    Floats,
    Interval,
    ItemNumbers,
    Mean,
    Ratio,
    holm,
    mcnemar_p,
    too_few,
)
from evaluator.metrics.items import BASE, Items, sides_of

ALIKE = "all values are alike, which bounds no interval"


def as_floats(column: npt.ArrayLike) -> Floats:
    """A fully measured column or array as floats: a boolean one as 0.0 and 1.0."""
    return np.asarray(column, dtype=np.float64)


Grouped = Items | ItemNumbers  # items, or the contexts of some
Of = str | Callable[[Items], npt.ArrayLike]  # a column, or a number an item


def contexts_of(items: Grouped) -> ItemNumbers:
    """The number of each item's context."""
    return items["context"] if isinstance(items, Items) else items


def mean_of(
    values: npt.ArrayLike,
    items: Grouped,
    *,
    low: float = 0.0,
    high: float = 1.0,
    weights: Floats | None = None,
) -> Mean:
    return Mean(
        as_floats(values), contexts_of(items), low=low, high=high, weights=weights
    )


def bounds(name: str, interval: Interval | str) -> Row:
    """An interval as columns of a row. A missing interval has its reason under
    `<name>_why`, which `Table` moves to the column `reason`. An interval of width 0
    counts as missing."""
    if isinstance(interval, str):
        why = interval
    elif interval[0] == interval[1]:
        why = ALIKE
    else:
        return {f"{name}_low": interval[0], f"{name}_high": interval[1]}
    return {f"{name}_low": None, f"{name}_high": None, f"{name}{WHY}": why}


def of_mean(name: str, mean: Mean, level: float = ALPHA) -> Row:
    """A mean with its interval of confidence 1 - level."""
    return {name: mean.value, **bounds(name, mean.interval(level))}


def rate(name: str, values: npt.ArrayLike, items: Grouped) -> Row:
    """A rate with its interval; the values are from 0 to 1."""
    return of_mean(name, mean_of(values, items)) if len(items) else {}


def difference(
    name: str,
    values: npt.ArrayLike,
    items: Grouped,
    *,
    low: float = -1.0,
    high: float = 1.0,
    level: float = ALPHA,
) -> Row:
    """The mean of a paired difference, from `low` to `high` per item, with its
    interval; empty without items."""
    if not len(items):
        return {}
    return of_mean(name, mean_of(values, items, low=low, high=high), level)


def language_mean(
    name: str, values: npt.ArrayLike, items: Items, low: float = 0.0
) -> Row:
    """The unweighted mean over languages of a number an item, from `low` to 1; empty
    without items."""
    if not len(items):
        return {}
    codes, sizes = np.unique(
        items["language"], return_inverse=True, return_counts=True
    )[1:]
    weights = 1 / sizes[codes]
    return of_mean(
        name, mean_of(values, items, low=low, weights=weights / weights.sum())
    )


def median(name: str, values: Floats, contexts: ItemNumbers) -> Row:
    """A median with its interval. At least half of the items surely reach its lower
    end, the largest such value. At least half surely do not exceed its upper end,
    the smallest such value. For independent items this is the interval of order
    statistics (W. R. Thompson, Annals of Mathematical Statistics 7, 1936)."""
    high, low = _half_or_more(values, contexts), _half_or_more(-values, contexts)
    interval: Interval | str = too_few(len(np.unique(contexts)))
    if low is not None and high is not None:
        interval = (0.0 - low, high)  # no -0
    return {name: float(np.median(values)), **bounds(name, interval)}


def _half_or_more(values: Floats, contexts: ItemNumbers) -> float | None:
    """The smallest value that surely half of the items or more do not exceed."""
    distinct = np.unique(values)

    def surely(value: float) -> bool:
        share = Mean(as_floats(values <= value), contexts)
        return share.p_at_most(0.5) <= ALPHA / 2

    at = bisect_left(distinct, True, key=surely)
    return float(distinct[at]) if at < len(distinct) else None


@dataclass(frozen=True)
class Unbounded:
    """A ratio of sums, or a combination of several: how much each item moves it, and
    the context of each item.

    Its values have no bounds, so no interval is valid for all distributions. This is
    Student's, with a standard error clustered by context (K.-Y. Liang and S. Zeger,
    Biometrika 73, 1986)."""

    value: float
    moves: Floats
    contexts: ItemNumbers

    @classmethod
    def ratio(
        cls, over: npt.ArrayLike, under: npt.ArrayLike, items: Grouped
    ) -> "Unbounded":
        over, under = as_floats(over), as_floats(under)
        value = float(over.sum() / under.sum())
        with np.errstate(invalid="ignore"):  # an infinite value has no interval
            moves = (over - value * under) / under.sum()
        return cls(value, moves, contexts_of(items))

    @classmethod
    def mean(cls, parts: "Sequence[Unbounded]") -> "Unbounded":
        moves = np.concatenate([each.moves for each in parts]) / len(parts)
        value = float(np.mean([each.value for each in parts]))
        return cls(value, moves, np.concatenate([each.contexts for each in parts]))

    @property
    def spread(self) -> tuple[float, int]:
        """The standard error, and the degrees of freedom."""
        place = np.unique(self.contexts, return_inverse=True)[1]
        sums = np.bincount(place, self.moves)
        number = len(sums)
        return float(np.sqrt(number / max(number - 1, 1) * (sums @ sums))), number - 1

    @property
    def p(self) -> float | None:
        """The two-sided p-value of "the value is 0"; null for a single context."""
        error, freedom = self.spread
        if freedom == 0 or not math.isfinite(self.value):
            return None
        if not error:
            return float(self.value == 0)
        return float(2 * stdtr(freedom, -abs(self.value / error)))

    def row(self, name: str, scale: str = "linear") -> Row:
        """The value and its interval as columns."""
        return {name: self.value, **bounds(name, self.interval(scale))}

    def interval(self, scale: str = "linear") -> Interval | str:
        """The 95 % interval. `scale`: `log` for non-negative values with occasional
        large ones; `exp` for the exponential of the value."""
        error, freedom = self.spread
        if not math.isfinite(self.value):
            return "a text of probability 0: infinite, without an interval"
        if freedom + 1 < FEWEST:
            return too_few(freedom + 1)
        far = -error * float(stdtrit(freedom, ALPHA / 2))
        if scale == "log":
            far = far / self.value if self.value > 0 else 0.0
            return self.value * math.exp(-far), self.value * exp(far)
        low, high = self.value - far, self.value + far
        return (exp(low), exp(high)) if scale == "exp" else (low, high)


def exp(value: float) -> float:
    """The exponential; infinite where it exceeds a number's range."""
    with np.errstate(over="ignore"):
        return float(np.exp(value))


class Measure(ABC):
    """A function from items to a part of a row."""

    @abstractmethod
    def __call__(self, items: Items) -> Row: ...

    def over_languages(self, items: Items) -> Row:
        """The same as an unweighted mean over languages; empty: it has none."""
        return {}


@dataclass(frozen=True)
class Share(Measure):
    """The mean over the items that have a number, from `low` to `high` each, with its
    interval."""

    name: str
    of: Of
    low: float = 0.0
    high: float = 1.0

    def values(self, items: Items) -> Floats:
        """A number an item; NaN: it has none."""
        return values_of(items, self.of)

    def __call__(self, items: Items) -> Row:
        values, items = known(items, self.values)
        return difference(self.name, values, items, low=self.low, high=self.high)

    def over_languages(self, items: Items) -> Row:
        values, items = known(items, self.values)
        return language_mean(self.name, values, items, self.low)


@dataclass(frozen=True)
class Gap(Share):
    """How much more one outcome is right than another, paired, with McNemar's p in
    column `p`."""

    less: Of = ""
    low: float = -1.0
    p: str = "mcnemar_p"

    def values(self, items: Items) -> Floats:
        return values_of(items, self.of) - values_of(items, self.less)

    def __call__(self, items: Items) -> Row:
        sides = values_of(items, self.of), values_of(items, self.less)
        return super().__call__(items) | {self.p: mcnemar_p(*sides)}


def drop(name: str, column: str) -> Gap:
    """How much more of an outcome the base has than the checkpoint."""
    return Gap(name, f"{BASE}{column}", less=column)


def flip_rate(column: str) -> Share:
    """The share of items that one side has right, and the other has not."""

    def flipped(items: Items) -> Floats:
        base, own = sides_of(items, column)
        return np.abs(base - own)

    return Share("flip_rate", flipped)


@dataclass(frozen=True)
class Lengthening(Measure):
    """The mean of a length over the base's mean, of items that both have measured. No
    length exceeds `limit`, or else the longest."""

    name: str
    of: str
    limit: float
    nothing: str = "the base's are all empty"

    def __call__(self, items: Items) -> Row:
        base, own = sides_of(items, self.of)
        if not base.any():
            return {"reason": self.nothing if len(items) else None}
        most = max(self.limit, base.max(), own.max())
        return of_mean(self.name, Ratio(own / most, base / most, contexts_of(items)))


@dataclass(frozen=True)
class Average(Measure):
    """The mean over the items that have a number, without an interval."""

    name: str
    of: Of

    def __call__(self, items: Items) -> Row:
        values, _ = known(items, self.of)
        return {self.name: float(values.mean()) if len(values) else None}

    def over_languages(self, items: Items) -> Row:
        values, items = known(items, self.of)
        if not len(values):
            return {}
        means = [values[items["language"] == each].mean() for each in items.languages]
        return {self.name: float(np.mean(means))}


@dataclass(frozen=True)
class Count(Measure):
    """The sum of a whole number an item."""

    name: str
    of: Of

    def __call__(self, items: Items) -> Row:
        return {self.name: int(known(items, self.of)[0].sum())}


@dataclass(frozen=True)
class Custom(Measure):
    """Any other function of items."""

    of: Callable[[Items], Row]

    def __call__(self, items: Items) -> Row:
        return self.of(items)


def values_of(items: Items, of: Of) -> Floats:
    return as_floats(items[of] if isinstance(of, str) else of(items))


def known(items: Items, of: Of) -> tuple[Floats, Items]:
    """The numbers of the items that have one, and these items."""
    values = values_of(items, of)
    some = ~np.isnan(values)
    return (values, items) if some.all() else (values[some], items.take(some))


def defined_in(
    measure: Measure, name: str, items: Items
) -> tuple[Items, list[Row], str | None]:
    """The items of the languages in which `measure` gives a number `name`, its row in
    each of these, and a remark on the others."""
    rows = {each: measure(items.of(each)) for each in items.languages}
    rows = {each: row for each, row in rows.items() if row.get(name) is not None}
    undefined = [each for each in items.languages if each not in rows]
    why = f"{name} is undefined in: {', '.join(undefined)}" if undefined else None
    some = np.isin(items["language"].astype(str), [*rows])
    return items.take(some), [*rows.values()], why


def correct_for_many(
    rows: Sequence[Row],
    family: Sequence[str],
    p: str = "mcnemar_p",
    adjusted: str = "holm_p",
) -> None:
    """Fill `adjusted` with Holm's correction of `p` over rows equal in `family`, all
    of which could differ."""
    families: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.get(p) is not None:
            families.setdefault(tuple(row[name] for name in family), []).append(row)
    for members in families.values():
        for row, value in zip(members, holm([row[p] for row in members]), strict=True):
            row[adjusted] = value
