"""What lm-eval is given to do: the benchmark's items as texts, in the ids that lm-eval makes of them."""

import pytest

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
