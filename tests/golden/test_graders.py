"""The graders of numbers, letters and formulas on real-looking outputs: numbers.csv,
letters.csv and formulas.csv, each row with its verdict, its reason, and whose rule it
is where lm-eval (gsm8k, mmlu_pro, hendrycks_math), lighteval and simple-evals differ."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from time import process_time

import pytest

from evaluator.core import formulas
from evaluator.core.errors import InputError
from evaluator.core.graders import GRADERS
from evaluator.core.isolated import environment
from evaluator.metrics import Inputs, reduce_records
from evaluator.metrics.tables.grading import EXTRACTION
from tests.support.records import Seen, numbered, records
from tests.support.stamps import make_item
from tests.support.tables import assert_has, only

FILES = {"number": "numbers.csv", "letter": "letters.csv"}
ALL = {**FILES, "math": "formulas.csv"}


def rows(grader):
    path = Path(__file__).with_name(ALL[grader])
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def item(row):
    options = tuple(filter(None, row.get("options", "").split(" | ")))
    return make_item(answers=[row["answer"]], options=options, language=row["language"])


@pytest.mark.parametrize("grader", ALL)
def test_grader_follows_its_golden_file(grader):
    listed, judge = rows(grader), GRADERS[grader]
    wrong = [
        row
        for row in listed
        if judge.is_right(row["response"], item(row)) != (row["right"] == "yes")
    ]
    assert wrong == []
    assert [
        judge.problem(item(row)) for row in listed if judge.problem(item(row))
    ] == []
    assert len(listed) >= 60
    assert len({row["language"] for row in listed}) >= 12
    assert all(row["why"] for row in listed)


QUESTION = "A train of 4 cars takes 61 people, at A, B, C and D. How many, or where?"


@pytest.mark.parametrize("grader", FILES)
def test_other_answers_nothing_and_the_question_are_wrong(grader):
    """The negative control. An output that is right for one item is wrong for another,
    unless their gold answers are equal. Per cent has two readings."""
    judge = GRADERS[grader]
    right = [row for row in rows(grader) if row["right"] == "yes"]
    right = [row for row in right if "%" not in row["answer"] + row["response"]]
    graded = []
    for one in map(item, right):
        for row, other in zip(right, map(item, right), strict=True):
            alike = (one.language, one.options) == (other.language, other.options)
            if alike and not judge.is_right(other.answers[0], one):
                graded.append(judge.is_right(row["response"], one))
        for text in ("", " \n", "?", "<think>18</think>", "A B C D", QUESTION):
            assert not judge.is_right(text, one), (text, one)
    assert not any(graded)
    assert len(graded) > 200


def test_formulas_refuse_what_is_no_answer():
    """The negative control, of the first golds: another gold one, nothing, the
    question."""
    judge, golds = GRADERS["math"], []
    for row in rows("math"):
        if row["answer"] not in golds:
            golds.append(row["answer"])
    for place, gold in enumerate(golds):
        one = make_item(answers=[gold])
        for text in ("", "\\boxed{}", "$$", "?", "<think>\\boxed{18}", QUESTION):
            assert judge.graded(text, one)[0] is False
        assert not judge.is_right(f"\\boxed{{{golds[place - 1]}}}", one)


BROKEN = ("}", "", "$", "x^{", "\\frac{", "$\\frac{$", "$\\frac{1}{$", "\\text{")
PROSE = ("Monday", "yes", "No", "Rome, Italy", "It is odd.")
FORMULAS = (
    "xyz",
    "\\mathrm{odd}",
    "\\angle ABD",
    "x \\in \\mathbb{R}",
    "(3,4)",
    "5 cm",
)


@pytest.mark.parametrize("gold", [*BROKEN, *PROSE])
def test_what_is_no_formula_is_no_gold_answer(gold):
    assert GRADERS["math"].problem(make_item(answers=[gold]))


@pytest.mark.parametrize(
    "gold", [*FORMULAS, *sorted({row["answer"] for row in rows("math")})]
)
def test_a_gold_formula_equals_itself(gold):
    """In a box, between dollars, and as it is written."""
    judge, one = GRADERS["math"], make_item(answers=[gold])
    assert judge.problem(one) == ""
    for text in (f"\\boxed{{{gold}}}", f"So ${gold}$.", gold, f"The answer is {gold}."):
        assert judge.is_right(text, one), text


@pytest.mark.slow
def test_a_hanging_formula_costs_one_answer():
    """And no `eval` runs what a text says."""
    judge, item = GRADERS["math"], make_item(answers=["72"])
    assert judge.graded("\\boxed{9^{9^{9^{9}}}}", item)[0] is False
    assert judge.graded("\\boxed{72!!!!!!!!!}", item)[0] is False
    assert judge.graded("\\boxed{72}", item) == (True, ("72",))
    code = "$__import__('os').system('kill 0')$"
    assert judge.graded(code, item)[0] is False


@pytest.mark.slow
def test_no_grade_depends_on_the_clock():
    """Nor on the load, therefore."""
    program = "import signal; signal.alarm = None; from evaluator.core import formulas"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; formulas._answers()"],
        input=json.dumps([["x^2+2x+1"], "\\boxed{(x+1)^2}", ""]),
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    ready, (right, _) = map(json.loads, done.stdout.splitlines())
    assert (ready, right) == ("ready", True)


def test_a_missing_extra_is_one_line(monkeypatch):
    monkeypatch.setattr(formulas, "_process", None)
    monkeypatch.setattr(formulas, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^grader math: .* 'resurface\[math\]'$"):
        GRADERS["math"].problem(make_item(answers=["73"]))


def test_a_number_is_read_whole_or_not_at_all():
    """And a gold answer like that is refused."""
    judge, one = GRADERS["number"], make_item(answers=["1"])
    texts = "1e99 1e100 1e300 2E-300 1e³⁰⁰ 1e999999999 1.5e400 3*10^100 0x1e3 13+5"
    long = ("9" * 100, "9" * 5000 + "만5", "1.5" + "1" * 400 + "억3000만")
    for text in (*texts.split(), *long):
        assert judge.graded(text, one) == (False, ()), text
        assert judge.problem(make_item(answers=[text])), text


@pytest.mark.parametrize("grader", FILES)
def test_what_was_read_stands_in_the_output(grader):
    """Or is its value, or its option's letter; and it is read so again."""
    judge, verbatim = GRADERS[grader], 0
    for row in rows(grader):
        right, read = judge.graded(row["response"], item(row))
        verbatim += bool(read) and all(each in row["response"] for each in read)
        if right:
            assert len(read) == 1
            assert judge.is_right(read[0], item(row)) or "%" in row["response"], row
    assert verbatim > 60


def test_table_counts_what_was_read():
    """By hand: a quarter has none, a quarter several; every second gold answer is
    that of the next item, and every question ends in its own answer."""
    frame = records("m", numbered(english=[Seen(greedy=True)] * 40))
    frame["option_text"] = ["72", "", "A\nC", "7"] * 10
    asked = frame[["task", "language", "item_id"]].assign(
        context="", question="Is it 5 or 7?", cluster=frame["item_id"]
    )
    golds = [("7",), ("7",), ("8",), ("8",)] * 10
    items = asked.assign(answers=golds, options=[()] * 40)
    asks = {"grader": "number", "template": {"text": "{{ question }} Options: none"}}
    settings = {"identity": {"task_settings": {"m": {"t": asks}}}}
    (row, _) = EXTRACTION.fill(Inputs(reduce_records(frame), items, run=settings)).rows
    assert_has(row, n=40, none=0.25, several=0.25, grader="number", lists_options=False)
    assert_has(row, other=0.5, empty=0, question=0.5)
    assert row["none_low"] < 0.25 < row["none_high"]
    few = items.assign(groups=[["team=a"]] * 20 + [None, ["team=b"]] + [None] * 18)
    found = EXTRACTION.fill(Inputs(reduce_records(frame), few, run=settings)).frame
    assert_has(only(found, language="team=a"), n=20, other=0.5, question=0.5)
    assert_has(only(found, language="team=b"), n=1, other=None)
    assert "they take two items" in only(found, language="team=b")["reason"]
    asks["template"]["text"] += "{% for o in options %}{{ o }}{% endfor %}"
    inputs = Inputs(reduce_records(frame), items, run=settings)
    assert EXTRACTION.fill(inputs).rows[0]["lists_options"]
    lettered = items.assign(options=[("7", "8")] * 40, question="B")
    for listed, share in ((True, 0.5), (False, 0.0)):
        asks = {"grader": "letter", "template": {"text": "{{ options }}" * listed}}
        settings["identity"]["task_settings"]["m"]["t"] = asks
        inputs = Inputs(reduce_records(frame), lettered, run=settings)
        assert_has(EXTRACTION.fill(inputs).rows[0], other=0.5, question=share)
    frame["option_text"] = None  # by a grader of whole texts
    assert not EXTRACTION.fill(Inputs(reduce_records(frame), items, run=settings)).rows


def test_floor_of_letters_is_that_of_guessing():
    """Another item's gold letter is right as often as chance says."""
    options = ("owl", "cat", "dog", "cow")
    letters = GRADERS["letter"]
    golds = [make_item(answers=[gold], options=options) for gold in options]
    assert [letters.stated(gold) for gold in golds] == ["A", "B", "C", "D"]
    bare = [gold.posed(()) for gold in golds]
    assert [letters.stated(gold) for gold in bare] == [*options]
    for gold, letter in zip(bare, "ABCD", strict=True):
        assert letters.graded(f"The answer is {letter}", gold) == (False, ())
        assert letters.is_right(f"It is the {gold.answers[0]}.", gold)
    named = make_item(answers=["B"], options=["A", "B", "C"]).posed(())
    assert letters.is_right("(B)", named)
    assert not letters.is_right("(C)", named)


@pytest.mark.parametrize("grader", GRADERS.names)
@pytest.mark.parametrize(
    "part", ["\n", "answer ", "A ", "(", "**", "#", "-", "±", "9", "1/"]
)
def test_a_long_output_takes_no_time(grader, part):
    start = process_time()
    GRADERS[grader].is_right(
        part * 20_000, make_item(answers=["18"], options=["18", "5"])
    )
    assert process_time() - start < 5
