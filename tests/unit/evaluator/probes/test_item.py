"""The probes of one item: its requests and records, and what becomes of what cannot
be asked."""

from dataclasses import replace

import pytest
from msgspec import structs

from evaluator.asking.questions import NO_DISTRACTOR, TOO_LONG
from evaluator.engine.base import NOT_NUMBERS, Generate, Score
from evaluator.probes.rank import NOT_SAID
from evaluator.probes.sample import sample_seed
from tests.support.probing import (
    EVERY_FORMAT,
    EVERY_PROBE,
    answer,
    config,
    evaluation,
    questions,
    run,
    start,
)


def excluded(records):
    """What could not be asked; a greedy answer without the gold one leaves the
    aligned rank undefined besides."""
    return sorted(
        (r.probe, r.format, r.index)
        for r in records
        if r.status == "excluded" and r.text != NOT_SAID
    )


def test_every_probe_records_every_item(tokenizer):
    settings = config(seeds=(0, 5))
    asked = questions(settings)
    records = run(tokenizer, settings, asked)
    by_item = {
        q.item.item_id: [r for r in records if r.item_id == q.item.item_id]
        for q in asked
    }
    for question in asked:
        mine = by_item[question.item.item_id]
        # what the model says to every item
        said = question.item.answers == ("answer 3",)
        assert {r.status for r in mine if r.probe == "aligned_rank"} == {
            "ok" if said else "excluded"
        }
        assert {r.status for r in mine if r.probe != "aligned_rank"} == {"ok"}
        assert sorted(r.format for r in mine if r.probe == "greedy") == sorted(
            EVERY_FORMAT
        )
        assert {r.format for r in mine if r.probe != "greedy"} == {"open"}
        counts = {probe: sum(r.probe == probe for r in mine) for probe in EVERY_PROBE}
        deep = {"beam": 5, "sample": 20} if question.deep else {"beam": 0, "sample": 0}
        assert counts == {
            "greedy": 6,
            "choice": 4,
            "rank": 1,
            "aligned_rank": 1,
            "hard_choice": 4,
            **deep,
        }
        assert {r.seed for r in mine if r.probe == "sample"} == (
            {0, 5} if question.deep else set()
        )
        assert {r.seed for r in mine if r.probe != "sample"} == {0}
    keys = [(r.item_id, r.format, r.probe, r.index, r.seed) for r in records]
    assert len(set(keys)) == len(keys)


def test_item_without_distractors_is_partly_excluded(tokenizer):
    """An item without distractors is excluded from what needs them and asked the
    rest."""
    settings = config(items=1)
    question = questions(settings, answers=["Nile"])[0]
    records = run(tokenizer, settings, [question])
    of_greedy = [("greedy", "distractors_only", 0), ("greedy", "shown", 0)]
    assert excluded(records) == [
        ("choice", "open", 0),
        *of_greedy,
        ("hard_choice", "open", 0),
    ]
    assert {r.status for r in records if r.probe in ("beam", "sample", "rank")} == {
        "ok"
    }
    missing = [
        r for r in records if r.status == "excluded" and r.probe != "aligned_rank"
    ]
    assert all(r.logprob is None and r.is_gold is None for r in missing)
    assert {r.text for r in missing} == {NO_DISTRACTOR}


def test_too_long_prompt_is_excluded(tokenizer):
    """A prompt that fits no cap is excluded and not the end of the run."""
    settings = config(prompt_tokens=64, one_shot_prompt_tokens=2000)
    long = [
        replace(q, item=replace(q.item, question="Which? " * 30))
        for q in questions(settings)[:1]
    ]
    records = run(tokenizer, settings, long)
    assert {r.format for r in records if r.status == "ok"} == {
        "one_shot",
        "open_capped",
    }
    of_open = {probe for probe, format, _ in excluded(records) if format == "open"}
    assert of_open == set(EVERY_PROBE)
    assert {r.text for r in records if r.status == "excluded"} == {TOO_LONG}


def test_hard_choice_records_own_options(tokenizer):
    """Hard choice records are those of its own options."""
    settings = config(formats=("open",), probes=("choice", "hard_choice", "rank"))
    question = questions(settings)[0]
    records = run(tokenizer, settings, [question])
    for probe, options in (
        ("choice", question.options),
        ("hard_choice", question.hard_options),
    ):
        mine = [r for r in records if r.probe == probe]
        assert tuple(r.option_text for r in mine) == options.texts
        assert [r.index for r in mine if r.is_gold] == [options.gold]
        assert [r.index for r in mine] == [0, 1, 2, 3]
        assert all(r.logprob == -len(r.token_ids) for r in mine)
    (rank,) = [r for r in records if r.probe == "rank"]
    assert (rank.rank, rank.margin) == (2, -0.75)
    # the gold answer's full log-probability
    assert {rank.logprob} == {r.logprob for r in records if r.is_gold}


def test_sample_seeds_are_pinned(tokenizer):
    """Sample seeds depend on run item and number only: another value would silently
    change every sample of every run."""
    settings = config(formats=("open",), probes=("sample",), seed=3, seeds=(3, 4))
    asked = questions(settings)[0]
    samples = start(tokenizer, settings, asked)
    assert [request.seed for request in samples] == [
        sample_seed(seed, asked.item.item_id, n) for seed in (3, 4) for n in range(10)
    ]
    drawn = {(r.temperature, r.top_p, r.max_tokens) for r in samples}
    assert (drawn, len({r.seed for r in samples})) == ({(1.0, 0.9, 32)}, 20)
    assert sample_seed(0, "q0", 0) == 5050325379533103084


NAN = ("engine_error", NOT_NUMBERS)


@pytest.mark.parametrize(
    ("collapsed", "expected"),
    [
        ((Generate, Score), {"greedy": NAN, "rank": NAN, "sample": NAN}),
        (Score, {"greedy": ("ok", "x"), "rank": NAN, "sample": ("ok", "x")}),
    ],
)
def test_samples_fail_if_all_are_nan(tokenizer, collapsed, expected):
    """An engine reports no log-probabilities of samples: that there are none shows
    in the item's other requests."""
    settings = config(formats=("open",), probes=("greedy", "rank", "sample"))
    stream = evaluation(tokenizer, settings, questions(settings)[:1])
    script = answer(tokenizer, "x")
    # the samples are answered before the other requests
    for request in reversed(stream.take(100)):
        response = script(request)
        if response.logprobs and isinstance(request, collapsed):
            response = structs.replace(response, logprobs=(float("nan"),))
        stream.handle(response.or_error(1000))
    ((_, records),) = stream.recorded()
    assert {(r.probe, r.status, r.text) for r in records} == {
        (probe, *each) for probe, each in expected.items()
    }


def test_grader_decides_written_answers(tokenizer):
    """`contains` alone; the paper's rule says nothing then."""
    settings = config(probes=("greedy",), formats=("open",), items=1)
    asked = questions(settings, answers=["answer 3"])
    for grader, said, right, read in (
        ("text", "It is answer 3.", True, None),
        ("exact", "It is answer 3.", False, None),
        ("number", "It is 3.0 in 1 word: 3", True, "3"),
        ("number", "It is answer 3, not 4", False, ""),
        ("number", "It is answer 3, no: $4.50.", False, "$4.50"),
    ):
        graded = settings.model_copy(update={"grader": grader})
        (record,) = run(tokenizer, graded, asked, said)
        assert record.contains is right, (grader, said)
        assert (record.contains_paper is None) is (grader != "text")
        assert record.option_text == read
        assert record.exact_match is False
        assert record.grading == "strict"


def test_letters_are_those_that_the_prompt_lists(tokenizer):
    """In the order of the list, which the item's own options do not have; in a prompt
    without the list, only an option's text counts."""
    settings = config(
        probes=("greedy", "choice"), formats=("open", "shown"), items=4, grader="letter"
    )
    own = ["Rome", "Paris", "Oslo", "Bern"]
    asked = questions(settings, answers=["Rome"], options=own)
    places = {question.option_texts.index("Rome") for question in asked}
    assert len(places) > 1
    told = [
        record.contains for record in run(tokenizer, settings, asked, "Rome, I say")
    ]
    assert told.count(True) == 2 * len(asked)
    for letter, place in zip("ABCD", range(4), strict=True):
        records = run(tokenizer, settings, asked, f"({letter})")
        for question in asked:
            right = {
                record.format: record.contains
                for record in records
                if record.item_id == question.item.item_id and record.probe == "greedy"
            }
            listed = question.candidates["shown"][place] == "Rome"
            assert right == {"open": False, "shown": listed}
