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

KNOWN = {
    "r": Seen(greedy=True),
    "w": Seen(greedy=False),
    "e": Seen(greedy=False, status="engine_error"),
    "x": Seen(greedy=False, status="excluded"),
}


def seen(pattern: str) -> dict[str, Seen]:
    """r: right, w: wrong, e: the engine failed, x: excluded; .: not asked."""
    items = {}
    for number, letter in enumerate(pattern):
        if letter in KNOWN:
            items[f"english/{number}"] = KNOWN[letter]
    return items


def overlaps(given: dict[str, str]) -> pd.DataFrame:
    parts = []
    for name, pattern in given.items():
        base = None if name == "dense" else "dense"
        parts.append(records(name, seen(pattern), base=base))
    return tables(*parts)["overlap"]


def test_error_consistency_by_hand():
    """a and b on ten kinds of items, five of each, of which a has 4 right and b 3."""
    dense, a, b = "rrrrrrwwwwr" * 5, "rrrwwwwwwre" * 5, "rrwwwrwwwwr" * 5
    case = overlaps({"dense": dense, "a": a, "b": b})
    row = only(case, checkpoint="a", other="b", among=ALL)
    # right in both: 0, 1; wrong in both: 3, 4, 6, 7, 8; a alone right: 2, 9; b alone
    # right: 5
    has(row, n=50, both_wrong=25, wrong_here=5, wrong_there=10, observed=7 / 10)
    has(row, expected=0.4 * 0.3 + 0.6 * 0.7, kappa=(0.7 - 0.54) / (1 - 0.54))
    assert row["kappa_low"] < row["kappa"] < row["kappa_high"]
    has(row, engine_error=5, excluded=0, unpaired=0, measure="error consistency")
    # The base has 0 to 5 right, and 10, on which a failed: a loses 3, 4, 5, b loses 2,
    # 3, 4.
    row = only(case, checkpoint="a", other="b", among=LOST)
    has(row, n=30, both_wrong=10, wrong_here=5, wrong_there=5, engine_error=5)
    has(row, kappa=(4 / 6 - 1 / 2) / (1 / 2))
    # the base itself lost nothing
    has(case, checkpoint=["dense", "dense", "a", "a"], other=["a", "b", "b", "b"])


@pytest.mark.parametrize(
    ("first", "second", "few"),
    [
        # one shared wrong item of 40 would be a kappa of 1
        ("r" * 30 + "w" * 10, "r" * 36 + "w" * 4, "wrong"),
        ("w" * 36 + "r" * 4, "w" * 30 + "r" * 10, "right"),
        ("r" * 35 + "w" * 5, "r" * 35 + "w" * 5, None),
    ],
)
def test_kappa_needs_five_of_either_outcome(first, second, few):
    found = pair(seen(first), seen(second))["overlap"]
    row = only(found, checkpoint="dense", other="p", among=ALL)
    if few is None:
        has(row, observed=1.0, kappa=1.0, kappa_high=1.0, reason=None)
    else:
        why = f"no kappa: fewer than 5 items {few} in one of the two"
        has(row, observed=34 / 40, kappa=None, kappa_low=None, reason=why)


def test_overlap_counts_unpaired_items():
    """What only one was asked or could not be asked is counted."""
    found = pair(seen("rwrwx.r"), seen("rwwwrr."), dtype="bfloat16")["overlap"]
    row = only(found, checkpoint="dense", other="p")
    has(row, n=4, excluded=1, engine_error=0, unpaired=2)
    why = "p: not comparable with the base: dtype float32 against bfloat16"
    assert why in row["reason"]


def choices(**given: list[tuple[float, ...]]) -> pd.DataFrame:
    """The table of checkpoints' choices, from log-likelihoods with the gold option
    first; it stands last on disk, where its number is not 0."""
    parts = []
    for name, scores in given.items():
        items = {}
        for number, each in enumerate(scores):
            items[f"english/{number}"] = Seen(choice=True, options=len(each))
        made = records(name, items, base=None if name == "dense" else "dense")
        made["logprob"] = np.concatenate(scores)
        made["index"] = np.concatenate([np.arange(len(each)) - 1 for each in scores])
        last = made.groupby("item_id")["index"].transform("max") + 1
        made["index"] = made["index"].where(made["index"] >= 0, last)
        parts.append(made)
    return tables(*parts)["overlap"]


def test_capa_by_hand():
    """Five items each of two and of three options: p = (1/2, 1/2), (1/4, 1/2, 1/4);
    q = (1/4, 3/4), (1/2, 1/4, 1/4)."""
    two, three = np.log(2), np.log(3)
    found = choices(
        dense=[(three, three), (0.0, two, 0.0)] * 5,
        p=[(0.0, three), (two, 0.0, 0.0)] * 5,
    )
    row = only(found, checkpoint="dense", measure=CAPA)
    right, other = (1 / 2 + 1 / 4) / 2, (1 / 4 + 1 / 2) / 2
    observed = (1 / 2 + (2 + 2 + 1) / 16) / 2
    expected = right * other + (1 - right) * (1 - other) * (1 + 1 / 2) / 2
    kappa = (observed - expected) / (1 - expected)
    for name, value in (
        ("observed", observed),
        ("expected", expected),
        ("kappa", kappa),
    ):
        assert row[name] == pytest.approx(
            value
        )  # shares are stored in single precision
    errors = only(found, checkpoint="dense", measure=ERRORS)
    # a tie is wrong: dense has none right; p is right on the second
    has(errors, probe="choice", n=10, both_wrong=5, wrong_here=5)
    sure, unsure = [(-9.0, 0.0, -9.0, -9.0)] * 5, [(-9.0, -9.0, 0.0, -9.0)] * 5
    found = choices(dense=sure, same=sure, another=unsure)
    found = found[(found["checkpoint"] == "dense") & (found["measure"] == CAPA)]
    kappas = found.set_index("other")["kappa"]
    assert kappas["same"] > 0.99
    assert kappas["another"] < 0


def drawn(checkpoints: int, items: int, seed: int) -> dict[str, str]:
    rng = np.random.default_rng(seed)
    names = ["dense", *(f"p{number}" for number in range(checkpoints))]
    return {name: "".join(rng.choice([*"rrrrwwww", "e"], items)) for name in names}


def test_overlap_page_shows_both_ends():
    every = overlaps(drawn(8, 60, 4))
    whole = every[every["among"] == ALL]
    shown = overlap.TABLE.page(every)
    ordered = whole["kappa"].sort_values(ascending=False).tolist()
    assert len(ordered) == 9 * 8 / 2
    has(shown[shown["among"] == ALL], kappa=[*ordered[:5], *ordered[-5:]])


def subject(name: str, base: str | None = None, **setting: object) -> Subject:
    nothing = dict.fromkeys(("method", "pattern", "sparsity", "calibration"))
    named = {"checkpoint": name, "weights_digest": name, "task": "t", "base": base}
    return Subject(**(nothing | named | setting))


def test_nearest_pairs_of_many():
    """Every pair up to a number of checkpoints, and then the nearest."""
    few = [subject(f"c{number}") for number in range(100)]
    found = partners(few)
    every = [(one, other) for one in range(100) for other in found[one]]
    assert every == list(combinations(range(100), 2))
    subjects = [subject("dense")]
    for method in range(4):
        for level in range(250):
            setting = {"method": f"m{method}", "sparsity": level / 1000}
            subjects.append(subject(f"m{method}-{level}", "dense", **setting))
    found = partners(subjects)
    assert found[0] == list(range(1, 1001))
    # m1-7: the same method, a little sparser; then m2-6, m2-7, m2-8, m3-6, m3-7
    assert found[258] == [*range(259, 264), 507, 508, 509, 757, 758]
    assert 258 in found[8]


def test_rows_of_nearest_pairs(monkeypatch):
    """Fewer pairs have the numbers that they have among all."""
    given = drawn(6, 40, 5)
    whole = overlaps(given)
    monkeypatch.setattr(overlap, "ALL_PAIRS", 6)
    monkeypatch.setattr(overlap, "NEAR", 2)
    fewer = overlaps(given)
    why = "of 7 checkpoints, not every pair is compared"
    assert fewer["reason"].str.startswith(why).all()
    key = ["checkpoint", "other", "probe", "measure", "among"]
    beside = whole.merge(fewer[key], on=key)
    assert len(beside) == len(fewer) == 6 + 2 * (5 + 4)
    numbers = ["n", "both_wrong", "observed", "kappa", "kappa_low"]
    pd.testing.assert_frame_equal(beside[numbers], fewer[numbers])
