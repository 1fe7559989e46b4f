"""The choice probes and rank: scores of answers to the open prompt, shared where they are the same."""

from evaluator.engine.base import Score
from tests.support.probing import config, prompter, questions, run, start


def test_equal_continuations_of_choice_hard_choice_and_rank_are_scored_once(tokenizer):
    settings = config(formats=("open",), probes=("choice", "rank", "hard_choice"))
    asked = questions(settings)[0]
    scores = start(tokenizer, settings, asked)
    distinct = {*asked.options.texts, *asked.hard_options.texts}
    assert all(isinstance(request, Score) for request in scores)
    assert len(scores) == len(distinct) < 9
    assert {request.prompt_ids for request in scores} == {
        prompter(tokenizer).build(asked.item, "open").token_ids
    }  # the open prompt, with no candidates shown
    alone = start(tokenizer, config(formats=("open",), probes=("hard_choice",)), questions(settings)[0])
    assert len(alone) == 4


def test_hard_choice_records_are_those_of_its_own_options(tokenizer):
    settings = config(formats=("open",), probes=("choice", "hard_choice", "rank"))
    question = questions(settings)[0]
    records = run(tokenizer, settings, [question])
    for probe, options in (("choice", question.options), ("hard_choice", question.hard_options)):
        mine = [r for r in records if r.probe == probe]
        assert tuple(r.option_text for r in mine) == options.texts
        assert [r.index for r in mine if r.is_gold] == [options.gold]
        assert [r.index for r in mine] == [0, 1, 2, 3]
        assert all(r.logprob == -len(r.token_ids) for r in mine)
    (rank,) = [r for r in records if r.probe == "rank"]
    assert (rank.rank, rank.margin) == (2, -0.75)
    assert {rank.logprob} == {r.logprob for r in records if r.is_gold}  # the gold answer's full log-probability
