"""The presets, each on rows of our own in the layout that the data set has on the hub."""

from typing import Any

import pytest

from evaluator.tasks import TASKS, is_excluded
from evaluator.tasks.data_sets import FOLDER, Preset, document, preset_task
from evaluator.tasks.distractors import choose_options
from evaluator.tasks.mapping import RowMapping
from tests.support.sweeps import refused

NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def passage(number: str | int, *answers: str, **more: str) -> dict[str, Any]:
    found = {"text": list(answers), "answer_start": [0] * len(answers)}
    return {"id": number, "context": "c", "question": "q", "answers": found} | more


def choice(labels: str, texts: str, **more: Any) -> dict[str, Any]:
    return {"question": "q", "choices": {"text": [*texts], "label": [*labels]}} | more


SCIQ = {"question": "q", "distractor3": "a", "distractor1": "b", "distractor2": "c", "correct_answer": "d"}
ANSWER = {"aliases": ["X", "The X"], "normalized_aliases": ["x", "the x"], "value": "X", "type": "Entity"}
OPENBOOKQA = choice("ABCD", "wxyz", question="no", question_stem="q", id="7", answerKey="A")
HELLASWAG = {"ind": 24, "label": "3", "ctx_a": "A man sits.", "ctx_b": "he", "ctx": "A man sits. he"}
HELLASWAG |= {"endings": [*"wxyz"]}
BELEBELE = {"link": "https://x/1", "question_number": 2, "flores_passage": "p", "question": "q"}
BELEBELE |= {f"mc_answer{place}": text for place, text in enumerate("wxyz", 1)} | {"correct_answer_num": "1"}
UNNAMED = "validation-000007"

# Preset, row, (id, context, question), answers, how many options a choice has: 0 where the pool's answers are drawn.
ROWS: list[tuple[str, dict[str, Any], tuple[str, str, str], tuple[str, ...], int]] = [
    ("squad", passage("5a", "x", "x", "y", title="T"), ("5a", "c", "q"), ("x", "y"), 0),
    # SQuAD 2.0's layout: a question that the passage does not answer
    ("squad", passage("5b", title="T"), ("5b", "c", "q"), (), 0),
    ("triviaqa", {"question_id": "t", "question": "q?", "answer": ANSWER}, ("t", "", "q?"), ("X", "The X"), 0),
    ("nq_open", {"question": "who", "answer": ["A. X", "B. Y"]}, (UNNAMED, "", "who"), ("A. X", "B. Y"), 0),
    ("mmlu", {"question": "q ", "subject": "s", "choices": [*"wxyz"], "answer": 2}, (UNNAMED, "", "q"), ("y",), 4),
    ("arc_easy", choice("ABCD", "wxyz", id="M_1", answerKey="C"), ("M_1", "", "q"), ("y",), 4),
    ("arc_challenge", choice("1234", "wxyz", id="N_1", answerKey="4"), ("N_1", "", "q"), ("z",), 4),
    ("arc_challenge", choice("ABCDE", "vwxyz", id="N_2", answerKey="E"), ("N_2", "", "q"), ("z",), 5),
    ("sciq", {**SCIQ, "support": "s"}, (UNNAMED, "s", "q"), ("d",), 4),
    ("sciq", {**SCIQ, "support": ""}, (UNNAMED, "", "q"), ("d",), 4),
    ("openbookqa", OPENBOOKQA, ("7", "", "q"), ("w",), 4),
    ("commonsense_qa", choice("ABCDE", "vwxyz", id="1f", answerKey="D"), ("1f", "", "q"), ("y",), 5),
    # without a key: the test split hides the labels
    ("commonsense_qa", choice("ABCDE", "vwxyz", id="1g", answerKey=""), ("1g", "", "q"), (), 0),
    ("hellaswag", HELLASWAG, ("24", "A man sits. he", "What happens next?"), ("z",), 4),
    ("belebele", BELEBELE, ("https://x/1-2", "p", "q"), ("w",), 4),
    *((name, passage("9", "x"), ("9", "c", "q"), ("x",), 0) for name in ("mlqa", "indicqa")),
    # IndicQA marks what cannot be answered by an empty text
    ("indicqa", passage(9, ""), ("9", "c", "q"), (), 0),
]


def preset(name: str) -> Preset:
    return document(FOLDER / f"{name}.yaml", Preset)


@pytest.mark.parametrize(("name", "row", "texts", "answers", "options"), ROWS)
def test_rows_in_the_layout_of_the_hub(name, row, texts, answers, options):
    fields = preset(name).fields
    assert fields is not None
    mapping = RowMapping(fields, task=name, language="english", where=name)
    assert set(mapping.columns(list(row))) <= set(row)
    item = mapping.item(row, "validation-000007", "row 7")
    assert (item.item_id, item.context, item.question) == texts
    assert item.answers == answers
    assert is_excluded(item) == (not answers)
    if options:
        chosen = choose_options(item, [item], seed=0)
        assert len(chosen.texts) == options
        assert chosen.texts[chosen.gold] == answers[0]
    assert bool(item.options) == bool(options) or not answers


def test_every_preset_is_tested_on_a_row_and_asked_by_its_name():
    assert {name for name, *_ in ROWS} == set(NAMES) <= set(TASKS.names)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_preset_says(name):
    task = TASKS[name]
    known = preset(name)
    assert task.open.endswith(".")
    assert task.sizes
    assert set(task.sizes) == set(known.configs), "a size for each language"
    assert all(size > 100 for size in task.sizes.values())
    assert task.sample is not None
    item = task.sample()
    assert (item.task, item.language in known.configs) == (name, True)
    assert item.answers
    assert all(answer in item.context for answer in item.answers) or item.options or not item.context


def test_belebele_is_parallel():
    known = preset("belebele")
    assert f"in {len(known.configs)} of its 122 languages" in known.help
    assert known.fields is not None
    row = {**known.sample, "link": "u"}
    items = [
        RowMapping(known.fields, task="b", language=language, where="b").item({**row, "question": q}, "", "")
        for language, q in (("english", "one?"), ("hindi", "two?"))
    ]
    assert items[0].item_id == items[1].item_id == "u-1"
    assert items[0].cluster == items[1].cluster == "u"  # intervals draw a passage in all languages at once


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: [", "not valid YAML"),
        ("&a [*a, *a]", "aliases (*name) are not read here"),
        ("{data: 2026-02-31}", "not valid YAML: day is out of range"),
        ("- a", "a mapping with data and fields is needed, not ['a']"),
        ("split: test", "data: Field required"),
        ("{data: x, help: h, open: o, sizes: 1, sample: {}, splt: test}", "splt: 'test': Extra inputs"),
    ],
)
def test_a_file_that_is_no_preset(tmp_path, text, message):
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    told = refused(preset_task, file)
    assert told.startswith(f"{file}: ")
    assert message in told
