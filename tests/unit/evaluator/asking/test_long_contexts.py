"""Long contexts: their length, their passages, and where the item's own one stands."""

from dataclasses import replace
from itertools import pairwise

import pytest

from evaluator.asking.long_contexts import (
    GAP,
    LEAST,
    OWN_TOO_LONG,
    TOO_FEW_OTHERS,
    in_order,
    lengthened,
)
from evaluator.asking.prompts import Prompter
from evaluator.asking.questions import TOO_LONG_CONTEXT
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.errors import InputError
from evaluator.core.grading import grade
from evaluator.core.records import Item
from evaluator.probes.config import EvalConfig
from evaluator.probes.item import ItemRun, TaskRun
from evaluator.probes.planning import questions_of, tokenised
from evaluator.tasks import load_task
from launch.sweep.models import resolve_model

TOKENS = 400


@pytest.fixture(scope="module")
def prompter():
    tokenizer = load_tokenizer(resolve_model("bundled"))
    return Prompter(
        tokenizer, chat=False, prompt_tokens=600, one_shot_prompt_tokens=600
    )


# a character of Korean may be several tokens
@pytest.mark.parametrize("language", ["english", "korean"])
def test_long_context_has_no_other_answer(prompter, language):
    """A context has about its length and no answer beside the own passage."""
    pool = load_task("gazetteer", None).pools[language]
    order, shared = in_order(pool, TOKENS), []
    assert in_order(pool[::-1], TOKENS) == order
    for item in pool[:15]:
        text, depth = lengthened(item, order, TOKENS, prompter)
        assert LEAST * TOKENS <= len(prompter.ends(text)) <= TOKENS
        before, after = text.split(item.context)
        assert not grade(before + after, item.answers, language)["contains"]
        assert depth == pytest.approx(
            sum(map(len, before.split(GAP)))
            / sum(map(len, [*before.split(GAP), *after.split(GAP)]))
        )
        # The passages are those of the shared order, without the skipped ones; the last
        # is cut.
        passages = list(filter(None, (before + after).split(GAP)))
        skipped = [
            each for each in order if grade(each, item.answers, language)["contains"]
        ]
        assert [each for each in order if each not in skipped][: len(passages) - 1] == [
            *passages[:-1]
        ]
        assert order[len(passages) - 1 :] == () or passages[-1] in "".join(order)
        _, deeper = lengthened(item, order, 2 * TOKENS, prompter)
        assert deeper == pytest.approx(depth, abs=0.15)
        shared.append((depth, before))
    shared.sort()
    assert shared[0][0] < 1 / 3 < 2 / 3 < shared[-1][0]
    same = [
        deeper.startswith(before[: len(before) // 2])
        for (_, before), (_, deeper) in pairwise(shared)
    ]
    assert sum(same) > len(same) / 2  # most of neighbouring depths share a prefix


def toy(number: int, context: str, answer: str) -> Item:
    name = f"i{number}"
    return Item(
        task="t",
        language="en",
        item_id=name,
        context=context,
        question="?",
        answers=(answer,),
        cluster=name,
    )


def test_too_short_pools_give_reasons(prompter):
    item = toy(0, "The mayor is Toro Kalo.", "Toro Kalo")
    # An answer may begin in one passage and end in the next.
    others = (
        "Here they greet with Toro.",
        "Kalo is a river of the north.",
        "It rains.",
    )
    whole = prompter.count(GAP.join([others[0], item.context, others[2]]))
    text, _ = lengthened(item, others, whole, prompter)
    assert "Kalo is a river" not in text
    assert "It rains" in text
    for tokens, why in ((5, OWN_TOO_LONG), (100, TOO_FEW_OTHERS)):
        with pytest.raises(InputError, match=why):
            lengthened(item, others, tokens, prompter)
    alone = lengthened(item, (), prompter.count(item.context), prompter)
    assert alone == (item.context, None)


def test_tokenised_long_context_is_whole(prompter):
    """A plan has the long context whole or says why not."""
    config = EvalConfig(
        task="gazetteer",
        languages=("english",),
        items=3,
        context_tokens=TOKENS,
        probes=("greedy",),
    )
    questions = questions_of(load_task("gazetteer", ("english",)), config)
    plans = [tokenised(question, prompter, config) for question in questions]
    for question, plan in zip(questions, plans, strict=True):
        text, depth = lengthened(question.item, question.others, TOKENS, prompter)
        assert text in plan.prompts["open"].text
        assert not plan.prompts["open"].truncated
        record = item_run(plan, prompter, config).record("greedy")
        assert (record.context_tokens, record.context_depth) == (TOKENS, depth)
    tight = Prompter(
        load_tokenizer(resolve_model("bundled")),
        chat=False,
        prompt_tokens=405,
        one_shot_prompt_tokens=405,
    )
    plan = tokenised(questions[0], tight, config)
    assert (dict(plan.prompts), plan.why_not("open")) == ({}, TOO_LONG_CONTEXT)
    plan = tokenised(replace(questions[0], others=()), prompter, config)
    assert (dict(plan.prompts), plan.why_not("open")) == ({}, TOO_FEW_OTHERS)
    assert config.identifying()["context_tokens"] == [TOKENS]


def item_run(plan, prompter, config):
    origin = dict.fromkeys(("method", "pattern", "sparsity", "calibration", "base"))
    serving = dict.fromkeys(("engine", "engine_version", "dtype"), "x")
    columns = {"checkpoint": "c", "weights_digest": "d", **origin, **serving}
    return ItemRun(
        plan, 0, TaskRun(config=config, probes=(), prompter=prompter, columns=columns)
    )
