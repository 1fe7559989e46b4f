"""Table `overlap`: error consistency and CAPA by hand, and which pairs there are."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from evaluator.metrics.inputs import ALL, Subject
from evaluator.metrics.tables import overlap
from evaluator.metrics.tables.overlap import CAPA, ERRORS, LOST, partners
from tests.support.records import Seen, records
from tests.support.tables import has, only, pair, tables

RIGHT, WRONG = Seen(greedy=True), Seen(greedy=False)


def seen(pattern: str) -> dict[str, Seen]:
    """r: right, w: wrong, e: the engine failed, x: excluded; one item each, .: not
    asked."""
    known = {"r": RIGHT, "w": WRONG, "e": Seen(greedy=False, status="engine_error")}
    known["x"] = Seen(greedy=False, status="excluded")
    return {
        f"english/{i}": known[letter]
        for i, letter in enumerate(pattern)
        if letter != "."
    }


def overlaps(given: dict[str, dict[str, Seen]]) -> pd.DataFrame:
    return tables(
        *(
            records(name, each, base=None if name == "dense" else "dense")
            for name, each in given.items()
        )
    )["overlap"]


@pytest.fixture(scope="module")
def case():
    patterns = {"dense": "rrrrrrwwwwr", "a": "rrrwwwwwwre", "b": "rrwwwrwwwwr"}
    return overlaps({name: seen(pattern * 5) for name, pattern in patterns.items()})


def test_error_consistency_by_hand(case):
    """a and b on ten kinds of items, five of each, of which a has 4 right and b 3."""
    row = only(case, checkpoint="a", other="b", among=ALL)
    # right in both: 0, 1; wrong in both: 3, 4, 6, 7, 8; a alone right: 2, 9; b alone
    # right: 5
    has(
        row,
        n=50,
        both_wrong=25,
        wrong_here=5,
        wrong_there=10,
        observed=7 / 10,
        expected=0.4 * 0.3 + 0.6 * 0.7,
        kappa=(0.7 - 0.54) / (1 - 0.54),
    )
    assert row["kappa_low"] < row["kappa"] < row["kappa_high"]
    has(row, engine_error=5, excluded=0, unpaired=0, measure="error consistency")
    # The base has 0 to 5 right, and 10, on which a failed: a loses 3, 4, 5, b loses 2,
    # 3, 4.
    row = only(case, checkpoint="a", other="b", among=LOST)
    has(
        row,
        n=30,
        both_wrong=10,
        wrong_here=5,
        wrong_there=5,
        engine_error=5,
        kappa=(4 / 6 - 1 / 2) / (1 / 2),
    )
    assert set(case[case["among"] == ALL]["checkpoint"]) == {"dense", "a"}
    assert len(case) == 3 + 1  # the base itself lost nothing


@pytest.mark.parametrize(
    ("first", "second", "few"),
    [
        # one shared wrong item of 40 would be a kappa of 1
        ("r" * 39 + "w", "r" * 39 + "w", "wrong"),
        ("r" * 30 + "w" * 10, "r" * 36 + "w" * 4, "wrong"),
        ("w" * 36 + "r" * 4, "w" * 30 + "r" * 10, "right"),
        ("r" * 40, "r" * 40, "wrong"),
        ("r" * 35 + "w" * 5, "r" * 35 + "w" * 5, None),
    ],
)
def test_kappa_needs_five_of_either_outcome(first, second, few):
    """A kappa needs five items of either outcome in both."""
    row = only(
        pair(seen(first), seen(second))["overlap"],
        checkpoint="dense",
        other="p",
        among=ALL,
    )
    agreed = sum(one == other for one, other in zip(first, second, strict=True))
    has(row, observed=agreed / 40)
    if few is None:
        has(row, kappa=1.0, kappa_high=1.0, reason=None)
    else:
        has(
            row,
            kappa=None,
            kappa_low=None,
            kappa_high=None,
            reason=f"no kappa: fewer than 5 items {few} in one of the two",
        )


def test_overlap_counts_unpaired_items():
    """What only one was asked or could not be asked is counted."""
    found = pair(seen("rwrwx.r"), seen("rwwwrr."), dtype="bfloat16")["overlap"]
    row = only(found, checkpoint="dense", other="p")
    has(row, n=4, excluded=1, engine_error=0, unpaired=2)
    assert (
        "p: not comparable with the base: dtype float32 against bfloat16"
        in row["reason"]
    )


def answers(rng: np.random.Generator, many: int, ability: float) -> dict[str, Seen]:
    gone = rng.random(many) < 0.05
    right = rng.random(many) < ability
    return {
        f"{('english', 'korean')[i % 2]}/{i}": Seen(
            greedy=bool(right[i]), status="engine_error" if gone[i] else "ok"
        )
        for i in range(many)
    }


def chosen(*scores: tuple[float, ...]) -> dict[str, tuple[float, ...]]:
    """Of each item the log-likelihoods of its options, the gold one first."""
    return {f"english/{i}": each for i, each in enumerate(scores)}


def choices(**given: dict[str, tuple[float, ...]]) -> pd.DataFrame:
    """The table of checkpoints' choices; the gold option stands last on disk, where
    its number is not 0."""
    parts = []
    for name, scores in given.items():
        options = {
            key: Seen(choice=True, options=len(each)) for key, each in scores.items()
        }
        made = records(name, options, base=None if name == "dense" else "dense")
        for key, each in scores.items():
            here = (made["item_id"] == key.split("/")[1]).to_numpy()
            made.loc[here, "logprob"] = each
            made.loc[here, "index"] = [len(each) - 1, *range(len(each) - 1)]
        parts.append(made)
    return tables(*parts)["overlap"]


def test_capa_by_hand():
    """Five items each of two and of three options: p = (1/2, 1/2), (1/4, 1/2, 1/4);
    q = (1/4, 3/4), (1/2, 1/4, 1/4)."""
    log = np.log
    dense = chosen(*[(log(3), log(3)), (log(1), log(2), log(1))] * 5)
    found = choices(
        dense=dense, p=chosen(*[(log(1), log(3)), (log(2), log(1), log(1))] * 5)
    )
    row = only(found, checkpoint="dense", measure=CAPA)
    has(row, observed=(1 / 2 + (2 + 2 + 1) / 16) / 2)
    right, other = (1 / 2 + 1 / 4) / 2, (1 / 4 + 1 / 2) / 2
    expected = right * other + (1 - right) * (1 - other) * (1 + 1 / 2) / 2
    has(row, expected=expected, kappa=(row["observed"] - expected) / (1 - expected))
    errors = only(found, checkpoint="dense", measure=ERRORS)
    # a tie is wrong: dense has none right; p is right on the second
    has(errors, probe="choice", n=10, both_wrong=5, wrong_here=5)
    sure, unsure = (-9.0, 0.0, -9.0, -9.0), (-9.0, -9.0, 0.0, -9.0)
    found = choices(
        dense=chosen(*[sure] * 5),
        same=chosen(*[sure] * 5),
        another=chosen(*[unsure] * 5),
    )
    kappas = found.query("checkpoint == 'dense' and measure == 'CAPA'").set_index(
        "other"
    )["kappa"]
    assert kappas["same"] > 0.99
    assert kappas["another"] < 0


def test_overlap_page_shows_both_ends():
    """The page shows the ends and the file all."""
    rng = np.random.default_rng(4)
    every = overlaps(
        {"dense": answers(rng, 60, 0.8)}
        | {f"p{number}": answers(rng, 60, 0.5) for number in range(8)}
    )
    whole, shown = (
        each[each["among"] == ALL] for each in (every, overlap.TABLE.page(every))
    )
    assert len(whole) == 9 * 8 / 2
    assert len(shown) == 10
    ordered = whole["kappa"].sort_values(ascending=False).tolist()
    assert shown["kappa"].tolist() == [*ordered[:5], *ordered[-5:]]


def subject(name: str, **setting: object) -> Subject:
    nothing = dict.fromkeys(("base", "method", "pattern", "sparsity", "calibration"))
    return Subject(
        **(
            nothing
            | {"checkpoint": name, "weights_digest": name, "task": "tydiqa"}
            | setting
        )
    )


def grid(methods: int, sparsities: int) -> list[Subject]:
    made = [
        subject(
            f"m{method}-{level}",
            base="dense",
            method=f"m{method}",
            pattern="unstructured",
            sparsity=level / 1000,
        )
        for method in range(methods)
        for level in range(sparsities)
    ]
    return [subject("dense"), *made]


def test_overlap_of_many_compares_nearest_pairs(monkeypatch):
    """Every pair up to a number and then the nearest as among all."""
    found = partners(grid(9, 11))
    assert [
        (one, other) for one, others in enumerate(found) for other in others
    ] == list(combinations(range(100), 2))
    subjects = grid(4, 250)
    pairs = {
        (one, other)
        for one, others in enumerate(partners(subjects))
        for other in others
    }
    named = {
        (subjects[one].checkpoint, subjects[other].checkpoint) for one, other in pairs
    }
    assert all(one < other for one, other in pairs)
    assert {other for one, other in pairs if one == 0} == set(range(1, 1001))
    # the same method, a little sparser
    assert {("m1-7", f"m1-{level}") for level in range(8, 13)} <= named
    # other methods
    assert {
        (f"m{one}-7", f"m{other}-7") for one, other in combinations(range(4), 2)
    } <= named
    assert ("m1-7", "m1-13") not in named
    assert len(pairs) <= 1000 * (1 + 2 * overlap.NEAR)
    monkeypatch.setattr(overlap, "ALL_PAIRS", 3)
    several = [
        subject("a"),
        subject("b"),
        subject("p", base="a"),
        subject("q", base="b"),
    ]
    assert partners(several) == [[1, 2], [3], [], []]
    assert partners(several[:3]) == [[1, 2], [2], []]
    rng = np.random.default_rng(5)
    given = {"dense": answers(rng, 40, 0.8)} | {
        f"p{number}": answers(rng, 40, 0.5) for number in range(6)
    }
    whole = overlaps(given)
    monkeypatch.setattr(overlap, "ALL_PAIRS", 6)
    monkeypatch.setattr(overlap, "NEAR", 2)
    monkeypatch.setattr(overlap, "_AT_ONCE", 2)
    fewer = overlaps(given)
    assert set(fewer["reason"]) == {"of 7 checkpoints, not every pair is compared"}
    key = ["checkpoint", "other", "probe", "measure", "among"]
    beside = fewer.merge(whole, on=key, suffixes=("", "_whole"), validate="one_to_one")
    assert len(beside) == len(fewer) == 6 + 2 * (5 + 4)
    for name in set(whole) - {*key, "reason"}:
        pd.testing.assert_series_equal(
            beside[name], beside[f"{name}_whole"], check_names=False
        )
