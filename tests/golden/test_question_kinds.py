"""Table `weak`: drops by kind on cases worked out by hand and against other
implementations, and the kinds' rules."""

import pandas as pd
import pytest
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.metrics.tables.question_kinds import (
    answer_length,
    answer_position,
    kinds_of,
    question_word,
)
from tests.support.records import Seen, numbered, records
from tests.support.tables import has, only


def described(answers: dict[str, str]) -> pd.DataFrame:
    rows = [
        {
            "task": "t",
            "language": key.split("/")[0],
            "item_id": key.split("/")[1],
            "answers": [answer],
            "cluster": key,
        }
        for key, answer in answers.items()
    ]
    return pd.DataFrame(rows).assign(question="Name it.", context="")


def greedy(**right: range) -> dict[str, Seen]:
    return {
        f"{name}/{i}": Seen(greedy=i in hits)
        for name, hits in right.items()
        for i in range(40)
    }


DENSE = greedy(english=range(40), korean=range(30))
PRUNED = greedy(english=range(36), korean=range(10))
ANSWERS = {key: "1990" if int(key.split("/")[1]) % 2 else "oxygen" for key in DENSE}
FEW = numbered(english=[Seen(greedy=True)] * 8, korean=[Seen(greedy=True)] * 8)


def weak(
    dense: dict[str, Seen], pruned: dict[str, Seen], items: pd.DataFrame | None
) -> pd.DataFrame:
    parts = [
        reduce_records(records("dense", dense)),
        reduce_records(records("p", pruned, base="dense")),
    ]
    return TABLES["weak"].fill(Inputs(pd.concat(parts), items)).frame


@pytest.fixture(scope="module")
def case():
    return weak(DENSE, PRUNED, described(ANSWERS))


def test_drops_by_kind(case):
    """Drops by kind with McNemar's p and Holm's over the kinds of a checkpoint."""
    english, korean = (
        only(case, by="language", kind=name) for name in ("english", "korean")
    )
    has(english, n=40, base_accuracy=1.0, accuracy=0.9)
    assert (english["drop"], korean["drop"]) == pytest.approx((4 / 40, 20 / 40))
    assert (english["excess"], korean["excess"]) == pytest.approx((-16 / 40, 16 / 40))
    assert korean["excess_low"] > 0
    dates = only(case, by="answer type", kind="date")
    has(dates, n=40, drop=(2 + 10) / 40)
    assert case["by"].drop_duplicates().tolist() == ["language", "answer type"]
    # the largest drop first
    assert case[case["by"] == "language"]["kind"].tolist() == ["korean", "english"]
    table = {"english": (4, 0), "korean": (20, 0), "date": (12, 0), "other": (12, 0)}
    wanted = {
        kind: mcnemar([[0, lost], [won, 0]], exact=True).pvalue
        for kind, (lost, won) in table.items()
    }
    found = case.set_index("kind")
    assert found["mcnemar_p"].to_dict() == pytest.approx(wanted)
    adjusted = multipletests(found["mcnemar_p"], method="holm")[1]
    assert found["holm_p"].tolist() == pytest.approx(adjusted.tolist())


def test_kind_with_too_few_items():
    """A kind with too few items is named and not tested."""
    dense = DENSE | {f"swahili/{i}": Seen(greedy=True) for i in range(8)}
    pruned = PRUNED | {
        f"swahili/{i}": Seen(greedy=False, status="ok" if i else "engine_error")
        for i in range(8)
    }
    found = weak(dense, pruned, None)
    row = only(found, kind="swahili")
    has(
        row,
        reason="too few items: 7 of the 20 that a kind needs",
        n=7,
        engine_error=1,
        excluded=0,
        drop=None,
        mcnemar_p=None,
        holm_p=None,
    )
    assert found["kind"].tolist() == ["korean", "english", "swahili"]
    has(only(found, kind="english"), excess=4 / 40 - (20 + 7) / 47)


@pytest.mark.parametrize(("dense", "pruned"), [(DENSE, {}), ({}, PRUNED), (FEW, FEW)])
def test_no_kinds_without_base(dense, pruned):
    """There is no table without a base or with too few items."""
    parts = [records("dense", dense), records("p", pruned, base="dense")]
    outcomes = pd.concat([reduce_records(part) for part in parts])
    filled = TABLES["weak"].fill(Inputs(outcomes))
    assert filled.frame.empty
    assert filled.note == ""


def test_the_page_shows_the_largest_drops(case):
    page = TABLES["weak"].page
    assert page is not None
    shown = page(
        pd.concat([case, case.assign(checkpoint="q", drop=0.0)], ignore_index=True)
    )
    assert shown["kind"].tolist() == ["korean", "date", "other", "english"]
    assert set(shown["checkpoint"]) == {"p"}
    many = pd.concat(
        [case.assign(kind=f"kind {number}") for number in range(5)], ignore_index=True
    )
    assert len(page(many)) == 5


def test_kinds_of_lengths_and_positions():
    """Lengths of answers their positions and thirds of contexts."""
    assert [answer_length(text, "en") for text in ("Nile", "the Nile river", "a b c d", "?!")] == [
        "1 word", "2 to 3 words", "4 or more words", None,
    ]  # fmt: skip
    assert answer_length("尼罗河", "zh") == "1 to 3 characters"
    assert answer_length("แม่น้ำไนล์", "thai") == "9 or more characters"
    context = "Karo is a town. " + "x " * 30 + "The Nile is long."
    assert answer_position(context, ["karo"]) == "first third"
    assert answer_position(context, ["Nile"]) == "last third"
    assert answer_position(context, ["Rhine", "The Nile, is", ""]) == "last third"
    assert answer_position(context, ["Rhine"]) == "not in the context"
    assert answer_position("", ["Nile"]) is None
    lengths = {"english": (10, 20, 30), "korean": (1, 2, 3), "thai": (5, 5, 5)}
    rows = [
        {"language": name, "item_id": f"{name} {length} {at}", "context": "x" * length}
        for name, each in lengths.items()
        for at, length in enumerate(each)
    ]
    found = kinds_of(pd.DataFrame(rows).assign(question="", answers=[["a"]] * 9))
    thirds = ["shortest third", "middle third", "longest third"]
    assert found["context length"].tolist() == [*thirds, *thirds, None, None, None]


@pytest.mark.parametrize(
    ("question", "language", "kind"),
    [
        ("In which year did it end?", "english", "which"), ("How many people?", "en", "how many"),
        ("What is it, and how?", "en", "what"), ("Name the river.", "en", "none of the known"),
        ("¿Por qué lo hizo?", "es", "why"), ("Wie viele Leute?", "german", "how many"),
        ("무엇이 있는가?", "korean", "what"), ("什么时候开始？", "zh", "when"), ("เมื่อไร", "thai", "when"),
        ("Ne zaman oldu?", "tr", "when"), ("Mji uko wapi?", "swahili", "where"),
        ("Whatever?", "en", "none of the known"),
        ("Quid est?", "latin", None),
    ],
)  # fmt: skip
def test_first_question_word_decides(question, language, kind):
    """The first question word says the kind."""
    assert question_word(question, language) == kind
