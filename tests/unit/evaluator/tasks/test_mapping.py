"""From rows to items: paths, options, right answers, and every complaint."""

import pytest
from pydantic import ValidationError

from evaluator.tasks.mapping import RowMapping
from evaluator.tasks.source import Fields, Source
from tests.support.sweeps import refused

OPEN = {"question": "q", "answers": "a"}
CHOICE = {"question": "q", "options": "o", "answer": "a"}


def mapping(spoken="english", /, **fields):
    return RowMapping(Fields.model_validate(fields), task="t", language=spoken, where="data set 'org/x'")


def item(row, spoken="english", /, **fields):
    return mapping(spoken, **fields).item(row, "test-000003", "row 3")


@pytest.mark.parametrize(
    ("row", "path", "answers"),
    [
        ({"a": ["x", "y", "x", " y "]}, "a", ("x", "y")),
        ({"a": {"text": ["x", "y"], "answer_start": [1, 2]}}, "a.text", ("x", "y")),
        ({"a": [{"text": "x"}, {"text": "y"}]}, "a.text", ("x", "y")),
        ({"a": [{"text": "x"}, {"text": "y"}]}, "a.1.text", ("y",)),
        ({"a": {"value": "v", "aliases": ["x", "v"]}}, ["a.value", "a.aliases"], ("v", "x")),
        ({"a.text": "x"}, "a.text", ("x",)),
        ({"a": 7}, "a", ("7",)),
        ({"a": [1.5, None]}, "a", ("1.5",)),
        ({}, "=always", ("always",)),
        # without a right answer the item is excluded, and counted
        ({"a": []}, "a", ()),
        ({"a": None}, "a.text", ()),
        ({"a": {"text": ["", "  "]}}, "a.text", ()),
    ],
)
def test_paths(row, path, answers):
    assert item({"q": "?"} | row, question="q", answers=path).answers == answers


@pytest.mark.parametrize(
    ("answer", "labels", "gold"),
    [
        (0, None, "w"),
        ("2", None, "y"),  # HellaSwag spells its numbers as texts
        ("d", None, "z"),
        ("1", ["1", "2", "3", "4"], "w"),  # ARC has both kinds of labels
        (4, ["=1", "=2", "=3", "=4"], "z"),
        ("B", ["D", "C", "B", "A"], "y"),
        ([1, 2], None, "x"),  # several are right: the first is the gold option
        *((hidden, None, None) for hidden in ("", None, -1, "-1", [])),
    ],
)
def test_the_right_option(answer, labels, gold):
    row = {"q": "?", "o": ["w", "x", "y", "z"], "a": answer, "l": labels}
    said = labels and {"labels": labels if labels[0].startswith("=") else "l"}
    found = item(row, **CHOICE, **(said or {}))
    assert next(iter(found.answers), None) == gold
    assert found.options == ("w", "x", "y", "z")


def test_options_of_several_columns_and_empty_ones():
    row = {"q": "?", "A": "w", "B": "x", "C": "y", "D": None, "E": " ", "a": "C"}
    assert item(row, question="q", options=["A", "B", "C", "D", "E"], answer="a").options == ("w", "x", "y")
    wrong = item({"q": "?", "a": "x", "d1": "y", "d2": "z"}, question="q", answers="a", options=["d1", "d2"])
    assert (wrong.answers, wrong.options) == (("x",), ("y", "z"))


def test_ids_texts_clusters_and_languages():
    rows = mapping(None, id=["link", "n"], language="l", context=["c1", "c2"], **OPEN)
    first = {"link": "u", "n": 1, "l": "hi", "c1": " first ", "c2": "second", "q": " ? ", "a": "x"}
    changes = ({}, {"n": 2}, {"n": 3, "l": "ta"}, {"n": 4, "c1": "", "c2": None})
    one, *others = (rows.item(first | each, "", "row 0") for each in changes)
    assert (one.item_id, one.language, one.context, one.question) == ("u-1", "hi", "first\nsecond", "?")
    assert [each.cluster for each in (one, *others)] == ["u-1", "u-1", "u-3", "u-4"]
    assert others[-1].context == ""
    unnamed = item({"q": "?", "a": "x"}, **OPEN)
    assert (unnamed.item_id, unnamed.cluster, unnamed.language) == ("test-000003", "test-000003", "english")
    assert item({"q": "?", "a": "x", "p": 5}, cluster="p", **OPEN).cluster == "5"


@pytest.mark.parametrize(
    ("row", "fields", "parts"),
    [
        ({"q": None, "a": "x"}, OPEN, ["'question' (q) is empty"]),
        ({"q": "?", "a": True}, OPEN, ["'answers' (a) must be text or a number, not True"]),
        ({"q": "?", "a": {"text": "x"}}, OPEN, ["'answers' (a) must be text or a number, not {'text': 'x'}"]),
        ({"q": "?", "a": "x"}, {"question": "q", "answers": "a.text"}, ["'answers' (a.text)", "no 'text' in 'x'"]),
        ({"q": "\ud800", "a": "x"}, OPEN, ["'question' (q) holds a lone surrogate"]),
        ({"q": "?", "a": "x", "i": " "}, {**OPEN, "id": "i"}, ["'id' (i) is empty"]),
        ({"q": "?", "o": ["w", "x"], "a": 2}, CHOICE, ["'answer' (a): '2' is none of the 2 options"]),
        ({"q": "?", "o": ["w", ""], "a": 1}, CHOICE, ["'answer' (a): '1' is none of the 2 options"]),
        ({"q": "?", "o": ["w", "x"], "a": "x!"}, CHOICE, ["'x!' is neither a number from 0 nor a letter from A"]),
        ({"q": "?", "o": ["w", "x"], "a": 1.5}, CHOICE, ["'1.5' is neither"]),
        ({"q": "?", "o": ["w", "w"], "a": 0}, CHOICE, ["a choice among 1,"]),
        ({"q": "?", "o": [*"abcdefghijk"], "a": 0}, CHOICE, ["a choice among 11, not among 2 to 10"]),
        ({"q": "?", "o": ["w", "x"], "a": "E", "l": ["A", "B"]}, {**CHOICE, "labels": "l"}, ["'E' is none of the 2"]),
        ({"q": "?", "o": ["w", "x"], "a": "A", "l": ["A"]}, {**CHOICE, "labels": "l"}, ["'labels' (l) has 1 entries"]),
    ],
)
def test_errors_name_row_and_field(row, fields, parts):
    message = refused(item, row, **fields)
    assert message.startswith("data set 'org/x': row 3: field "), message
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("fields", "language", "parts"),
    [
        ({"answers": "a"}, "english", ["fields.question is missing"]),
        ({"question": "q"}, "english", ["fields.answers (texts) or fields.answer (which of the options)"]),
        ({"question": "q", "answer": "a"}, "english", ["fields.options is missing"]),
        ({**OPEN, "labels": "l"}, "english", ["fields.labels"]),
        (OPEN, None, ["language is missing", "language: english", "fields: {language: COLUMN}"]),
        ({**OPEN, "language": "l"}, "english", ["language: 'english': fields.language names a column"]),
    ],
)
def test_fields_that_no_item_can_be_made_of(fields, language, parts):
    message = refused(mapping, language, **fields)
    assert message.startswith("data set 'org/x': ")
    assert all(part in message for part in parts), message


def test_the_columns_that_are_read():
    rows = mapping(question="q", answers=["a.text", "=x"], id=["n", "a.id"])
    assert rows.columns(["n", "a", "q", "picture"]) == ["n", "a", "q"]
    assert mapping(question="q.q", answers="a").columns(["q.q", "a"]) == ["q.q", "a"]
    message = refused(mapping(question="q", answers="anser.text").columns, ["q", "answer"])
    assert "field 'answers': column 'anser'; did you mean 'answer'? (known: answer, q)" in message


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"fields": {"options": []}}, "a column's path is needed"),
        ({"fields": {"options": ["a", 1]}}, "1 is not a column's path"),
        ({"config": {}}, "names no configuration"),
        ({"config": {"english": "en"}, "language": "english"}, "config names languages already"),
    ],
)
def test_a_source_that_says_nothing_sensible(said, message):
    with pytest.raises(ValidationError, match=message):
        Source.model_validate(said)


def test_what_is_said_goes_before_what_is_usual():
    usual = Source.model_validate({"config": "all", "split": "test", "language": "english", "fields": OPEN})
    assert Source().over(usual) == usual
    said = Source.model_validate({"config": "law", "fields": {"answers": ["a", "b"]}})
    fields = {"question": ["q"], "answers": ["a", "b"]}
    assert said.over(usual).given() == {"config": "law", "split": "test", "language": "english", "fields": fields}
    several = Source.model_validate({"config": {"hindi": "hi", "tamil": "ta"}})
    assert several.over(usual).configs == {"hindi": "hi", "tamil": "ta"}
    assert Source(language="tamil").over(several).configs == {"tamil": None}
