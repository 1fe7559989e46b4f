"""Tables `prompts` and `prompt_order` from records by hand: three prompts, three
checkpoints, two languages."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest, chi2

from evaluator.metrics.intervals import ALPHA
from evaluator.metrics.tables import prompt_order
from evaluator.metrics.tables.prompt_order import cochran_p
from tests.support.records import Seen, records
from tests.support.tables import has, only, select, tables

TASKS = {"paper": "t", "terse": "t+terse", "wordy": "t+wordy"}
# Of ten items in English and ten in Korean, the first so many are right under paper,
# terse and wordy.
RIGHT = {
    "dense": {"english": (9, 8, 9), "korean": (9, 8, 1)},
    "a": {"english": (2, 8, 9), "korean": (2, 8, 9)},
    "b": {"english": (2, 3, 3), "korean": (2, 2, 0)},
}


def seen(counts: dict[str, int], items: int = 10) -> dict[str, Seen]:
    return {
        f"{name}/{i}": Seen(greedy=i < count)
        for name, count in counts.items()
        for i in range(items)
    }


def parts(name: str, of: str | None = None, **own: str | None) -> list[pd.DataFrame]:
    """A checkpoint's records under each prompt, by the numbers of `of` (or its own)."""
    own = {"base": None if name == "dense" else "dense"} | own
    english, korean = RIGHT[of or name].values()
    asked = zip(TASKS.values(), english, korean, strict=True)
    return [
        records(name, seen({"english": one, "korean": other}), task=task, **own)
        for task, one, other in asked
    ]


def everything() -> list[pd.DataFrame]:
    return [part for name in RIGHT for part in parts(name)]


@pytest.fixture(scope="module")
def case():
    return tables(*everything())


def test_each_prompt_and_all_of_them(case):
    found = case["prompts"]
    rows = select(found, checkpoint="dense").set_index("prompt")
    assert list(rows.index) == ["all", "paper", "terse", "wordy"]
    assert set(rows["task"]) == {"t"}
    assert rows["accuracy"].tolist() == pytest.approx(
        [(18 + 16 + 10) / 60, 18 / 20, 16 / 20, 10 / 20]
    )
    assert rows["n"].tolist() == [20, 20, 20, 20]
    assert rows["prompts"].tolist() == [3, 3, 3, 3]
    whole = rows.loc["all"]
    has(whole, worst=0.5, worst_prompt="wordy", best_prompt="paper", spread=0.4)
    # Cochran: items with 3, 2, 1, 0 right prompts. English: 8 of 3, one of 2 (paper,
    # wordy), one of 0. Korean: one of 3, seven of 2 (paper, terse), one of 1 (paper),
    # one of 0.
    q = 2 * (3 * (18**2 + 16**2 + 10**2) - 44**2) / (3 * 44 - (9 * 9 + 8 * 4 + 1))
    has(whole, cochran_p=chi2.sf(q, 2))
    # Ten contexts in two languages, nine right in both and one in neither: the exact
    # interval of 9 of 10.
    paper, exact = rows.loc["paper"], binomtest(9, 10).proportion_ci(method="exact")
    has(paper, accuracy_low=exact.low, accuracy_high=exact.high)
    assert whole["worst_low"] < whole["worst"] < whole["worst_high"]
    assert whole["spread_low"] <= whole["spread"] <= whole["spread_high"]
    korean = only(found, checkpoint="dense", language="korean", prompt="all")
    has(korean, accuracy=18 / 30, worst=0.1, spread=0.8, n=10)


def test_the_order_of_two_checkpoints(case):
    found = case["prompt_order"]
    pairs = found[["checkpoint", "other", "pair"]].drop_duplicates().to_numpy().tolist()
    assert pairs == [
        ["a", "dense", "base"],
        ["b", "dense", "base"],
        ["a", "b", "others"],
    ]
    rows = found[(found["checkpoint"] == "a") & (found["other"] == "dense")].set_index(
        "prompt"
    )
    assert rows["difference"].tolist() == pytest.approx(
        [(4 - 18 + 16 - 16 + 18 - 10) / 60, -14 / 20, 0.0, 8 / 20]
    )
    assert rows["shift"].tolist()[1:] == pytest.approx(
        [-14 / 20 + 0.1, 0.1, 8 / 20 + 0.1]
    )
    # McNemar: 14, 0 and 8 discordant items, all of them on one side. Holm over a and b
    # against dense.
    assert rows["mcnemar_p"].tolist()[1:] == pytest.approx(
        [2 * 0.5**14, 1.0, 2 * 0.5**8]
    )
    other = found[(found["checkpoint"] == "b") & (found["other"] == "dense")].set_index(
        "prompt"
    )
    # b: 4, 5 and 3 of 20, against 18, 16 and 10; under wordy 7 items are right in dense
    # alone.
    assert other["mcnemar_p"].tolist()[1:] == pytest.approx(
        [2 * 0.5**14, 2 * 0.5**11, 2 * 0.5**7]
    )
    assert other["holm_p"].tolist()[1:] == pytest.approx(
        [4 * 0.5**14, 4 * 0.5**11, 2 * 0.5**7]
    )
    assert rows["holm_p"].tolist()[1:] == pytest.approx([4 * 0.5**14, 1.0, 4 * 0.5**8])
    assert rows["verdict"].tolist()[1:] == ["worse", "unclear", "better"]
    whole = rows.loc["all"]
    has(
        whole,
        conclusion="different",
        order_changes=True,
        better_under="wordy",
        worse_under="paper",
        unclear_under="terse",
    )
    assert (other.loc["all", "conclusion"], other.loc["all", "order_changes"]) == (
        "same",
        False,
    )
    assert other.loc["all", "worse_under"] == "paper, terse, wordy"
    between = only(found, checkpoint="a", other="b", prompt="all")
    # 4 of 20 each
    has(between, conclusion="unclear", unclear_under="paper")
    assert (rows["shift_low"][1:] < rows["shift"][1:]).all()
    assert (rows["shift"][1:] < rows["shift_high"][1:]).all()


@pytest.mark.parametrize(
    ("dense", "pruned", "items", "concluded"),
    [
        ((12, 11), (11, 11), 20, ("unclear", "unclear under every prompt")),
        # Of 20 items 6 and 4 are right in dense alone: p = .031 and .125. The shift is
        # 2 items of 40: perhaps chance.
        ((16, 16), (10, 12), 20, ("unclear", "unclear: worse under paper; unclear under terse")),
        # 24 and 0 of 60 items are lost: only one prompt shows a loss, and the shift is
        # significant.
        ((48, 48), (24, 48), 60,
         ("different", "different: worse under paper; unclear under terse; shifted under paper, terse")),
        # whatever the shift
        ((20, 20), (2, 10), 20, ("same", "worse under every prompt")),
    ],
)  # fmt: skip
def test_what_prompts_conclude_of_two_checkpoints(dense, pruned, items, concluded):
    """By how many items each has right under two prompts: the conclusion, and
    `against_base`."""
    found = tables(
        *(
            records(name, seen({"english": count}, items), base=base, task=task)
            for name, base, counts in (("dense", None, dense), ("a", "dense", pruned))
            for task, count in zip(TASKS.values(), counts, strict=False)
        )
    )
    against_base = only(found["prompts"], checkpoint="a", prompt="all")["against_base"]
    assert (
        only(found["prompt_order"], prompt="all")["conclusion"],
        against_base,
    ) == concluded


def test_shift_intervals_allow_for_prompts(case, monkeypatch):
    """Those of three prompts have level 1 - .05 / 3; with three times ALPHA they are
    the plain ones of 95 %."""
    found = [case["prompt_order"]]  # a table is made when it is read
    monkeypatch.setattr(prompt_order, "ALPHA", 3 * ALPHA)
    found.append(tables(*everything())["prompt_order"])
    shown, less = ((each["shift_high"] - each["shift_low"]).dropna() for each in found)
    assert (shown >= less).all()
    assert (shown > less).sum() > len(less) / 2


def test_equal_weights_are_no_test(case):
    """A second run of the base, and of a: the p values of the others stay as they
    were."""
    again = [
        part
        for of in ("dense", "a")
        for part in parts(f"{of} again", of, base="dense", digest=of)
    ]
    found = tables(*everything(), *again)["prompt_order"].set_index(
        ["checkpoint", "other", "prompt"]
    )
    for pair in (("dense again", "dense"), ("a", "a again")):
        assert found.loc[(*pair, "paper"), ["mcnemar_p", "verdict"]].tolist() == [
            1.0,
            "unclear",
        ]
        assert pd.isna(found.loc[(*pair, "paper"), "holm_p"])
    # Under paper a, its second run and b lose 14 items each: three tests against the
    # base.
    assert found.loc[("b", "dense", "paper"), "holm_p"] == pytest.approx(
        3 * 2 * 0.5**14
    )


def test_prompts_use_shared_items():
    """Several prompts are compared on the items that all of them measured."""
    long = {
        **seen({"english": 6}),
        "english/0": Seen(greedy=False, status="excluded", why="too long"),
    }
    found = tables(
        records("dense", seen({"english": 5})), records("dense", long, task="t+terse")
    )["prompts"]
    whole, paper, terse = (
        only(found, prompt=prompt) for prompt in ("all", "paper", "terse")
    )
    has(whole, n=9, dropped=1)
    assert (paper["accuracy"], terse["accuracy"]) == pytest.approx((4 / 9, 5 / 9))
    assert (paper["excluded"], terse["excluded"]) == (0, 1)
    assert terse["reason"] == "1 excluded (too long)"
    found = tables(
        records("dense", seen({"english": 5})),
        records("dense", seen({"english": 5}), task="other"),
    )
    assert found["prompts"].empty
    assert found["prompt_order"].empty


def test_pair_uses_shared_items():
    """One item of a is missing under one prompt, so that every pair of a has nine; b
    and dense have all ten."""
    counts = {"dense": 7, "a": 4, "b": 5}
    parts = []
    for name, count in counts.items():
        for task in ("t", "t+terse"):
            answers = seen({"english": count})
            if (name, task) == ("a", "t+terse"):
                answers["english/0"] = Seen(
                    greedy=False, status="excluded", why="too long"
                )
            parts.append(
                records(
                    name, answers, base=None if name == "dense" else "dense", task=task
                )
            )
    whole = (
        tables(*parts)["prompt_order"]
        .query("prompt == 'all'")
        .set_index(["checkpoint", "other"])
    )
    assert whole["n"].to_dict() == {
        ("a", "dense"): 9,
        ("b", "dense"): 10,
        ("a", "b"): 9,
    }
    assert whole["dropped"].to_dict() == {
        ("a", "dense"): 1,
        ("b", "dense"): 0,
        ("a", "b"): 1,
    }
    expected = {("a", "dense"): -3 / 9, ("b", "dense"): -2 / 10, ("a", "b"): -1 / 9}
    assert whole["difference"].to_dict() == pytest.approx(expected)
    assert (
        (whole["difference_low"] < whole["difference"])
        & (whole["difference"] < whole["difference_high"])
    ).all()


def test_cochran_p_of_equal_prompts():
    assert cochran_p(np.array([[1.0, 0.0, 1.0]] * 3)) == 1.0
