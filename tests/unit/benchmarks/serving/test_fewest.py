"""The fewest token forwards: distinct prefixes, counted by brute force."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from benchmarks.serving.workload import PROBES, Fewest, answers_of, fewest
from evaluator.probes.config import EvalConfig
from tests.support.fake import FakeEngine
from tests.support.letters import (
    letter_evaluation,
    letter_items,
    letter_model,
    letter_plan,
    letter_questions,
)


def test_a_generated_token_reads_the_cache_of_all_before_it_and_a_scored_answer_once():
    options = ((1, 2, 3), (7, 8), False), ((1, 2, 3), (5, 6), False)
    assert fewest([((1, 2, 3), (7, 8, 9), True)]).cached == 3 + 4 + 5
    assert fewest([*options, ((1, 2, 3), (4, 4, 4), True)]).cached == 4 + 4 + 3 + 4 + 5


ids = st.lists(st.integers(0, 2), max_size=5)
answers = st.lists(st.tuples(ids.filter(bool), ids, st.booleans()), max_size=12)


def by_brute_force(pairs):
    prefixes, asked, reads = set(), set(), set()
    for prompt, answer, generated in pairs:
        forwarded = (*prompt, *answer[:-1]) if answer else ()
        for length in range(1, len(forwarded) + 1):
            prefixes.add(tuple(forwarded[:length]))
        for length in range(len(prompt), len(forwarded) + 1):
            asked.add(tuple(forwarded[:length]))
            if generated or length == len(forwarded):
                reads.add(tuple(forwarded[:length]))
    return Fewest(
        forwards=len(prefixes),
        distributions=len(asked),
        steps=max((len(answer) for _, answer, _ in pairs), default=0),
        cached=sum(map(len, reads)),
    )


@given(answers)
def test_the_count_is_that_of_all_prefixes_in_a_set(pairs):
    assert fewest(pairs) == by_brute_force(pairs)


def a_pass(items):
    config = EvalConfig(task="toy", items=0, max_new_tokens=6, probes=PROBES)
    plans = [
        letter_plan(question, config)
        for question in letter_questions(letter_items(items), config)
    ]
    stream = letter_evaluation(plans, config).run(FakeEngine(letter_model().answer))
    records = [record for _, found in stream for record in found]
    return {(plan.item.language, plan.item.item_id): plan for plan in plans}, records


def test_every_record_of_a_pass_is_counted_and_one_without_an_answer_needs_nothing():
    plans, records = a_pass(6)
    pairs = list(answers_of(records, plans))
    assert len(pairs) == len(records) == 6 * (1 + 5 + 10 + 4 + 1)
    assert {tuple(prompt) for prompt, _, _ in pairs} == {
        plan.prompts["open"].token_ids for plan in plans.values()
    }
    assert fewest(pairs) == by_brute_force(pairs)
    # Beams and samples that differ from the greedy answer take forwards of their own.
    alone = [
        pair
        for record, pair in zip(records, pairs, strict=True)
        if record.probe == "greedy"
    ]
    assert fewest(alone).forwards < fewest(pairs).forwards
    plans, records = a_pass(2)
    option = next(record for record in records if record.probe == "choice")
    merged = structs.replace(option, prompt_tokens=option.prompt_tokens - 1)
    lost = structs.replace(option, status="engine_error", token_ids=None)
    [(prompt, answer, generated)] = answers_of([lost, merged], plans)
    whole = plans[option.language, option.item_id].prompts["open"].token_ids
    assert (prompt, answer, generated) == (whole[:-1], option.token_ids, False)
