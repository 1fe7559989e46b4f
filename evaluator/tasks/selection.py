"""Which items of a language are asked, and which of them deeply (protocol.md, Items and subsets). Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from evaluator.grading import normalise
from evaluator.records import Item

# The subset is part of the protocol, not of a run: every run, whatever its seed, asks the same items.
_SUBSET_SEED = 42


def select(pool: Sequence[Item], items: int) -> list[Item]:
    """The first `items` of a seeded shuffle of the pool, which is in file order; 0 means all, and so does too many."""
    shuffled = list(pool)
    random.Random(_SUBSET_SEED).shuffle(shuffled)
    return shuffled[:items] if items else shuffled


def deep_items(subset: Sequence[Item], items: int) -> int:
    """How many items, from the subset's start, the beam and sample probes are asked of.

    The first half of the number asked for: 100 of 200, rounded up so that one item is still one. A language that has
    fewer items than asked for is not halved again: of 150 items where 200 were asked for, the first 100. With
    `items` = 0 the number asked for is the whole pool.
    """
    return min(len(subset), ((items or len(subset)) + 1) // 2)


def is_excluded(item: Item) -> bool:
    """Whether grading could say nothing about the item: no gold answer, or none that normalises to any text."""
    return not any(map(normalised, item.answers))


def gold_option(item: Item) -> str:
    """The gold answer that is listed, scored and ranked: the first reference that normalises to any text.

    The item must not be excluded.
    """
    return next(filter(normalised, item.answers))


@lru_cache(maxsize=65536)
def normalised(text: str) -> str:
    """`normalise`, remembered: the answers of a pool are compared with every item of it."""
    return normalise(text)
