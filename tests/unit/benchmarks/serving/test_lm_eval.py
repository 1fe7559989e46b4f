"""What lm-eval is given to do: the benchmark's items as texts, in the ids that lm-eval makes of them."""

import json
from pathlib import Path

import pytest
import yaml

from benchmarks.serving import lm_eval
from tests.support.models import save_tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    from evaluator.checkpoints.tokenizer import load_tokenizer

    return load_tokenizer(save_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


def encode_as_lm_eval(tokenizer, context, option):
    """`TemplateLM._encode_pair` of lm-eval 0.4.13, for a context without white space at its end."""
    own = tokenizer(context)["input_ids"]
    return own, tokenizer(context + option)["input_ids"][len(own) :]


def test_a_task_s_items_are_what_lm_eval_makes_of_their_texts(tokenizer):
    text, options = "Lake Onti: 48 km. Answer in a few words:", [" Онти", " 48 kilometres", " بحيرة"]
    item = {"text": text, "prompt": [5], "option_texts": options, "options": [[5]], "deep": True}
    lm_eval.respell({"task": "gazetteer", "items": [item]}, tokenizer)
    assert (item["text"], item["option_texts"]) == (text, options)
    for option, ids in zip(options, item["options"], strict=True):
        assert encode_as_lm_eval(tokenizer, text, option) == (item["prompt"], ids)
        assert tokenizer.decode(ids) == option


def test_random_items_become_words_of_about_their_length(tokenizer):
    lengths = [(300, [2, 6]), (40, [1, 3])]
    items = [{"prompt": [5] * prompt, "options": [[5] * n for n in options]} for prompt, options in lengths]
    document = {"task": "random:300,40", "items": items}
    lm_eval.respell(document, tokenizer)
    again = {"task": "random:300,40", "items": [{"prompt": [5] * 300, "options": [[5] * 2, [5] * 6]}]}
    lm_eval.respell(again, tokenizer)
    assert again["items"] == document["items"][:1]
    for item, (prompt, options) in zip(document["items"], lengths, strict=True):
        assert prompt - 8 <= len(item["prompt"]) <= prompt
        assert len(item["options"]) == len(options)
        for text, ids in zip(item["option_texts"], item["options"], strict=True):
            assert encode_as_lm_eval(tokenizer, item["text"], text) == (item["prompt"], ids)


def test_tasks_are_files_that_lm_eval_reads(tmp_path):
    items = [{"text": text, "option_texts": [" b", " c"], "deep": deep} for text, deep in (("a:", True), ("d:", False))]
    lm_eval.write_tasks({"items": items}, tmp_path, generate=True)
    tasks = {path.stem: yaml.safe_load(path.read_text()) for path in tmp_path.glob("*.yaml")}
    files = {name: task["dataset_kwargs"]["data_files"]["test"] for name, task in tasks.items()}
    assert files == {name: str(tmp_path / f"{name}.jsonl") for name in ("candidates", "greedy", "samples")}
    rows = {name: [json.loads(line) for line in Path(file).read_text().splitlines()] for name, file in files.items()}
    whole = [{"text": text, "options": [" b", " c"], "gold": 0} for text in ("a:", "d:")]
    assert rows == {"candidates": whole, "greedy": whole, "samples": whole[:1]}
    assert (tasks["candidates"]["output_type"], tasks["candidates"]["target_delimiter"]) == ("multiple_choice", "")
    assert tasks["greedy"]["generation_kwargs"] == {"until": [], "max_gen_toks": 32, "do_sample": False}
    assert (tasks["samples"]["repeats"], tasks["samples"]["generation_kwargs"]["top_p"]) == (10, 0.9)
    (tmp_path / "scored").mkdir()
    lm_eval.write_tasks({"items": items}, tmp_path / "scored", generate=False)
    assert [path.name for path in (tmp_path / "scored").glob("*.yaml")] == ["candidates.yaml"]
