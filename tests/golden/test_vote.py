"""Table `vote`: the rules against loops over their definitions, and an election by
hand."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.stats import rankdata

from evaluator.metrics.tables.vote import count_votes
from tests.support.records import Seen, records
from tests.support.tables import has, only, tables


@pytest.mark.parametrize("seed", range(20))
def test_the_rules_are_their_definitions(seed):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, (rng.integers(2, 7), rng.integers(2, 9))).astype(float)
    many = len(scores)
    borda, wins, defeats = np.zeros(many), np.zeros(many), np.zeros(many)
    for a, b in product(range(many), repeat=2):
        if a == b:
            continue
        for_a, for_b = (scores[a] > scores[b]).sum(), (scores[b] > scores[a]).sum()
        borda[a] += for_a + (scores[a] == scores[b]).sum() / 2
        wins[a] += int(for_a > for_b) - int(for_a < for_b)
        defeats[a] = max(defeats[a], for_b if for_b > for_a else 0)
    ranks = rankdata(-scores, axis=0).mean(axis=1)
    wanted = {"mean_rank": ranks, "borda": borda, "copeland": wins}
    wanted |= {"worst_defeat": defeats}
    for name, values in count_votes(scores).items():
        assert values.tolist() == wanted[name].tolist(), name


def seen(**right: int) -> dict[str, Seen]:
    """Of ten items of each language, the first so many are right."""
    items = {}
    for name, count in right.items():
        items |= {f"{name}/{i}": Seen(greedy=i < count) for i in range(10)}
    return items


def answers(name: str, given: dict[str, Seen], **more: str) -> pd.DataFrame:
    return records(name, given, base=None if name == "dense" else "dense", **more)


def elected(**given: dict[str, Seen]) -> pd.DataFrame:
    return tables(*(answers(name, each) for name, each in given.items()))["vote"]


def test_an_election_by_hand():
    """english: dense > a > b; korean: a = b > dense; swahili: a > dense > b."""
    found = elected(
        dense=seen(english=9, korean=1, swahili=5),
        a=seen(english=2, korean=2, swahili=6),
        b=seen(english=1, korean=2, swahili=4),
    )
    has(found, accuracy=[15 / 30, 10 / 30, 7 / 30], accuracy_place=[1, 2, 3])
    has(found, borda=[2 + 0 + 1, 1 + 1.5 + 2, 0 + 1.5 + 0], borda_place=[2, 1, 3])
    has(found, mean_rank=[6 / 3, 4.5 / 3, 7.5 / 3], voters=[3, 3, 3], n=[30, 30, 30])
    # a beats dense 2 to 1 and b 2 to 0; dense beats b 2 to 1
    has(found, copeland=[0, 2, -2], copeland_place=[2, 1, 3])
    has(found, worst_defeat=[2, 0, 2], minimax_place=[2, 1, 2])
    has(found, ties=["minimax with 1", None, "minimax with 1"])
    assert (found["accuracy_low"] < found["accuracy"]).all()
    assert (found["accuracy"] < found["accuracy_high"]).all()


def test_votes_use_shared_items():
    """Only items that all measured count and who lacks a voter is not ranked."""
    failed = {"korean/0": Seen(greedy=False, status="engine_error")}
    found = elected(
        dense=seen(english=9, korean=3, swahili=5),
        cut=seen(english=9, korean=3, swahili=4) | failed,
        part=seen(english=9),
    )
    ranked = found[found["checkpoint"] != "part"]
    # without korean/0, dense and cut have 2 of 9 right in korean
    has(ranked, accuracy=[(0.9 + 2 / 9 + 0.5) / 3, (0.9 + 2 / 9 + 0.4) / 3])
    has(ranked, n=[29, 29], borda=[0.5 + 0.5 + 1, 0.5 + 0.5 + 0])
    why = "not ranked: it has items for 1 of 3 voters"
    part = only(found, checkpoint="part")
    has(part, reason=why, borda_place=None, voters=1, n=0)


def test_tasks_vote_together_and_alone():
    """Several tasks vote together and each for itself but once under several prompts."""
    dense = [answers("dense", seen(english=5, korean=5))]
    dense.append(answers("dense", seen(english=5), task="u"))
    own = [answers("p", seen(english=4, korean=6))]
    own.append(answers("p", seen(english=4), task="u", dtype="bfloat16"))
    found = tables(*dense, *own)["vote"]
    # u has one language: no election of its own
    has(found, task=["all", "all", "t", "t"], borda=[2, 1, 1, 1])
    ties = "accuracy with 1, borda with 1, copeland with 1, minimax with 1"
    has(found.iloc[2:], ties=[ties, ties])
    why = "not comparable with the base: dtype float32 against bfloat16"
    has(only(found, task="all", checkpoint="p"), reason=why)
    has(only(found, task="t", checkpoint="p"), reason=None)
    other = [answers(name, seen(english=3), task="t+x") for name in ("dense", "p")]
    prompts = tables(dense[0], own[0], *other)["vote"]
    assert set(prompts["task"]) == {"t"}
    again = tables(*dense, *own, *other)["vote"]
    has(again[again["task"] == "all"], n=[30, 30])


@pytest.mark.parametrize(
    "given",
    [
        {"dense": seen(english=5, korean=5)},
        {"dense": seen(english=5), "p": seen(english=4)},
    ],
)
def test_one_voter_is_no_election(given):
    parts = [answers(name, each) for name, each in given.items()]
    filled = tables(*parts).fill("vote")
    assert (filled.rows, filled.note, filled.lacks) == ([], "", "")
