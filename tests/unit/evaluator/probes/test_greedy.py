"""The greedy probe: one answer for each format, the open one first."""

from evaluator.engine.base import Generate
from evaluator.probes.planning import plan_of
from tests.support.probing import EVERY_FORMAT, config, prompter, questions, run, start


def test_greedy_of_the_open_prompt_leads_and_every_format_has_one(tokenizer):
    settings = config()
    asked = questions(settings, context="C" * 600)[0]
    requests = start(tokenizer, settings, asked)
    greedy = [r for r in requests if isinstance(r, Generate) and r.temperature == 0]
    assert requests[0] is greedy[0]
    assert len(greedy) == len(EVERY_FORMAT)
    assert {r.max_tokens for r in greedy} == {32}
    assert len({r.prompt_ids for r in greedy}) == len(EVERY_FORMAT)


def test_open_capped_and_one_shot_differ_by_the_exemplar_only(tokenizer):
    settings = config(formats=("open", "open_capped", "one_shot"), probes=("greedy",))
    question = questions(settings, context="C" * 700)[0]
    made = plan_of(question, prompter(tokenizer, cap=300, one_shot_cap=2000), settings).prompts
    capped, one_shot = made["open_capped"], made["one_shot"]
    assert capped.text == f"Context: {'C' * 500}\n\nQuestion: What is the Nile?\n\nAnswer in a few words:"
    assert f"Context: {'C' * 500}\nQuestion: What is the Nile?\nAnswer in a few words:" in one_shot.text
    assert not capped.truncated  # a cap in characters is none in tokens, and its token cap is one_shot's
    assert not one_shot.truncated
    assert made["open"].truncated
    records = run(tokenizer, settings, [question])
    assert {r.format: r.truncated for r in records} == {"open": True, "open_capped": False, "one_shot": False}
