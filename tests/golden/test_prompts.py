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


def seen(items: int = 10, **counts: int) -> dict[str, Seen]:
    answers = {}
    for name, count in counts.items():
        answers |= {f"{name}/{i}": Seen(greedy=i < count) for i in range(items)}
    return answers


def parts(name: str, of: str | None = None, **own: str | None) -> list[pd.DataFrame]:
    """A checkpoint's records under each prompt, by the numbers of `of` (or its own)."""
    own = {"base": None if name == "dense" else "dense"} | own
    made = []
    for at, task in enumerate(TASKS.values()):
        counts = {key: each[at] for key, each in RIGHT[of or name].items()}
        made.append(records(name, seen(**counts), task=task, **own))
    return made


EVERYTHING = [*parts("dense"), *parts("a"), *parts("b")]


@pytest.fixture(scope="module")
def case():
    return tables(*EVERYTHING)


def test_each_prompt_and_all_of_them(case):
    found = case["prompts"]
    rows = select(found, checkpoint="dense")
    has(rows, prompt=["all", "paper", "terse", "wordy"], task=["t"] * 4)
    has(rows, accuracy=[(18 + 16 + 10) / 60, 18 / 20, 16 / 20, 10 / 20])
    has(rows, n=[20] * 4, prompts=[3] * 4)
    whole, paper = rows.iloc[0], rows.iloc[1]
    has(whole, worst=0.5, worst_prompt="wordy", best_prompt="paper", spread=0.4)
    # Cochran: items with 3, 2, 1, 0 right prompts. English: 8 of 3, one of 2 (paper,
    # wordy), one of 0. Korean: one of 3, seven of 2 (paper, terse), one of 1 (paper),
    # one of 0.
    q = 2 * (3 * (18**2 + 16**2 + 10**2) - 44**2) / (3 * 44 - (9 * 9 + 8 * 4 + 1))
    has(whole, cochran_p=chi2.sf(q, 2))
    # Ten contexts in two languages, nine right in both and one in neither: the exact
    # interval of 9 of 10.
    exact = binomtest(9, 10).proportion_ci(method="exact")
    has(paper, accuracy_low=exact.low, accuracy_high=exact.high)
    assert whole["worst_low"] < whole["worst"] < whole["worst_high"]
    assert whole["spread_low"] <= whole["spread"] <= whole["spread_high"]
    korean = only(found, checkpoint="dense", language="korean", prompt="all")
    has(korean, accuracy=18 / 30, worst=0.1, spread=0.8, n=10)


def test_the_order_of_two_checkpoints(case):
    found = case["prompt_order"]
    whole = found[found["prompt"] == "all"]
    has(whole, checkpoint=["a", "b", "a"], other=["dense", "dense", "b"])
    has(whole, pair=["base", "base", "others"])
    has(whole, conclusion=["different", "same", "unclear"])
    has(
        whole,
        order_changes=[True, False, False],
        better_under=["wordy", None, "terse, wordy"],
    )
    has(whole, worse_under=["paper", "paper, terse, wordy", None])
    has(whole, unclear_under=["terse", None, "paper"])
    by_prompt = found[(found["other"] == "dense") & (found["prompt"] != "all")]
    a, b = (by_prompt[by_prompt["checkpoint"] == name] for name in "ab")
    has(whole, difference=[(4 - 18 + 16 - 16 + 18 - 10) / 60, -32 / 60, 26 / 60])
    has(a, difference=[-14 / 20, 0.0, 8 / 20], verdict=["worse", "unclear", "better"])
    has(a, shift=[-14 / 20 + 0.1, 0.1, 8 / 20 + 0.1])
    # McNemar: 14, 0 and 8 discordant items, all of them on one side. Holm over a and b
    # against dense.
    has(a, mcnemar_p=[2 * 0.5**14, 1.0, 2 * 0.5**8])
    has(a, holm_p=[4 * 0.5**14, 1.0, 4 * 0.5**8])
    # b: 4, 5 and 3 of 20, against 18, 16 and 10; under wordy 7 items are right in dense
    # alone.
    has(b, mcnemar_p=[2 * 0.5**14, 2 * 0.5**11, 2 * 0.5**7])
    has(b, holm_p=[4 * 0.5**14, 4 * 0.5**11, 2 * 0.5**7])
    assert (a["shift_low"] < a["shift"]).all()
    assert (a["shift"] < a["shift_high"]).all()


@pytest.mark.parametrize(
    ("dense", "pruned", "items", "conclusion", "against_base"),
    [
        ((12, 11), (11, 11), 20, "unclear", "unclear under every prompt"),
        # Of 20 items 6 and 4 are right in dense alone: p = .031 and .125. The shift is
        # 2 items of 40: perhaps chance.
        ((16, 16), (10, 12), 20, "unclear", "unclear: worse under paper; unclear under terse"),
        # 24 and 0 of 60 items are lost: only one prompt shows a loss, and the shift is
        # significant.
        ((48, 48), (24, 48), 60, "different",
         "different: worse under paper; unclear under terse; shifted under paper, terse"),
        # whatever the shift
        ((20, 20), (2, 10), 20, "same", "worse under every prompt"),
    ],
)  # fmt: skip
def test_what_prompts_conclude(dense, pruned, items, conclusion, against_base):
    """By how many items each has right under two prompts."""
    made = []
    for task, right, kept in zip(("t", "t+terse"), dense, pruned, strict=True):
        made.append(records("dense", seen(items, english=right), task=task))
        made.append(records("a", seen(items, english=kept), base="dense", task=task))
    found = tables(*made)
    whole = only(found["prompts"], checkpoint="a", prompt="all")
    has(whole, against_base=against_base)
    has(only(found["prompt_order"], prompt="all"), conclusion=conclusion)


def test_shift_intervals_allow_for_prompts(case, monkeypatch):
    """Those of three prompts have level 1 - .05 / 3; with three times ALPHA they are
    the plain ones of 95 %."""
    shown = case["prompt_order"]
    monkeypatch.setattr(prompt_order, "ALPHA", 3 * ALPHA)
    less = tables(*EVERYTHING)["prompt_order"]
    wider = (shown["shift_high"] - shown["shift_low"]) - (
        less["shift_high"] - less["shift_low"]
    )
    assert (wider.dropna() >= 0).all()
    assert (wider.dropna() > 0).mean() > 0.5


def test_equal_weights_are_no_test():
    """A second run of the base, and of a: the p values of the others stay as they
    were."""
    again = parts("dense again", "dense", base="dense", digest="dense")
    again += parts("a again", "a", base="dense", digest="a")
    found = tables(*EVERYTHING, *again)["prompt_order"]
    for checkpoint, other in (("dense again", "dense"), ("a", "a again")):
        row = only(found, checkpoint=checkpoint, other=other, prompt="paper")
        has(row, mcnemar_p=1.0, verdict="unclear", holm_p=None)
    # Under paper a, its second run and b lose 14 items each: three tests against the
    # base.
    row = only(found, checkpoint="b", other="dense", prompt="paper")
    has(row, holm_p=3 * 2 * 0.5**14)


def test_prompts_and_pairs_use_shared_items():
    """One item of a is missing under one prompt, so that a and every pair of a has
    nine; b and dense have all ten."""
    made = []
    for name, base, count in (("dense", None, 7), ("a", "dense", 4), ("b", "dense", 5)):
        for task in ("t", "t+terse"):
            answers = seen(english=count)
            if (name, task) == ("a", "t+terse"):
                long = Seen(greedy=False, status="excluded", why="too long")
                answers["english/0"] = long
            made.append(records(name, answers, base=base, task=task))
    found = tables(*made)
    prompts = select(found["prompts"], checkpoint="a")
    has(prompts, n=[9, 9, 9], dropped=[1, 1, 1], accuracy=[3 / 9] * 3)
    terse = prompts.iloc[2]
    has(terse, prompt="terse", excluded=1, reason="1 excluded (too long)")
    order = found["prompt_order"]
    whole = order[order["prompt"] == "all"]
    has(whole, checkpoint=["a", "b", "a"], other=["dense", "dense", "b"])
    has(whole, n=[9, 10, 9], dropped=[1, 0, 1])
    has(whole, difference=[-3 / 9, -2 / 10, -1 / 9])
    alone = tables(
        records("dense", seen(english=5)),
        records("dense", seen(english=5), task="other"),
    )
    assert alone["prompts"].empty
    assert alone["prompt_order"].empty


def test_cochran_p_of_equal_prompts():
    assert cochran_p(np.array([[1.0, 0.0, 1.0]] * 3)) == 1.0
