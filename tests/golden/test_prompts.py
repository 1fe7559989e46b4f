"""Table `prompts` from records by hand: three prompts, three
checkpoints, two languages."""

import pandas as pd
import pytest
from scipy.stats import binomtest, chi2

from tests.support.records import Seen, records
from tests.support.tables import assert_has, only, select, tables

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
    assert_has(rows, prompt=["all", "paper", "terse", "wordy"], task=["t"] * 4)
    assert_has(rows, accuracy=[(18 + 16 + 10) / 60, 18 / 20, 16 / 20, 10 / 20])
    assert_has(rows, n=[20] * 4, prompts=[3] * 4)
    whole, paper = rows.iloc[0], rows.iloc[1]
    assert_has(whole, worst=0.5, worst_prompt="wordy", best_prompt="paper", spread=0.4)
    # Cochran: items with 3, 2, 1, 0 right prompts. English: 8 of 3, one of 2 (paper,
    # wordy), one of 0. Korean: one of 3, seven of 2 (paper, terse), one of 1 (paper),
    # one of 0.
    q = 2 * (3 * (18**2 + 16**2 + 10**2) - 44**2) / (3 * 44 - (9 * 9 + 8 * 4 + 1))
    assert_has(whole, cochran_p=chi2.sf(q, 2))
    # Ten contexts in two languages, nine right in both and one in neither: the exact
    # interval of 9 of 10.
    exact = binomtest(9, 10).proportion_ci(method="exact")
    assert_has(paper, accuracy_low=exact.low, accuracy_high=exact.high)
    assert whole["worst_low"] < whole["worst"] < whole["worst_high"]
    assert whole["spread_low"] <= whole["spread"] <= whole["spread_high"]
    korean = only(found, checkpoint="dense", language="korean", prompt="all")
    assert_has(korean, accuracy=18 / 30, worst=0.1, spread=0.8, n=10)


def test_prompts_use_shared_items():
    """One item of a is missing under one prompt, so that a has nine; b has all ten."""
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
    assert_has(prompts, n=[9, 9, 9], dropped=[1, 1, 1], accuracy=[3 / 9] * 3)
    terse = prompts.iloc[2]
    assert_has(terse, prompt="terse", excluded=1, reason="1 excluded (too long)")
    assert_has(select(found["prompts"], checkpoint="b"), n=[10] * 3, dropped=[0] * 3)
    alone = tables(
        records("dense", seen(english=5)),
        records("dense", seen(english=5), task="other"),
    )
    assert alone["prompts"].empty
