"""Which questions a task asks, with which candidates; and what becomes of an item that cannot be asked."""

import pytest

from evaluator.asking.questions import NO_DISTRACTOR, NO_UNRELATED, TOO_LONG
from evaluator.probes import PROBES
from evaluator.probes.config import EvalConfig
from evaluator.probes.item import ItemRun, Plan
from evaluator.probes.planning import questions_of
from evaluator.tasks import TaskData, select
from evaluator.tasks.distractors import by_kind, choose_options, hard_distractors
from tests.support.items import make_item
from tests.support.letters import LetterPrompter
from tests.support.sweeps import refused


def data(**pools):
    made = {language: tuple(items) for language, items in pools.items()}
    return TaskData(name="t", digest="d", pools=made, every_pool=made)


def config(**changes):
    return EvalConfig(task="t", **changes)


def pool(count, language="english", answer="answer {}"):
    return [make_item(number, language=language, answers=[answer.format(number)]) for number in range(count)]


def test_the_subset_its_first_hundred_and_the_exemplar():
    english = pool(230)
    questions = questions_of(data(english=english), config(items=200))
    subset = select(english, 200)
    assert [question.item for question in questions] == subset
    assert [question.deep for question in questions] == [True] * 100 + [False] * 100
    left = next(item for item in english if item not in subset)
    assert {question.exemplar for question in questions} == {left}
    other = questions_of(data(english=english), config(items=200, seed=1))
    assert [question.item for question in other] == subset  # the run's seed moves the distractors alone
    assert [question.options for question in other] != [question.options for question in questions]


def test_candidates_of_each_format():
    pools = data(english=pool(9), finnish=pool(9, "finnish", "vastaus {}"))
    question = questions_of(pools, config(formats=("shown", "distractors_only", "unrelated"), probes=("greedy",)))[0]
    english = pools.pools["english"]
    assert question.options == choose_options(question.item, english, 0, by_kind(english))
    assert question.candidates["shown"] == question.options.texts
    wrong = [text for number, text in enumerate(question.options.texts) if number != question.options.gold]
    assert list(question.candidates["distractors_only"]) == wrong
    assert len(wrong) == 3
    assert len(question.candidates["unrelated"]) == 4
    assert all(text.startswith("vastaus") for text in question.candidates["unrelated"])


def test_options_are_the_whole_pools_any_as_the_papers_and_alike_by_default():
    """Whatever part of the pool is asked: here four items."""
    english = [*pool(12), *(make_item(number, answers=[str(1900 + number)]) for number in range(12, 24))]
    rules = ("any", "alike", None)
    drawn = {rule: questions_of(data(english=english), config(options=rule, items=4)) for rule in rules}
    assert [q.options for q in drawn["any"]] == [choose_options(q.item, english, 0) for q in drawn["any"]]
    kinds = by_kind(english)
    assert [q.options for q in drawn["alike"]] == [choose_options(q.item, english, 0, kinds) for q in drawn["alike"]]
    assert drawn["alike"] == drawn[None] != drawn["any"]


def test_hard_options_are_the_gold_and_what_looks_most_like_it_in_the_items_own_order():
    english = pool(20)
    questions = questions_of(data(english=english), config(probes=("hard_choice",)))
    assert {question.hard_options.gold for question in questions} == {0, 1, 2, 3}
    for question in questions[:4]:
        assert question.options is None
        options = question.hard_options
        assert options.texts[options.gold] == question.item.answers[0]
        wrong = [text for number, text in enumerate(options.texts) if number != options.gold]
        assert sorted(wrong) == sorted(hard_distractors(question.item, english))


def test_an_item_without_a_distractor_is_still_asked_what_needs_none():
    lone = data(english=[make_item(0, answers=["Nile"]), make_item(1, answers=["nile."])])
    formats = ("open", "shown", "unrelated")
    for question in questions_of(lone, config(formats=formats, probes=("greedy", "choice", "hard_choice"))):
        assert question.options is None
        assert question.hard_options is None
        assert [format for format in formats if question.can_pose(format)] == ["open"]
        assert question.why_not("shown") == NO_DISTRACTOR
        plan = Plan(question=question, prompts={"open": None}, scored={})
        run = ItemRun(plan, 0, config=config(), prompter=LetterPrompter(), columns={})
        assert {PROBES[probe].why_not(run) for probe in ("choice", "hard_choice")} == {NO_DISTRACTOR}
        assert question.why_not("unrelated") == NO_UNRELATED
        assert question.why_not("open") == TOO_LONG  # it can be posed: only its length can have kept it out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"probes": ("choice",)}, "no distractor differs"),
        ({"probes": ("hard_choice",)}, "no distractor differs"),
        ({"probes": ("greedy",), "formats": ("shown", "distractors_only")}, "no distractor differs"),
        ({"probes": ("greedy",), "formats": ("unrelated",)}, "'unrelated' lists answers of other languages"),
    ],
)
def test_a_task_of_which_nothing_can_be_asked_is_refused(settings, message):
    lone = data(english=[make_item(0, answers=["Nile"]), make_item(1, answers=["?"])])
    assert message in refused(questions_of, lone, config(**settings))


def test_one_item_that_can_be_asked_is_enough():
    english = [make_item(number, answers=names) for number, names in enumerate((["Nile", "Ob"],) * 2 + (["Ob"],))]
    questions = {q.item.item_id: q for q in questions_of(data(english=english), config(probes=("choice",)))}
    assert [questions[name].options is None for name in ("i0", "i1", "i2")] == [True, True, False]
