"""The fewest token forwards: distinct prefixes, counted by hand and by brute force."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from benchmarks.serving.workload import PROBES, Fewest, answers_of, fewest
from evaluator.engine.fake import FakeEngine
from evaluator.probes.config import EvalConfig
from tests.support.letters import letter_evaluation, letter_items, letter_model, letter_plan, letter_questions


def counted(*pairs):
    found = fewest((*pair, True) for pair in pairs)
    return found.forwards, found.distributions, found.steps


def test_an_answers_last_token_is_not_forwarded():
    # 1, 12, 123; the prompt's last token is, for the answer's only one comes from what follows it.
    assert counted(((1, 2, 3), (7,))) == (3, 1, 1)
    # and 1237, 12378
    assert counted(((1, 2, 3), (7, 8, 9))) == (5, 3, 3)


def test_a_last_token_that_another_answer_goes_on_from_is_forwarded():
    assert counted(((1, 2), (7, 8)), ((1, 2), (7, 8, 9))) == (4, 3, 3)  # 1, 12, 127, 1278


def test_answers_share_their_beginnings_and_no_more():
    # 1, 12, 127, 1278, 1279, 125, 1258: an 8 after a 7 is not an 8 after a 5
    assert counted(((1, 2), (7, 8, 0)), ((1, 2), (7, 9, 0)), ((1, 2), (5, 8, 0))) == (7, 6, 3)


def test_an_option_that_was_split_before_the_prompts_end_asks_there():
    # The prompt 123; an option merged with the 3, so that it stands after 12: one more distribution, after 12.
    assert counted(((1, 2, 3), (7,)), ((1, 2), (8,))) == (3, 2, 1)
    assert counted(((1, 2, 3), (7,)), ((1, 2), (8, 4))) == (4, 3, 2)  # and 128


def read(*answers):
    return fewest(answers).cached


def test_every_generated_token_reads_the_cache_of_all_before_it():
    # 7 reads 1, 2 and 3; 8 reads those and 7; 9 reads five.
    assert read(((1, 2, 3), (7, 8, 9), True)) == 3 + 4 + 5
    assert read(((1, 2, 3), (7,), True)) == 3


def test_a_scored_answer_reads_the_cache_once():
    assert read(((1, 2, 3), (7, 8, 9), False)) == 5
    # Two options of one prompt are two rows, and a greedy answer another three.
    options = ((1, 2, 3), (7, 8), False), ((1, 2, 3), (5, 6), False)
    assert read(*options) == 4 + 4
    assert read(*options, ((1, 2, 3), (4, 4, 4), True)) == 4 + 4 + 3 + 4 + 5


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
    """Plans by language and item id, and the records of every probe on a scripted engine."""
    config = EvalConfig(task="toy", items=0, max_new_tokens=6, probes=PROBES)
    plans = [letter_plan(question, config) for question in letter_questions(letter_items(items), config)]
    stream = letter_evaluation(plans, config).run(FakeEngine(letter_model().answer))
    records = [record for _, found in stream for record in found]
    return {(plan.question.item.language, plan.question.item.item_id): plan for plan in plans}, records


def test_every_record_of_a_pass_is_counted():
    plans, records = a_pass(6)
    pairs = list(answers_of(records, plans))
    assert len(pairs) == len(records) == 6 * (1 + 5 + 10 + 4 + 1)
    assert {tuple(prompt) for prompt, _, _ in pairs} == {plan.prompts["open"].token_ids for plan in plans.values()}
    assert fewest(pairs) == by_brute_force(pairs)
    # Beams and samples that differ from the greedy answer take forwards of their own.
    alone = [pair for record, pair in zip(records, pairs, strict=True) if record.probe == "greedy"]
    assert fewest(alone).forwards < fewest(pairs).forwards


def test_a_record_without_an_answer_needs_nothing_and_a_merged_option_stands_after_less_of_the_prompt():
    plans, records = a_pass(2)
    option = next(record for record in records if record.probe == "choice")
    merged = structs.replace(option, prompt_tokens=option.prompt_tokens - 1)
    lost = structs.replace(option, status="engine_error", token_ids=None)
    [(prompt, answer, generated)] = answers_of([lost, merged], plans)
    whole = plans[option.language, option.item_id].prompts["open"].token_ids
    assert (prompt, answer, generated) == (whole[:-1], option.token_ids, False)
