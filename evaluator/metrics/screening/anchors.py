"""Which items are asked first: a sample of the base's items in which every language, and within it every kind of
behaviour of the base, has its share.

Only the base's answers are known by then. Clusters of items with one anchor and a weight each (tinyBenchmarks, arXiv
2402.14992) need many models' answers to the items, and give an estimate without a valid interval. So the items are put
in an order in which neighbours are alike to the base, and drawn by the ordered pivotal method: each with the same
probability, nearly evenly over that order (Deville and Tille, Biometrika 85, 1998; Chauvet, Bernoulli 18, 2012). Plain
means of such a sample are unbiased for the whole, and vary no more than those of independent draws.
"""

from __future__ import annotations

import zlib

import numpy as np
import pandas as pd

from evaluator.metrics.intervals import ItemNumbers

# What the base did with an item, the coarsest first: was it right, and how sure was it.
_LIKENESS = ("language", "produced", "recognised", "choice_margin", "answer_logprob")


def draw_anchors(base: pd.DataFrame, count: int, seed: int, task: str) -> ItemNumbers:
    """The places of `count` anchors among the base's outcomes (of all of them where there are no more), in order.

    They depend on these outcomes, the seed and the task's name alone, not on the order of the rows.
    """
    if count >= len(base):
        return np.arange(len(base))
    named = base.reset_index(drop=True).sort_values(["language", "item_id"])
    rng = np.random.default_rng([seed, zlib.crc32(task.encode())])
    shuffled = named.assign(shuffled=rng.permutation(len(named)))  # of what is alike in all, any may be next
    order = shuffled.sort_values([*_LIKENESS, "shuffled"]).index.to_numpy()
    return np.sort(order[pivotal(len(order), count, rng)])


def pivotal(total: int, count: int, rng: np.random.Generator) -> ItemNumbers:
    """`count` of `total` places: each with probability count / total, and about one in each total / count of them.

    One after another meets the one that is still undecided: one of the two is then in or out, and the other has the
    chances that are left. They are integers, in units of 1 / total, so that nothing is lost by rounding. Raises
    ValueError where it is not fewer than all.
    """
    if not 0 < count < total:
        raise ValueError(f"{count} of {total}")
    chosen: list[int] = []
    undecided, chance = 0, count
    for place in range(1, total):
        both = chance + count
        if both < total:  # one of them is out, the other has the chances of both
            undecided = place if rng.integers(both) < count else undecided
            chance = both
        else:  # one of them is in, the other has what is left
            left = 2 * total - both
            won = undecided if left and rng.integers(left) < total - count else place
            undecided, chance = (place if won == undecided else undecided), both - total
            chosen.append(won)
    return np.asarray(sorted(chosen), dtype=np.intp)
