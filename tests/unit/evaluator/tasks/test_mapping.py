"""From rows to items: paths, options, right answers, complaints; and the presets,
each on rows in the hub's layout."""

from typing import Any

import pytest
from pydantic import ValidationError

from evaluator.tasks import TASKS, is_excluded
from evaluator.tasks.data_sets import FOLDER, Preset, document, preset_task
from evaluator.tasks.distractors import choose_options
from evaluator.tasks.mapping import RowMapping
from evaluator.tasks.source import Fields, Source
from tests.support.sweeps import refused

OPEN = {"question": "q", "answers": "a"}
CHOICE = {"question": "q", "options": "o", "answer": "a"}
LABELLED = CHOICE | {"labels": "l"}


def mapping(spoken="english", /, **fields):
    described = Fields.model_validate(fields)
    return RowMapping(described, task="t", language=spoken, where="data set 'org/x'")


def item(row, spoken="english", /, **fields):
    row = {"q": "?"} | row
    return mapping(spoken, **fields).item(row, "test-000003", "row 3")


@pytest.mark.parametrize(
    ("row", "path", "answers"),
    [
        ({"a": ["x", "y", "x", " y "]}, "a", ("x", "y")),
        ({"a": {"text": ["x", "y"], "answer_start": [1, 2]}}, "a.text", ("x", "y")),
        ({"a": [{"text": "x"}, {"text": "y"}]}, "a.text", ("x", "y")),
        ({"a": [{"text": "x"}, {"text": "y"}]}, "a.1.text", ("y",)),
        ({"a": {"value": "v", "all": ["x", "v"]}}, ["a.value", "a.all"], ("v", "x")),
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
    assert item(row, question="q", answers=path).answers == answers


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
    fields = dict(CHOICE)
    if labels:
        fields["labels"] = labels if labels[0].startswith("=") else "l"
    found = item({"o": [*"wxyz"], "a": answer, "l": labels}, **fields)
    assert next(iter(found.answers), None) == gold
    assert found.options == ("w", "x", "y", "z")


def test_fields_of_columns():
    row = {"A": "w", "B": "x", "C": "y", "D": None, "E": " ", "a": "C"}
    found = item(row, question="q", options=[*"ABCDE"], answer="a")
    assert found.options == ("w", "x", "y")
    row = {"a": "x", "d1": "y", "d2": "z"}
    wrong = item(row, question="q", answers="a", options=["d1", "d2"])
    assert (wrong.answers, wrong.options) == (("x",), ("y", "z"))
    rows = mapping(None, id=["link", "n"], language="l", context=["c1", "c2"], **OPEN)
    first = {"link": "u", "n": 1, "l": "hi", "q": " ? ", "a": "x"}
    first |= {"c1": " first ", "c2": "second"}
    changes = ({}, {"n": 2}, {"n": 3, "l": "ta"}, {"n": 4, "c1": "", "c2": None})
    one, *others = (rows.item(first | each, "", "row 0") for each in changes)
    assert (one.item_id, one.language, one.question) == ("u-1", "hi", "?")
    assert one.context == "first\nsecond"
    assert [each.cluster for each in (one, *others)] == ["u-1", "u-1", "u-3", "u-4"]
    assert others[-1].context == ""
    unnamed = item({"a": "x"}, **OPEN)
    assert unnamed.item_id == unnamed.cluster == "test-000003"
    assert item({"a": "x", "p": 5}, cluster="p", **OPEN).cluster == "5"
    rows = mapping(question="q", answers=["a.text", "=x"], id=["n", "a.id"])
    assert rows.columns(["n", "a", "q", "picture"]) == ["n", "a", "q"]
    assert mapping(question="q.q", answers="a").columns(["q.q", "a"]) == ["q.q", "a"]
    message = refused(mapping(question="q", answers="anser.x").columns, ["q", "answer"])
    assert (
        "'answers': column 'anser'; did you mean 'answer'? (known: answer, q)"
        in message
    )


TWO = {"o": ["w", "x"]}


@pytest.mark.parametrize(
    ("row", "fields", "told"),
    [
        ({"q": None, "a": "x"}, OPEN, "'question' (q) is empty"),
        ({"a": True}, OPEN, "'answers' (a) must be text or a number, not True"),
        ({"a": "x"}, OPEN | {"answers": "a.b"}, "'answers' (a.b): there is no 'b' in"),
        ({"q": "\ud800", "a": "x"}, OPEN, "'question' (q) holds a lone surrogate"),
        ({"a": "x", "i": " "}, OPEN | {"id": "i"}, "'id' (i) is empty"),
        (TWO | {"a": 2}, CHOICE, "'answer' (a): '2' is none of the 2 options"),
        ({"o": ["w", ""], "a": 1}, CHOICE, "'answer' (a): '1' is none of the 2"),
        (TWO | {"a": "x!"}, CHOICE, "'answer' (a): 'x!' is neither a number from 0"),
        ({"o": ["w", "w"], "a": 0}, CHOICE, "'options' (o) gives a choice among 1,"),
        ({"o": [*"abcdefghijk"], "a": 0}, CHOICE, "'options' (o) gives a choice among"),
        (TWO | {"a": "E", "l": ["A", "B"]}, LABELLED, "'answer' (a): 'E' is none of"),
        (TWO | {"a": "A", "l": ["A"]}, LABELLED, "'labels' (l) has 1 entries"),
    ],
)
def test_errors_name_row_and_field(row, fields, told):
    message = refused(item, row, **fields)
    assert message.startswith(f"data set 'org/x': row 3: field {told}")


@pytest.mark.parametrize(
    ("fields", "language", "told"),
    [
        ({"answers": "a"}, "english", "fields.question is missing"),
        ({"question": "q"}, "english", "fields.answers (texts) or fields.answer (an"),
        ({"question": "q", "answer": "a"}, "english", "fields.labels needs"),
        (OPEN | {"labels": "l"}, "english", "fields.labels needs fields.answer, which"),
        (OPEN, None, "set the language (language: english) or its column"),
        (OPEN | {"language": "l"}, "english", "set the language"),
    ],
)
def test_impossible_fields(fields, language, told):
    message = refused(mapping, language, **fields)
    assert message.startswith(f"data set 'org/x': {told}")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"fields": {"options": []}}, "a column's path is needed"),
        ({"fields": {"options": ["a", 1]}}, "1 is not a column's path"),
        ({"config": {}}, "names no configuration"),
        (
            {"config": {"thai": "th"}, "language": "thai"},
            "config names languages already",
        ),
    ],
)
def test_impossible_sources(said, message):
    with pytest.raises(ValidationError, match=message):
        Source.model_validate(said)


def test_settings_override_presets():
    first = {"config": "all", "split": "test", "language": "english", "fields": OPEN}
    usual = Source.model_validate(first)
    assert Source().over(usual) == usual
    said = Source.model_validate({"config": "law", "fields": {"answers": ["a", "b"]}})
    fields = {"question": ["q"], "answers": ["a", "b"]}
    assert said.over(usual).given() == first | {"config": "law", "fields": fields}
    several = Source.model_validate({"config": {"hindi": "hi", "tamil": "ta"}})
    assert several.over(usual).configs == {"hindi": "hi", "tamil": "ta"}
    assert Source(language="tamil").over(several).configs == {"tamil": None}
    assert {name for name, *_ in ROWS} == set(NAMES) <= set(TASKS.names)


NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def passage(number: str | int, *answers: str, **more: str) -> dict[str, Any]:
    found = {"text": list(answers), "answer_start": [0] * len(answers)}
    return {"id": number, "context": "c", "question": "q", "answers": found} | more


def choice(labels: str, texts: str, **more: Any) -> dict[str, Any]:
    return {"question": "q", "choices": {"text": [*texts], "label": [*labels]}} | more


SCIQ = {"question": "q", "distractor3": "a", "distractor1": "b", "distractor2": "c"}
SCIQ["correct_answer"] = "d"
ANSWER = {"value": "X", "type": "Entity", "aliases": ["X", "The X"]}
ANSWER["normalized_aliases"] = ["x", "the x"]
MMLU = {"question": "q ", "subject": "s", "choices": [*"wxyz"], "answer": 2}
OPENBOOKQA = choice("ABCD", "wxyz", question_stem="q", id="7", answerKey="A")
HELLASWAG = {"ind": 24, "label": "3", "ctx_a": "A man sits.", "ctx_b": "he"}
HELLASWAG |= {"ctx": "A man sits. he", "endings": [*"wxyz"]}
BELEBELE = {"link": "u", "question_number": 2, "flores_passage": "p", "question": "q"}
BELEBELE |= {f"mc_answer{place}": text for place, text in enumerate("wxyz", 1)}
BELEBELE["correct_answer_num"] = "1"
UNNAMED = "validation-000007"

# Preset, row, (id, context, question), answers, how many options a choice has: 0 where
# the pool's answers are drawn.
ROWS: list[tuple[str, Any, tuple[str, str, str], tuple[str, ...], int]] = [
    ("squad", passage("5a", "x", "x", "y", title="T"), ("5a", "c", "q"), ("x", "y"), 0),
    ("triviaqa", {"question_id": "t", "question": "q?", "answer": ANSWER}, ("t", "", "q?"), ("X", "The X"), 0),
    ("nq_open", {"question": "who", "answer": ["A. X", "B. Y"]}, (UNNAMED, "", "who"), ("A. X", "B. Y"), 0),
    ("mmlu", MMLU, (UNNAMED, "", "q"), ("y",), 4),
    ("arc_easy", choice("ABCD", "wxyz", id="M_1", answerKey="C"), ("M_1", "", "q"), ("y",), 4),
    ("arc_challenge", choice("1234", "wxyz", id="N_1", answerKey="4"), ("N_1", "", "q"), ("z",), 4),
    ("sciq", {**SCIQ, "support": "s"}, (UNNAMED, "s", "q"), ("d",), 4),
    ("openbookqa", OPENBOOKQA, ("7", "", "q"), ("w",), 4),
    ("commonsense_qa", choice("ABCDE", "vwxyz", id="1f", answerKey="D"), ("1f", "", "q"), ("y",), 5),
    # without a key: the test split hides the labels
    ("commonsense_qa", choice("ABCDE", "vwxyz", id="1g", answerKey=""), ("1g", "", "q"), (), 0),
    ("hellaswag", HELLASWAG, ("24", "A man sits. he", "What happens next?"), ("z",), 4),
    ("belebele", BELEBELE, ("u-2", "p", "q"), ("w",), 4),
    ("mlqa", passage("9", "x"), ("9", "c", "q"), ("x",), 0),
    ("indicqa", passage("9", "x"), ("9", "c", "q"), ("x",), 0),
    # IndicQA marks what cannot be answered by an empty text
    ("indicqa", passage(9, ""), ("9", "c", "q"), (), 0),
]  # fmt: skip


def preset(name: str) -> Preset:
    return document(FOLDER / f"{name}.yaml", Preset)


@pytest.mark.parametrize(("name", "row", "texts", "answers", "options"), ROWS)
def test_rows_of_the_hub(name, row, texts, answers, options):
    mapping = RowMapping(preset(name).fields, task=name, language="english", where=name)
    assert set(mapping.columns(list(row))) <= set(row)
    item = mapping.item(row, UNNAMED, "row 7")
    assert (item.item_id, item.context, item.question) == texts
    assert item.answers == answers
    assert is_excluded(item) == (not answers)
    if options:
        chosen = choose_options(item, [item], seed=0)
        assert len(chosen.texts) == options
        assert chosen.texts[chosen.gold] == answers[0]
    assert bool(item.options) == bool(options) or not answers


@pytest.mark.parametrize("name", NAMES)
def test_preset_facts(name):
    task, known = TASKS[name], preset(name)
    assert task.open.endswith(".")
    assert set(task.sizes) == set(known.configs), "a size for each language"
    assert min(task.sizes.values()) > 100
    item = task.sample()
    assert (item.task, item.language in known.configs) == (name, True)
    assert item.answers
    in_context = [answer for answer in item.answers if answer in item.context]
    assert list(item.answers) == in_context or item.options or not item.context


def test_belebele_is_parallel():
    """Intervals draw a passage in all languages at once."""
    known = preset("belebele")
    assert f"in {len(known.configs)} of its 122 languages" in known.help
    for language, question in (("english", "one?"), ("hindi", "two?")):
        rows = RowMapping(known.fields, task="b", language=language, where="b")
        item = rows.item({**known.sample, "link": "u", "question": question}, "", "")
        assert (item.item_id, item.cluster) == ("u-1", "u")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: [", "not valid YAML"),
        ("data: " + "[" * 50_000, "not valid YAML"),
        ("data: x\nfields: {question: q, question: p}", "key 'question' appears here twice"),
        ("{data: 2026-02-31}", "not valid YAML: day is out of range"),
        ("- a", "a mapping with data and fields is needed, not ['a']"),
        ("split: test", "data: Field required"),
        ("{data: x, help: h, open: o, sizes: 1, sample: {}, splt: t}", "unknown key 'splt'; did you mean 'split'?"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_preset(tmp_path, text, message):
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    told = refused(preset_task, file)
    assert told.startswith(f"{file}: ")
    assert message in told
