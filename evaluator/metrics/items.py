"""The items of one checkpoint on one task and in one format, and beside each what its
base did with it.

    items["produced"]           the checkpoint's outcome of each item
    items["base_produced"]      its base's of the same item
    items.measured("greedy")    which items this probe measured; both=True: in both
    items.take(flags)           some of them
    items.of("finnish")         those of one language, or of a group

A column is an array with a value an item: floats with NaN, or texts with None. It is
read when it is asked for. The columns are those of `evaluator.store.outcomes`, and

    item, context               the number of the item in its task, and of its context:
                                items of one context depend on each other
    language
    groups                      the user's, as `team=billing`; None: no group
    asked, base_asked           whether there is a record"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from evaluator.core.records import is_group
from evaluator.metrics.columns import Row
from evaluator.metrics.intervals import Floats, ItemNumbers
from evaluator.store.outcomes import MEASURED
from evaluator.tasks.loading import NO_LANGUAGES

# the row that pools the languages; the unweighted mean over them
ALL, MEAN = NO_LANGUAGES
BASE = "base_"  # before the name of a column: that of the base
# equal in checkpoint and base
OF_ITEM = ("item", "language", "item_id", "context", "groups")
Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
NO_REASON = "the records do not say why"
STATUSES = {"excluded": "excluded", "engine_error": "failed"}  # and their words


class Items:
    """Columns of equal length, read when they are asked for."""

    def __init__(self, read: Callable[[str], Array]) -> None:
        # no method of this object, which may hold what is taken from it: cycles last
        self._column = partial(_remembered, read, {})

    @classmethod
    def of_columns(cls, columns: Mapping[str, Any]) -> "Items":
        return cls(
            {name: np.asarray(each) for name, each in columns.items()}.__getitem__
        )

    def __getitem__(self, name: str) -> Array:
        return self._column(name)

    def __len__(self) -> int:
        return len(self["item"])

    def has(self, name: str) -> Flags:
        """Which items have a value in this column."""
        return np.asarray(pd.notna(self[name]))

    def take(self, rows: Flags | ItemNumbers | slice) -> "Items":
        """Some of the items, in the order of the rows, which may repeat."""
        column = self._column
        return Items(lambda name: column(name)[rows])

    def beside(self, prefix: str, other: "Items") -> "Items":
        """The same items with the columns of others, found by number, under a
        prefix."""
        order = np.argsort(other["item"])
        at = np.searchsorted(other["item"], self["item"], sorter=order)
        rows = np.append(order, -1)[at]  # -1: the last of `values` below
        rows[np.append(other["item"], -1)[rows] != self["item"]] = -1

        def read(name: str) -> Array:
            if not name.startswith(prefix):
                return self[name]
            return at_rows(other[name.removeprefix(prefix)], rows)

        return Items(read)

    @property
    def of_base(self) -> "Items":
        """The same items, with the base's outcomes as their own."""
        return Items(lambda name: self[name if name in OF_ITEM else f"{BASE}{name}"])

    def of(self, cut: str) -> "Items":
        """The items of a language or of a group, or all of them."""
        if cut == ALL:
            return self
        rows = self._rows_of.get(cut, slice(0, 0))
        if cut not in self._rows_of and is_group(cut):
            rows = np.array(self._rows_in.get(cut, ()), np.intp)
        return self.take(rows)

    @cached_property
    def _rows_in(self) -> Mapping[str, Sequence[int]]:
        """The rows of each group."""
        found: dict[str, list[int]] = {}
        for row, groups in enumerate(self["groups"]):
            for group in groups or ():
                found.setdefault(group, []).append(row)
        return found

    @cached_property
    def _rows_of(self) -> Mapping[str, ItemNumbers | slice]:
        """The rows of each language: a slice where they follow each other."""
        codes, names = pd.factorize(self["language"])
        rows_of: dict[str, ItemNumbers | slice] = {}
        for code, name in enumerate(names):
            rows = np.flatnonzero(codes == code)
            together = rows[-1] - rows[0] == len(rows) - 1
            rows_of[name] = slice(rows[0], rows[-1] + 1) if together else rows
        return rows_of

    @property
    def languages(self) -> list[str]:
        return sorted(self._rows_of)

    def slices(self, cuts: Sequence[str]) -> "Iterator[tuple[str, Items]]":
        """All items, then those of each language or group (may be empty)."""
        for cut in (ALL, *cuts):
            yield cut, self.of(cut)

    @cached_property
    def both(self) -> "Items":
        """The items that checkpoint and base have records of."""
        return self.take(self["asked"] & self["base_asked"])

    def measured(self, *probes: str, both: bool = False) -> "Items":
        """The items that all of these probes measured; `both`: in the base too."""
        keep = self.having(statuses_of(probes, both=both), *MEASURED)
        return self if keep.all() else self.take(keep)

    def having(self, columns: Iterable[str], *statuses: str) -> Flags:
        """Which items have one of these statuses in all of the columns."""
        found = np.ones(len(self), dtype=np.bool_)
        for column in columns:
            found &= np.logical_or.reduce(
                [self[column] == status for status in statuses]
            )
        return found

    def any_ran(self, *probes: str) -> bool:
        """Whether the checkpoint ran one of these probes."""
        return any(self.has(f"{probe}_status").any() for probe in probes)

    def left_out(self, *columns: str) -> Row:
        """How many items any of these columns of statuses excluded, and on how many
        others the engine failed."""
        counts, left = {}, np.ones(len(self), dtype=np.bool_)
        for status in STATUSES:
            flags = [self[column] == status for column in columns]
            out = left & np.logical_or.reduce(flags)
            counts[status], left = int(out.sum()), left & ~out
        return counts

    def why_left_out(self, *columns: str) -> str | None:
        """`3 excluded (reason); 1 failed (message)`, most frequent first, of the
        columns of statuses; an item once."""
        parts: list[str] = []
        left = np.ones(len(self), dtype=np.bool_)
        for status, word in STATUSES.items():
            flags = [left & (self[column] == status) for column in columns]
            out = np.logical_or.reduce(flags)
            if not out.any():
                continue
            why = np.full(len(self), None, dtype=object)
            for column, here in zip(columns, flags, strict=True):
                texts = self[column.removesuffix("_status") + "_why"]
                here = here & np.asarray(pd.isna(why))
                why[here] = texts[here]
            reasons = Counter(text or NO_REASON for text in why[out])
            for reason in sorted(reasons, key=lambda text: (-reasons[text], text)):
                parts.append(f"{reasons[reason]} {word} ({reason})")
            left &= ~out
        return joined_reasons(*parts)


def statuses_of(probes: Iterable[str], *, both: bool = False) -> list[str]:
    """The columns with the statuses of these probes; `both`: the base's too."""
    sides = (BASE, "") if both else ("",)
    return [f"{side}{probe}_status" for probe in probes for side in sides]


def sides_of(items: Items, column: str) -> tuple[Floats, Floats]:
    """A column of numbers, of the base and of the checkpoint."""
    return items[f"{BASE}{column}"], items[column]


def _remembered(
    read: Callable[[str], Array], columns: dict[str, Array], name: str
) -> Array:
    column = columns.get(name)
    if column is None:
        column = columns[name] = read(name)
    return column


def at_rows(values: Array, rows: ItemNumbers) -> Array:
    """The values of these rows; -1: a missing one."""
    missing: Any = None if values.dtype == object else np.nan
    found: Array = np.append(values, missing)[rows]
    return found


def within(numbers: ItemNumbers) -> Callable[[Items], Flags]:
    """Which items have one of these numbers."""
    return lambda items: np.isin(items["item"], numbers)


def joined_reasons(*reasons: str | None) -> str | None:
    return "; ".join(dict.fromkeys(filter(None, reasons))) or None
