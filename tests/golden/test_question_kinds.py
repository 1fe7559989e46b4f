"""Table `weak`: drops by kind on cases worked out by hand and against other
implementations, and the kinds' rules."""

import pandas as pd
import pytest
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from evaluator.metrics import TABLES
from evaluator.metrics.tables.question_kinds import (
    answer_length,
    answer_position,
    kinds_of,
    question_word,
)
from tests.support.records import Seen, numbered, records
from tests.support.tables import Tables, has, tables


def greedy(**right: int) -> dict[str, Seen]:
    """Of forty items of each language, the first so many are right."""
    seen = {}
    for name, count in right.items():
        seen |= {f"{name}/{i}": Seen(greedy=i < count) for i in range(40)}
    return seen


DENSE = greedy(english=40, korean=30)
PRUNED = greedy(english=36, korean=10)
FEW = numbered(english=[Seen(greedy=True)] * 8, korean=[Seen(greedy=True)] * 8)


def weak(
    dense: dict[str, Seen], pruned: dict[str, Seen], items: pd.DataFrame | None = None
) -> Tables:
    parts = [records("dense", dense), records("p", pruned, base="dense")]
    return tables(*parts, items=items)


@pytest.fixture(scope="module")
def case():
    rows = []
    for key in DENSE:
        language, item_id = key.split("/")
        answer = "1990" if int(item_id) % 2 else "oxygen"
        row = {"language": language, "item_id": item_id, "answers": [answer]}
        rows.append(row | {"cluster": key})
    items = pd.DataFrame(rows).assign(task="t", question="Name it.", context="")
    return weak(DENSE, PRUNED, items)["weak"]


def test_drops_by_kind(case):
    """Drops by kind with McNemar's p and Holm's over the kinds of a checkpoint."""
    # the largest drop first
    has(case, by=["language"] * 2 + ["answer type"] * 2)
    has(case, kind=["korean", "english", "date", "other"], n=[40] * 4)
    has(case, drop=[20 / 40, 4 / 40, 12 / 40, 12 / 40])
    has(case, excess=[16 / 40, -16 / 40, 0.0, 0.0])
    has(case.iloc[1], base_accuracy=1.0, accuracy=0.9)
    assert case.iloc[0]["excess_low"] > 0
    lost = (20, 4, 12, 12)
    p = [mcnemar([[0, many], [0, 0]], exact=True).pvalue for many in lost]
    assert case["mcnemar_p"].tolist() == pytest.approx(p)
    adjusted = multipletests(p, method="holm")[1].tolist()
    assert case["holm_p"].tolist() == pytest.approx(adjusted)


def test_kind_with_too_few_items():
    """A kind with too few items is named and not tested."""
    swahili = {f"swahili/{i}": Seen(greedy=True) for i in range(8)}
    gone = dict.fromkeys(swahili, Seen(greedy=False))
    gone["swahili/0"] = Seen(greedy=False, status="engine_error")
    found = weak(DENSE | swahili, PRUNED | gone)["weak"]
    has(
        found,
        kind=["korean", "english", "swahili"],
        holm_p=[*found["holm_p"][:2], None],
    )
    why = "too few items: 7 of the 20 that a kind needs"
    row = found.iloc[2]
    has(row, reason=why, n=7, engine_error=1, excluded=0, drop=None, mcnemar_p=None)
    has(found.iloc[1], excess=4 / 40 - (20 + 7) / 47)


@pytest.mark.parametrize(("dense", "pruned"), [(DENSE, {}), ({}, PRUNED), (FEW, FEW)])
def test_no_kinds_without_base(dense, pruned):
    filled = weak(dense, pruned).fill("weak")
    assert (filled.rows, filled.note) == ([], "")


def test_the_page_shows_the_largest_drops(case):
    other = case.assign(checkpoint="q", drop=0.0)
    shown = TABLES["weak"].page(pd.concat([case, other], ignore_index=True))
    has(shown, kind=["korean", "date", "other", "english"], checkpoint=["p"] * 4)
    many = [case.assign(kind=f"kind {number}") for number in range(5)]
    assert len(TABLES["weak"].page(pd.concat(many, ignore_index=True))) == 5


def test_kinds_of_lengths_and_positions():
    for text, language, kind in (
        ("Nile", "en", "1 word"),
        ("the Nile river", "en", "2 to 3 words"),
        ("a b c d", "en", "4 or more words"),
        ("?!", "en", None),
        ("尼罗河", "zh", "1 to 3 characters"),
        ("แม่น้ำไนล์", "thai", "9 or more characters"),
    ):
        assert answer_length(text, language) == kind, text
    context = "Karo is a town. " + "x " * 30 + "The Nile is long."
    for answers, place in (
        (["karo"], "first third"),
        (["Rhine", "The Nile, is", ""], "last third"),
        (["Rhine"], "not in the context"),
    ):
        assert answer_position(context, answers) == place
    assert answer_position("", ["Nile"]) is None
    sizes = [10, 20, 30, 1, 2, 3, 5, 5, 5]
    items = pd.DataFrame({"context": ["x" * size for size in sizes]})
    languages = ["english"] * 3 + ["korean"] * 3 + ["thai"] * 3
    items = items.assign(
        language=languages, item_id="1", question="", answers=[["a"]] * 9
    )
    thirds = ["shortest third", "middle third", "longest third"]
    has(kinds_of(items), **{"context length": [*thirds, *thirds, None, None, None]})


@pytest.mark.parametrize(
    ("question", "language", "kind"),
    [
        ("In which year did it end?", "english", "which"),
        ("How many people?", "en", "how many"),
        ("What is it, and how?", "en", "what"),
        ("Whatever? Name it.", "en", "none of the known"),
        ("¿Por qué lo hizo?", "es", "why"),
        ("무엇이 있는가?", "korean", "what"),
        ("什么时候开始？", "zh", "when"),
        ("Quid est?", "latin", None),
    ],
)
def test_first_question_word_decides(question, language, kind):
    assert question_word(question, language) == kind
