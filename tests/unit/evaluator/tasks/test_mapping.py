"""From rows to items: paths, options, right answers, complaints; and the presets,
each on rows in the hub's layout."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from evaluator.asking.templates import Wording, checked
from evaluator.core.graders import GRADERS
from evaluator.probes.config import EvalConfig
from evaluator.probes.planning import questions_of
from evaluator.tasks import TASKS, is_excluded, load_task
from evaluator.tasks.data_sets import FOLDER, Preset, document
from evaluator.tasks.distractors import choose_options
from evaluator.tasks.mapping import RowMapping
from evaluator.tasks.source import Fields, Source
from tests.support.sweeps import refused

OPEN = {"question": "q", "answers": "a"}
CHOICE = {"question": "q", "options": "o", "answer": "a"}


def mapping(spoken="english", /, **fields):
    described = Source(fields=Fields.model_validate(fields))
    return RowMapping(described, task="t", language=spoken, where="data set 'org/x'")


def item(row, spoken="english", /, **fields):
    row = {"q": "?"} | row
    return mapping(spoken, **fields).item(row, "test-000003", "row 3")


# Each case: row; path or paths; the right answers.
PATHS = """
- [{a: [x, y, x, " y "]}, a, [x, y]]
- [{a: {text: [x, y], answer_start: [1, 2]}}, a.text, [x, y]]
- [{a: [{text: x}, {text: y}]}, a.text, [x, y]]
- [{a: [{text: x}, {text: y}]}, a.1.text, [y]]
- [{a: {value: v, all: [x, v]}}, [a.value, a.all], [v, x]]
- [{a.text: x}, a.text, [x]]
- [{a: 7}, a, ["7"]]
- [{a: [1.5, null]}, a, ["1.5"]]
- [{}, =always, [always]]
# without a right answer the item is excluded, and counted
- [{a: []}, a, []]
- [{a: null}, a.text, []]
- [{a: {text: ["", "  "]}}, a.text, []]
"""


@pytest.mark.parametrize(("row", "path", "answers"), yaml.safe_load(PATHS))
def test_paths(row, path, answers):
    assert [*item(row, question="q", answers=path).answers] == answers


def test_columns_make_groups():
    """Each value of a column one; empty ones none. A number is a text too."""
    described = Fields.model_validate(OPEN)
    groups = ("team", "meta.level", "tags")
    source = Source(fields=described, groups=groups)
    made = RowMapping(source, task="t", language="english", where="x")
    assert made.columns(["q", "a", "team", "meta", "tags"])[2:] == [
        "team",
        "meta",
        "tags",
    ]
    row = {
        "q": "?",
        "a": "x",
        "team": " legal ",
        "meta": {"level": 3},
        "tags": ["a", "b\nc", "a"],
    }
    found = made.item(row, "n", "row 0").groups
    assert found == ("team=legal", "meta.level=3", "tags=a", "tags=b c")
    assert (
        made.item(row | {"team": None, "tags": [], "meta": None}, "n", "").groups == ()
    )
    told = refused(made.columns, ["q", "a", "teams", "meta", "tags"])
    assert (
        told.startswith(
            "x: field 'groups': unknown column 'team'; did you mean 'teams'?"
        )
        or "'teams'" in told
    )


@pytest.mark.parametrize("groups", [["=x"], [], ["a=b"], [3]])
def test_groups_are_columns(groups):
    with pytest.raises(ValueError, match="groups"):
        Source.model_validate({"groups": groups})


def test_groups_may_stand_in_fields():
    inside = Source.model_validate({"fields": {"question": "q", "groups": "team"}})
    beside = Source.model_validate({"fields": {"question": "q"}, "groups": ["team"]})
    assert inside == beside
    assert inside.groups == ("team",)
    assert (
        EvalConfig(task="hf:x", groups=["team"]).identifying()
        == EvalConfig(task="hf:x").identifying()
    )


# Each case: answer, labels, the option that is right.
OPTIONS = """
- [0, null, w]
- ["2", null, y]  # HellaSwag spells its numbers as texts
- [d, null, z]
- ["1", ["1", "2", "3", "4"], w]  # ARC has both kinds of labels
- [4, ["=1", "=2", "=3", "=4"], z]
- [B, [D, C, B, A], y]
- [[1, 2], null, x]  # several are right: the first is the gold option
- ["", null, null]
- [null, null, null]
- [-1, null, null]
- ["-1", null, null]
- [[], null, null]
"""


@pytest.mark.parametrize(("answer", "labels", "gold"), yaml.safe_load(OPTIONS))
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
    message = refused(mapping(question="q", answers="anser.x").columns, ["q", "answer"])
    assert (
        "'answers': unknown column 'anser'; did you mean 'answer'? (known: answer, q)"
        in message
    )
    rows = mapping(question="q", answers=["a.text", "b"], id="n")
    message = refused(rows.columns, ["n"])
    assert message.endswith("unknown column 'q' (known: n); there is no a, b either")


# Each case: row, fields, what is told.
ERRORS = r"""
- [{q: null, a: x}, &open {question: q, answers: a}, "'question' (q) is empty"]
- [{a: true}, *open, "'answers' (a) must be text or a number, not True"]
- [{a: x}, {question: q, answers: a.b}, "'answers' (a.b): there is no 'b' in"]
- [{q: "\ud800", a: x}, *open, "'question' (q) holds a lone surrogate"]
- [{a: x, i: " "}, {question: q, answers: a, id: i}, "'id' (i) is empty"]
- [{o: [w, x], a: 2}, &choice {question: q, options: o, answer: a}, "'answer' (a): '2' is none of the 2 options"]
- [{o: [w, ""], a: 1}, *choice, "'answer' (a): '1' is none of the 2"]
- [{o: [w, x], a: x!}, *choice, "'answer' (a): 'x!' is neither a number from 0"]
- [{o: [w, w], a: 0}, *choice, "'options' (o) gives a choice among 1,"]
- [{o: [a, b, c, d, e, f, g, h, i, j, k], a: 0}, *choice, "'options' (o) gives a choice among"]
- [{o: [w, x], a: E, l: [A, B]}, &labels {question: q, options: o, answer: a, labels: l}, "'answer' (a): 'E' is none"]
- [{o: [w, x, y], a: A, l: [A, B, A]}, *labels, "'labels' (l) has 'A' twice"]
- [{o: [w, x], a: A, l: [A]}, *labels, "'labels' (l) has 1 entries"]
"""


@pytest.mark.parametrize(("row", "fields", "told"), yaml.safe_load(ERRORS))
def test_errors_name_row_and_field(row, fields, told):
    message = refused(item, row, **fields)
    assert message.startswith(f"data set 'org/x': row 3: field {told}")


@pytest.mark.parametrize(
    ("fields", "language", "told"),
    [
        ({"answers": "a"}, "english", "fields.question is missing"),
        ({"question": "q"}, "english", "fields.answers (texts) or fields.answer (an"),
        (
            {"question": "q", "answer": "a"},
            "english",
            "fields.answer needs fields.options",
        ),
        (OPEN | {"labels": "l"}, "english", "fields.labels needs fields.answer"),
        (OPEN, None, "set the language (language: english) or its column"),
    ],
)
def test_impossible_fields(fields, language, told):
    message = refused(mapping, language, **fields)
    assert message.startswith(f"data set 'org/x': {told}")


def test_settings_override_presets():
    first = {"config": "all", "split": "test", "language": "english", "fields": OPEN}
    usual = Source.model_validate(first)
    assert Source().over(usual) == usual
    said = Source.model_validate({"config": "law", "fields": {"answers": ["a", "b"]}})
    fields = {"question": ["q"], "answers": ["a", "b"]}
    assert said.over(usual).given() == first | {"config": "law", "fields": fields}
    several = Source.model_validate({"config": {"hindi": "hi", "tamil": "ta"}})
    assert several.over(usual).configs == {"hindi": "hi", "tamil": "ta"}
    assert {name for name, *_ in CASES} == set(NAMES) <= set(TASKS.names)


NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


# Preset, row, its id, context and question, the right answers, and how many options a
# choice has: 0 where the pool's answers are drawn.
ROWS = """
- [squad, {id: 5a, context: c, question: q, title: T, answers: {text: [x, x, y]}}, 5a, c, q, [x, y], 0]
- - triviaqa
  - {question_id: t, question: "q?", answer: {value: X, aliases: [X, The X], normalized_aliases: [x, the x]}}
  - t
  - ""
  - q?
  - [X, The X]
  - 0
- [nq_open, {question: who, answer: [A. X, B. Y]}, validation-000007, "", who, [A. X, B. Y], 0]
- [mmlu, {question: "q ", subject: s, choices: [w, x, y, z], answer: 2}, validation-000007, "", q, [y], 4]
- - arc_easy
  - {id: M_1, question: q, choices: {text: [w, x, y, z], label: [A, B, C, D]}, answerKey: C}
  - M_1
  - ""
  - q
  - [y]
  - 4
- - arc_challenge
  - {id: N_1, question: q, choices: {text: [w, x, y, z], label: ["1", "2", "3", "4"]}, answerKey: "4"}
  - N_1
  - ""
  - q
  - [z]
  - 4
- - sciq
  - {question: q, support: s, distractor3: a, distractor1: b, distractor2: c, correct_answer: d}
  - validation-000007
  - s
  - q
  - [d]
  - 4
- - openbookqa
  - {id: "7", question_stem: q, choices: {text: [w, x, y, z], label: [A, B, C, D]}, answerKey: A}
  - "7"
  - ""
  - q
  - [w]
  - 4
- - commonsense_qa
  - {id: 1f, question: q, choices: {text: [v, w, x, y, z], label: [A, B, C, D, E]}, answerKey: D}
  - 1f
  - ""
  - q
  - [y]
  - 5
- - commonsense_qa  # without a key: the test split hides the labels
  - {id: 1g, question: q, choices: {text: [v, w, x, y, z], label: [A, B, C, D, E]}, answerKey: ""}
  - 1g
  - ""
  - q
  - []
  - 0
- - hellaswag
  - {ind: 24, label: "3", ctx_a: A man sits., ctx_b: he, ctx: A man sits. he, endings: [w, x, y, z]}
  - "24"
  - A man sits. he
  - What happens next?
  - [z]
  - 4
- - boolq
  - {question: is x y, passage: p, idx: 3, label: 1}
  - "3"
  - p
  - is x y
  - ["yes"]
  - 2
- - rte
  - {sentence1: p, sentence2: q, label: 1, idx: 7}
  - "7"
  - p
  - q
  - ["False"]
  - 2
- - winogrande
  - {sentence: The _ is x., option1: lid, option2: box, answer: "2"}
  - validation-000007
  - ""
  - The _ is x.
  - [box]
  - 2
- - belebele
  - {link: u, question_number: 2, flores_passage: p, question: q, mc_answer1: w,
     mc_answer2: x, mc_answer3: y, mc_answer4: z, correct_answer_num: "1"}
  - u-2
  - p
  - q
  - [w]
  - 4
- - gsm8k
  - {question: q, answer: "2 * 3 = <<2*3=6>>6\n#### 1,006", cleaning_status: consensus}
  - validation-000007
  - ""
  - q
  - ["1,006"]
  - 0
- - math500
  - {problem: q, solution: s, answer: '\\frac{1}{2}', subject: Algebra, level: 2, unique_id: test/algebra/1.json}
  - test/algebra/1.json
  - ""
  - q
  - ['\\frac{1}{2}']
  - 0
- - mmlu_pro
  - {question_id: 70, question: q, options: [r, s, t, u, v, w, x, y, z, z2], answer: I, answer_index: 8,
     cot_content: "", category: business, src: ori_mmlu}
  - "70"
  - ""
  - q
  - [z]
  - 10
- - gpqa_diamond
  - {Question: q, Correct Answer: "w\n", Incorrect Answer 1: x, Incorrect Answer 2: y, Incorrect Answer 3: z,
     Record ID: rec0, Subdomain: Genetics}
  - rec0
  - ""
  - q
  - [w]
  - 4
- [aime, {id: 60, problem: q, solution: s, answer: "025", url: u, year: "2024"}, "60", "", q, ["025"], 0]
- [mlqa, {id: "9", context: c, question: q, answers: {text: [x], answer_start: [0]}}, "9", c, q, [x], 0]
- [indicqa, {id: "9", context: c, question: q, answers: {text: [x], answer_start: [0]}}, "9", c, q, [x], 0]
# IndicQA marks what cannot be answered by an empty text
- [indicqa, {id: 9, context: c, question: q, answers: {text: [""], answer_start: [0]}}, "9", c, q, [], 0]
"""
CASES = yaml.safe_load(ROWS)


def preset(name: str) -> Preset:
    return document(FOLDER / f"{name}.yaml", Preset)


@pytest.mark.parametrize(
    ("name", "row", "item_id", "context", "question", "answers", "options"), CASES
)
def test_rows_of_the_hub(name, row, item_id, context, question, answers, options):
    known = preset(name)
    mapping = RowMapping(known, task=name, language="english", where=name)
    assert set(mapping.columns(list(row))) <= set(row)
    item = mapping.item(row, "validation-000007", "row 7")
    assert (item.item_id, item.context, item.question) == (item_id, context, question)
    assert [*item.answers] == answers
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
    assert min(task.sizes.values()) >= 30
    item = task.sample()
    assert (item.task, item.language in known.configs) == (name, True)
    assert item.answers
    in_context = [answer for answer in item.answers if answer in item.context]
    assert list(item.answers) == in_context or item.options or not item.context


STRING, TEXTS, INT = pa.string(), pa.list_(pa.string()), pa.int64()
PAIR = {"question": STRING, "passage": STRING, "idx": pa.int32(), "label": INT}
# The columns of the hub's files, with their types, as they were known here: no test
# reads the hub.
SCHEMAS = {
    "boolq": PAIR,
    "rte": {"sentence1": STRING, "sentence2": STRING, "label": INT, "idx": pa.int32()},
    "winogrande": dict.fromkeys(("sentence", "option1", "option2", "answer"), STRING),
    "gsm8k": {"question": STRING, "answer": STRING, "cleaning_status": STRING},
    "math500": {
        **dict.fromkeys(("problem", "solution", "answer", "subject"), STRING),
        "level": INT, "unique_id": STRING,
    },
    "mmlu_pro": {
        "question_id": INT, "question": STRING, "options": TEXTS, "answer": STRING,
        "answer_index": INT, "cot_content": STRING, "category": STRING, "src": STRING,
    },
    "gpqa_diamond": dict.fromkeys(
        ("Record ID", "Question", "Correct Answer", *(f"Incorrect Answer {n}" for n in (1, 2, 3))),
        STRING,
    ),
    "aime": {
        "id": INT, "problem": STRING, "solution": STRING, "answer": STRING,
        "url": STRING, "year": STRING,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_presets_read_files_in_the_hubs_schema(name, tmp_path):
    """And their graders read the gold answers, and their prompts pose the items."""
    known = preset(name)
    assert known.sample.keys() == SCHEMAS[name].keys()
    rows = []
    for number in range(6):
        row = dict(known.sample)
        question = known.fields.question[0]
        row[question] = f"{number}: {row[question]}"
        for key in ("id", "idx", "question_id", "Record ID", "unique_id"):
            if key in row:
                row[key] = f"test/{number}" if SCHEMAS[name][key] == STRING else number
        rows.append(row)
    schema = pa.schema(list(SCHEMAS[name].items()))
    file = tmp_path / f"{known.split}-00000-of-00001.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)
    task = f"{name}:{tmp_path}"
    data, config = load_task(task, None), EvalConfig(task=task)
    assert {**config.model_dump(), **known.settings} | {"probes": config.probes} == (
        config.model_dump()
    )
    config = config.model_copy(update={"template": config.usual_template})
    questions = questions_of(data, config)
    assert len(questions) == 6
    for question in questions:
        assert not question.excluded
        asked = question.asked("open")
        gold = GRADERS[config.grader].stated(asked)
        said = f"\\boxed{{{gold}}}" if config.grader == "math" else gold
        assert GRADERS[config.grader].is_right(said, asked)
        wording = Wording(config.template)
        shown = wording.whole(question.item, "", asked.options)
        assert wording.problem(question.item, "", asked.options) is None
        assert question.item.question in shown
        if config.lists_options:
            assert all(option in shown for option in asked.options)
    assert checked(known.prompt)


def test_given_settings_replace_a_presets():
    plain = EvalConfig(task="gsm8k")
    assert (plain.grader, plain.options, plain.max_new_tokens) == (
        "number",
        "near",
        512,
    )
    other = EvalConfig(task="gsm8k", grader="text", max_new_tokens=9)
    assert (other.grader, other.options, other.max_new_tokens) == ("text", None, 9)
    assert EvalConfig(task="squad").usual_template is None


def test_belebele_is_parallel():
    """Intervals draw a passage in all languages at once."""
    known = preset("belebele")
    assert f"in {len(known.configs)} of its 122 languages" in known.help
    for language, question in (("english", "one?"), ("hindi", "two?")):
        rows = RowMapping(known, task="b", language=language, where="b")
        item = rows.item({**known.sample, "link": "u", "question": question}, "", "")
        assert (item.item_id, item.cluster) == ("u-1", "u")
