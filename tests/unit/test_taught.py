"""The taught models: their tokenizer and plan. tests/integration/test_taught.py
makes them."""

from collections import Counter

from evaluator.core.text import normalise
from evaluator.tasks.gazetteer import gazetteer_items
from tests.taught import plan
from tests.taught.__main__ import prompt, thinking_tokenizer

ITEMS = gazetteer_items("english")


def test_fates_are_planted_at_known_rates() -> None:
    assert Counter(map(plan.planted, ITEMS)) == {
        "usual": 178,
        "longer": 58,
        "wrong": 34,
        "loops": 30,
    }
    assert {plan.planted(item, "base") for item in ITEMS} == {"usual"}


def test_template_opens_and_closes_thoughts() -> None:
    """Each tag is one visible token."""
    tokenizer = thinking_tokenizer()
    closed, opened = (
        prompt(tokenizer, ITEMS[0], thinking) for thinking in (False, True)
    )
    assert opened.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert closed == opened + "<think>\n\n</think>\n\n"
    for tag in ("<think>", "</think>"):
        assert tokenizer.decode(tokenizer.encode(tag), skip_special_tokens=True) == tag
        assert len(tokenizer.encode(tag)) == 1
    for item in ITEMS[:40]:
        before, joint = tokenizer([closed, closed + item.answers[0]])["input_ids"]
        assert joint[: len(before)] == before
        assert tokenizer.decode(joint) == closed + item.answers[0]


def test_lessons_plant_wrong_answers() -> None:
    for item in ITEMS:
        fate = plan.planted(item)
        _, _, answer = plan.response(item, fate).partition("</think>")
        assert (normalise(item.answers[0]) in normalise(answer)) == (
            fate in ("usual", "longer")
        )
