"""Table `vote`: the rules against loops over their definitions, and an election by
hand."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.stats import rankdata

from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.metrics.tables.vote import count_votes
from tests.support.records import Seen, records
from tests.support.tables import has, only, tables


@pytest.mark.parametrize("seed", range(20))
def test_the_rules_are_their_definitions(seed):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, (rng.integers(2, 7), rng.integers(2, 9))).astype(float)
    many, voters = scores.shape
    below = [
        [sum((a > b) + (a == b) / 2 for b in scores[:, v]) - 0.5 for a in scores[:, v]]
        for v in range(voters)
    ]
    found = count_votes(scores)
    assert found["borda"].tolist() == np.sum(below, axis=0).tolist()
    wins, defeats = np.zeros(many), np.zeros(many)
    for a, b in product(range(many), repeat=2):
        for_a, for_b = (
            sum(scores[x, v] > scores[y, v] for v in range(voters))
            for x, y in ((a, b), (b, a))
        )
        wins[a] += int(for_a > for_b) - int(for_a < for_b)
        defeats[a] = max(defeats[a], for_b if for_b > for_a else 0)
    assert found["copeland"].tolist() == wins.tolist()
    assert found["worst_defeat"].tolist() == defeats.tolist()
    assert (
        found["mean_rank"].tolist() == rankdata(-scores, axis=0).mean(axis=1).tolist()
    )


VOTERS = (("dense", 9, None), ("a", 2, "dense"))


def seen(**right: int) -> dict[str, Seen]:
    return {
        f"{name}/{i}": Seen(greedy=i < count)
        for name, count in right.items()
        for i in range(10)
    }


def elected(**given: dict[str, Seen]) -> pd.DataFrame:
    made = (
        records(name, each, base=None if name == "dense" else "dense")
        for name, each in given.items()
    )
    return tables(*made)["vote"]


def test_an_election_by_hand():
    """english: dense > a > b; korean: a = b > dense; swahili: a > dense > b."""
    right = {"dense": (9, 1, 5), "a": (2, 2, 6), "b": (1, 2, 4)}
    names = ("english", "korean", "swahili")
    found = elected(
        **{
            name: seen(**dict(zip(names, counts, strict=True)))
            for name, counts in right.items()
        }
    )
    assert found["accuracy"].tolist() == pytest.approx([15 / 30, 10 / 30, 7 / 30])
    assert found["accuracy_place"].tolist() == [1, 2, 3]
    assert found["borda"].tolist() == [2 + 0 + 1, 1 + 1.5 + 2, 0 + 1.5 + 0]
    assert found["mean_rank"].tolist() == pytest.approx([6 / 3, 4.5 / 3, 7.5 / 3])
    assert found["borda_place"].tolist() == [2, 1, 3]
    # a beats dense 2 to 1 and b 2 to 0; dense beats b 2 to 1
    assert found["copeland"].tolist() == [0, 2, -2]
    assert found["worst_defeat"].tolist() == [2, 0, 2]
    assert found["minimax_place"].tolist() == [2, 1, 2]
    assert found["ties"].fillna("").tolist() == ["minimax with 1", "", "minimax with 1"]
    assert found["voters"].tolist() == [3, 3, 3]
    assert found["n"].tolist() == [30, 30, 30]
    assert (
        (found["accuracy_low"] < found["accuracy"])
        & (found["accuracy"] < found["accuracy_high"])
    ).all()


def test_votes_use_shared_items():
    """Only items that all measured count and who lacks a voter is not ranked."""
    cut = seen(english=9, korean=3, swahili=4) | {
        "korean/0": Seen(greedy=False, status="engine_error")
    }
    found = elected(
        dense=seen(english=9, korean=3, swahili=5), cut=cut, part=seen(english=9)
    )
    ranked = found[found["checkpoint"] != "part"]
    # without korean/0, dense and cut have 2 of 9 right in korean
    assert ranked["accuracy"].tolist() == pytest.approx(
        [(0.9 + 2 / 9 + 0.5) / 3, (0.9 + 2 / 9 + 0.4) / 3]
    )
    assert ranked["n"].tolist() == [29, 29]
    assert ranked["borda"].tolist() == [0.5 + 0.5 + 1, 0.5 + 0.5 + 0]
    left_out = only(found, checkpoint="part")
    has(
        left_out,
        reason="not ranked: it has items for 1 of 3 voters",
        borda_place=None,
        voters=1,
        n=0,
    )


def test_tasks_vote_together_and_alone():
    """Several tasks vote together and each for itself but once under several prompts."""
    parts = []
    for name, base, english, korean in (("dense", None, 5, 5), ("p", "dense", 4, 6)):
        parts.append(records(name, seen(english=english, korean=korean), base=base))
        parts.append(
            records(
                name,
                seen(english=english),
                base=base,
                task="u",
                dtype="bfloat16" if base else "float32",
            )
        )
    found = (
        TABLES["vote"]
        .fill(Inputs(pd.concat([reduce_records(part) for part in parts])))
        .frame
    )
    # u has one language: no election of its own
    assert found["task"].tolist() == ["all", "all", "t", "t"]
    assert found["borda"].tolist() == [2, 1, 1, 1]
    assert (
        found["ties"].tolist()[2:]
        == ["accuracy with 1, borda with 1, copeland with 1, minimax with 1"] * 2
    )
    labelled = only(found, task="all", checkpoint="p")["reason"]
    assert labelled == "not comparable with the base: dtype float32 against bfloat16"
    assert pd.isna(only(found, task="t", checkpoint="p")["reason"])
    plain = [
        records(name, seen(english=count, korean=5), base=base)
        for name, count, base in VOTERS
    ]
    other = [
        records(name, seen(english=3, korean=4), base=base, task="s")
        for name, _, base in VOTERS
    ]
    turned = [
        records(name, seen(english=9 - count, korean=5), base=base, task="t+x")
        for name, count, base in VOTERS
    ]
    found, alone = (
        tables(*parts)["vote"]
        for parts in ((*plain, *other, *turned), (*plain, *other))
    )
    pooled = found[found["task"] == "all"].reset_index(drop=True)
    pd.testing.assert_frame_equal(
        pooled, alone[alone["task"] == "all"].reset_index(drop=True)
    )
    assert set(found["task"]) == {"all", "t", "s", "t+x"}
    apart = tables(*plain, *turned)["vote"]
    assert set(apart["task"]) == {"t", "t+x"}


@pytest.mark.parametrize(
    "given",
    [
        {"dense": seen(english=5, korean=5)},
        {"dense": seen(english=5), "p": seen(english=4)},
    ],
)
def test_one_voter_is_no_election(given):
    """One checkpoint or one language is no election."""
    parts = [
        records(name, each, base="dense" if name == "p" else None)
        for name, each in given.items()
    ]
    outcomes = pd.concat([reduce_records(part) for part in parts])
    filled = TABLES["vote"].fill(Inputs(outcomes))
    assert filled.frame.empty
    assert (filled.note, filled.lacks) == ("", "")
