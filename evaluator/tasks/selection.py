"""Which items of a language are asked, and which of them deeply (The Benchmark Illusion, arXiv 2606.17609). Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from evaluator.core.records import Item
from evaluator.core.text import normalise

# The subset is part of the protocol, not of a run: every run, whatever its seed, asks the same items.
_SUBSET_SEED = 42
# Beam and sample run on the first 100 items of a language only.
DEEP_ITEMS = 100


def select(pool: Sequence[Item], items: int) -> list[Item]:
    """The first `items` of a seeded shuffle of the pool, which is in file order; 0 means all, and so does too many."""
    shuffled = list(pool)
    random.Random(_SUBSET_SEED).shuffle(shuffled)
    return shuffled[:items] if items else shuffled


def is_excluded(item: Item) -> bool:
    """Whether grading could say nothing about the item: no gold answer, or none that normalises to any text."""
    return not any(map(normalised, item.answers))


def gold_option(item: Item) -> str:
    """The gold answer that is listed, scored and ranked: the first answer that normalises to any text.

    The item must not be excluded.
    """
    return next(filter(normalised, item.answers))


@lru_cache(maxsize=65536)
def normalised(text: str) -> str:
    """`normalise`, remembered: the answers of a pool are compared with every item of it."""
    return normalise(text)
