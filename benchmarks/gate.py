"""How often the gate decides and how often it errs, on checkpoints whose true loss is
known: prints the table of docs/gate.md.

    python -m benchmarks.gate [RUNS]

A made-up base knows the answers to 80 % of the items. It says and picks them. Its
checkpoint gains 1 % of the items and loses as many, besides the loss: it still picks
what it no longer says."""

import sys

import numpy as np

from benchmarks.harness import print_table
from evaluator.deciding.criteria import Paired
from evaluator.deciding.decision import decide
from evaluator.deciding.thresholds import Thresholds

KNOWN, FLIPS = 0.8, 0.01
LOSS = 0.06  # which a user would notice
# Items, languages and items of a context. Of five items a context, which end alike, a run
# decides as one of a fifth of the items.
WORLDS = ((200, 1, 1), (1000, 1, 1), (1000, 12, 1), (5000, 12, 1))
# Judges the loss of open answers, and little else.
ONLY_DROP = Thresholds(max_drop=2.0, max_mc_only=None, max_lost=None, languages=False)
COLUMNS = (
    "items",
    "languages",
    "PASS, nothing lost",
    "BLOCK, 6 points lost",
    "wrong PASS, exactly 2 points lost (at most 5)",
    "wrong BLOCK, nothing lost (at most 1)",
)


def draw(world: tuple[int, int, int], loss: float, rng: np.random.Generator) -> Paired:
    """A run in which `loss` is the share of all items that is truly lost. The items of
    a context end alike."""
    items, languages, size = world
    contexts = np.arange(items) // size
    knows, loses, gains = rng.random((3, contexts[-1] + 1))[:, contexts]
    known = knows < KNOWN
    kept = loses >= (loss + FLIPS) / KNOWN
    gained = gains < FLIPS / (1 - KNOWN)
    base = known.astype(np.float64)
    every = np.ones(items, dtype=bool)
    names = np.array([f"l{number:02}" for number in range(languages)], dtype=object)
    said = np.where(known, kept, gained).astype(np.float64)
    return Paired.of_answers(
        names[contexts % languages],
        contexts,
        {"open": (base, said, every), "choice": (base, base, every)},
    )


def share(
    world: tuple[int, int, int],
    loss: float,
    verdict: str,
    runs: int,
    thresholds: Thresholds | None = None,
) -> float:
    """The share of runs that end with the verdict."""
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(runs):
        decision = decide(draw(world, loss, rng), thresholds or Thresholds())
        ended += decision.outcome == verdict
    return ended / runs


def main(runs: int) -> None:
    rows = []
    for world in WORLDS:
        shares = (
            share(world, 0.0, "PASS", runs),
            share(world, LOSS, "BLOCK", runs),
            share(world, 0.02, "PASS", runs, ONLY_DROP),
            share(world, 0.0, "BLOCK", runs),
        )
        rows.append((*world[:2], *(f"{100 * each:.1f} %" for each in shares)))
    print_table(f"verdicts in {runs} runs", COLUMNS, rows, left=0)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
