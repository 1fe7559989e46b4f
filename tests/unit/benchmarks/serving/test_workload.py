"""What both sides work on: items named once, only those that can be asked; and the
ids that lm-eval makes of them."""

import json

import pytest

from benchmarks.serving import lm_eval, workload
from benchmarks.serving.__main__ import parser
from evaluator.checkpoints.tokenizer import load_tokenizer
from tests.support.models import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def document(model, task, items):
    options = asked(model, task, items)
    with workload.written(options) as path:
        return json.loads(path.read_text())


def asked(model, task, items):
    typed = ["--model", str(model), "--task", task, "--items", str(items)]
    return parser("pass").parse_args(typed)


def squad(folder, language, answers):
    """A SQuAD file whose item ids are the same in every language, as XQuAD's are."""
    context = " ".join(answers)
    places = [{"text": text, "answer_start": context.index(text)} for text in answers]
    questions = [
        {"id": f"q{n}", "question": f"Which is {n}?", "answers": [each]}
        for n, each in enumerate(places)
    ]
    article = {"title": "t", "paragraphs": [{"context": context, "qas": questions}]}
    (folder / f"xquad.{language}.json").write_text(
        json.dumps({"version": "1.1", "data": [article]})
    )


def test_items_of_languages_stay_apart(model, tmp_path):
    for language in ("de", "en"):
        numbers = ("one", "two", "three", "four")
        squad(tmp_path, language, [f"{language} {number}" for number in numbers])
    items = document(model, f"xquad:{tmp_path}", 8)["items"]
    assert len({item["id"] for item in items}) == len(items) == 8
    assert all(len(item["options"]) == 4 for item in items)


def test_item_without_question_is_left_out(model, tmp_path):
    rows = [
        {
            "id": str(number),
            "language": "english",
            "context": "c",
            "question": "q?",
            "answers": [answer],
        }
        # no answer that grading could find
        for number, answer in enumerate(["one", "two", "three", "?"])
    ]
    file = tmp_path / "task.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ids = [item["id"] for item in document(model, f"jsonl:{file}", 4)["items"]]
    assert sorted(ids) == ["english/0", "english/1", "english/2"]
    options = asked(model, f"jsonl:{file}", 4)
    with workload.written(options) as path:
        assert workload.facts(options, path)["left_out"] == 1


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(save_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


def encode_as_lm_eval(tokenizer, context, option):
    """`TemplateLM._encode_pair` of lm-eval 0.4.13, for a context without white space
    at its end."""
    own = tokenizer(context)["input_ids"]
    return own, tokenizer(context + option)["input_ids"][len(own) :]


def test_respelled_items_are_lm_evals(tokenizer):
    text, options = (
        "Lake Onti: 48 km. Answer in a few words:",
        [" Онти", " 48 kilometres", " بحيرة"],
    )
    item = {
        "text": text,
        "prompt": [5],
        "option_texts": options,
        "options": [[5]],
        "deep": True,
    }
    lm_eval.respell({"task": "gazetteer", "items": [item]}, tokenizer)
    assert (item["text"], item["option_texts"]) == (text, options)
    for option, ids in zip(options, item["options"], strict=True):
        assert encode_as_lm_eval(tokenizer, text, option) == (item["prompt"], ids)
        assert tokenizer.decode(ids) == option
