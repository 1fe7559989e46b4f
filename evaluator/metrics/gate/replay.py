"""A sequential test on data that are there already: where would the gate have stopped, and with which verdict?

tried = replay(paired, Thresholds(), first=100, repeats=2000)
tried.median, tried.share("PASS")
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evaluator.metrics.gate.decision import Name, Outcome, decide
from evaluator.metrics.gate.looks import in_order, looks
from evaluator.metrics.gate.paired import Paired
from evaluator.thresholds import Thresholds


@dataclass(frozen=True)
class Replay:
    """The verdict of each try, and how many items it took."""

    outcomes: tuple[Outcome, ...]
    costs: tuple[int, ...]

    @property
    def median(self) -> float:
        """Items that half of the tries need at most."""
        return float(np.median(self.costs))

    def share(self, outcome: Outcome) -> float:
        return self.outcomes.count(outcome) / len(self.outcomes)


def replay(paired: Paired, thresholds: Thresholds, *, first: int, repeats: int, seed: int = 0) -> Replay:
    """Draw the contexts of the data anew, with replacement and in random order, and stop as a screened sweep does."""
    rng = np.random.default_rng(seed)
    found = [stopped(redrawn(paired, rng), thresholds, first, rng) for _ in range(repeats)]
    return Replay(tuple(outcome for outcome, _ in found), tuple(cost for _, cost in found))


def stopped(paired: Paired, thresholds: Thresholds, first: int, rng: np.random.Generator) -> tuple[Outcome, int]:
    """The verdict of a screened sweep over these items, and how many it takes."""
    ordered = paired.at(in_order(paired.contexts, paired.languages, rng))
    sizes = looks(ordered.contexts, first)
    passed: frozenset[Name] = frozenset()
    for size in sizes:
        decision = decide(ordered.at(np.arange(size)), thresholds, sizes=sizes, passed=passed)
        if decision.outcome != "WARN":
            break
        passed = decision.within
    return decision.outcome, size


def redrawn(paired: Paired, rng: np.random.Generator) -> Paired:
    """As many contexts, each drawn from the data's at random. A context that was drawn twice is two contexts."""
    rows = np.argsort(paired.contexts, kind="stable")
    _, starts, counts = np.unique(paired.contexts[rows], return_index=True, return_counts=True)
    drawn = rng.integers(len(starts), size=len(starts))
    places = np.concatenate([rows[starts[each] : starts[each] + counts[each]] for each in drawn])
    found = paired.at(places)
    return replace(found, contexts=np.repeat(np.arange(len(drawn)), counts[drawn]))
