"""Chat templates on the real vocabularies."""

import copy

import pytest

from evaluator.asking.prompts import Prompter
from evaluator.tasks import load_task
from tests.support.tokenizers import SHARED, TEMPLATES, absent, real_tokenizer

BEFORE = {"qwen": "<|im_start|>user\n", "mistral": "<s>[INST] ", "phi3": "<|user|>\n"}
AFTER = {"mistral": " [/INST]", "phi3": "<|end|>\n<|assistant|>\n"}
AFTER["qwen"] = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
MARKS = {"qwen": ("<|im_start|>", "<|im_end|>"), "mistral": ("<s>",), "phi3": ("<|user|>", "<|end|>", "<|assistant|>")}


@pytest.fixture(params=TEMPLATES)
def chat(request):
    """A model's name and its vocabulary, with the special tokens of its turns and a template."""
    name: str = request.param
    if absent(name) or not (SHARED / "xquad").is_dir():
        pytest.skip(f"the shared vocabulary of {name} or the shared XQuAD files are not here")
    tokenizer = copy.deepcopy(real_tokenizer(name))  # that one is shared with other tests
    if name != "mistral":
        end = {"qwen": "<|im_end|>", "phi3": "<|end|>"}[name]
        tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS[name]), "eos_token": end})
    tokenizer.chat_template = TEMPLATES[name]
    return name, tokenizer


def items():
    """The first item of each language of XQuAD, and one with a long context."""
    return [pool[0] for pool in load_task(f"xquad:{SHARED / 'xquad'}", None).pools.values()]


def prompter(tokenizer, cap=512):
    return Prompter(tokenizer, chat=True, prompt_tokens=cap, one_shot_prompt_tokens=cap)


def test_the_turn_stands_between_the_templates_own_marks(chat):
    name, tokenizer = chat
    for item in items():
        prompt = prompter(tokenizer, 4096).build(item, "open")
        turn = f"Context: {item.context}\n\nQuestion: {item.question}\n\nAnswer in a few words:"
        assert prompt.text == BEFORE[name] + turn + AFTER[name]
        for mark in MARKS[name]:  # one id each, as often as it is written: no second BOS, no closing EOS
            assert prompt.token_ids.count(tokenizer.convert_tokens_to_ids(mark)) == prompt.text.count(mark) > 0
        assert not prompt.truncated


def test_a_cut_keeps_question_template_and_the_longest_context_that_fits(chat):
    name, tokenizer = chat
    for item in items():
        prompt = prompter(tokenizer, 120).build(item, "open")
        assert prompt.truncated
        assert len(prompt.token_ids) <= 120
        assert prompt.text.startswith(f"{BEFORE[name]}Context: ")
        assert prompt.text.endswith(f"\n\nQuestion: {item.question}\n\nAnswer in a few words:{AFTER[name]}")
        kept = prompt.text.removeprefix(f"{BEFORE[name]}Context: ").partition("\n\nQuestion: ")[0]
        assert item.context.startswith(kept)
        longer = prompt.text.replace(f"Context: {kept}", f"Context: {item.context[: len(kept) + 1]}", 1)
        assert len(tokenizer(longer, add_special_tokens=False).input_ids) > 120
