"""One evaluation as a stream, on the shipped fake engine: every probe, any order,
any cut, and what failures leave."""

from dataclasses import replace
from itertools import chain

import pytest

from evaluator.asking.questions import NO_GOLD
from evaluator.engine.base import Cancel, Response, Score
from evaluator.probes.config import EvalConfig
from evaluator.probes.stream import ROWS, items_at_once
from tests.support import letters
from tests.support.fake import FakeEngine
from tests.support.letters import (
    letter_items,
    letter_model,
    letter_plans,
    letter_questions,
)


def _evaluate(engine, questions, config, in_flight=64):
    stream = letters.letter_evaluation(
        letter_plans(questions, config), config, in_flight=in_flight
    )
    return [record for _, found in stream.run(engine) for record in found]


CONFIG = EvalConfig(task="toy", items=0, max_new_tokens=6)


def test_numbers_are_the_language_models_own():
    lm = letter_model()
    questions = letter_questions(letter_items(6), CONFIG)
    records = _evaluate(FakeEngine(lm.answer), questions, CONFIG)
    by_item = {
        question.item.item_id: letters.letter_plan(question, CONFIG)
        for question in questions
    }
    for record in records:
        if record.probe != "rank":
            continue
        plan = by_item[record.item_id]
        gold = plan.scored[plan.item.answers[0]]
        row = lm.logprobs(gold.prompt_ids)
        first = gold.continuation_ids[0]
        assert record.rank == 1 + int((row > row[first]).sum())
        assert record.margin == pytest.approx(row[first] - row.max())
        second = lm.logprobs((*gold.prompt_ids, first))[gold.continuation_ids[1]]
        assert record.logprob == pytest.approx(row[first] + second)
    gold_choices = {
        r.item_id: r.logprob for r in records if r.probe == "choice" and r.is_gold
    }
    assert gold_choices == {r.item_id: r.logprob for r in records if r.probe == "rank"}


def test_results_ignore_order_and_cut():
    """Results do not depend on order window or cut."""
    questions = letter_questions(letter_items(14), CONFIG)
    whole = sorted(
        _evaluate(FakeEngine(letter_model().answer), questions, CONFIG), key=repr
    )
    for seed, in_flight, room in ((1, 1, 1), (2, 3, 7), (3, 64, 500)):
        engine = FakeEngine(letter_model().answer, reorder_seed=seed, room=room)
        assert (
            sorted(_evaluate(engine, questions, CONFIG, in_flight=in_flight), key=repr)
            == whole
        )
    parts = [
        _evaluate(FakeEngine(letter_model().answer), questions[n : n + 3], CONFIG)
        for n in range(0, 14, 3)
    ]
    assert sorted(chain(*parts), key=repr) == whole


def test_probe_alone_equals_among_all():
    """A probe alone gives what it gives among all."""
    questions = letter_questions(letter_items(8), CONFIG)
    everything = _evaluate(FakeEngine(letter_model().answer), questions, CONFIG)
    for probe in ("greedy", "beam", "sample", "choice", "rank"):
        config = CONFIG.model_copy(update={"probes": (probe,)})
        alone = _evaluate(
            FakeEngine(letter_model().answer),
            letter_questions(letter_items(8), config),
            config,
        )
        assert sorted(alone, key=repr) == sorted(
            (r for r in everything if r.probe == probe), key=repr
        )


def test_excluded_item_is_never_sent():
    items = [
        *letter_items(5),
        replace(letter_items(1)[0], item_id="empty", answers=("?!",)),
    ]
    asked, script = letters.noted(letter_model().answer)
    questions = letter_questions(items, CONFIG)
    records = [
        r
        for r in _evaluate(FakeEngine(script), questions, CONFIG)
        if r.item_id == "empty"
    ]
    assert {r.status for r in records} == {"excluded"}
    assert {"greedy", "choice", "rank"} <= {r.probe for r in records}
    assert all(r.logprob is None and r.contains is None for r in records)
    assert {r.text for r in records} == {NO_GOLD}
    only = [q for q in questions if q.excluded]
    asked.clear()
    assert _evaluate(FakeEngine(script), only, CONFIG)
    assert asked == []


@pytest.mark.parametrize(
    ("part", "lost", "rest"),
    [
        ("score", {"choice", "rank"}, {"greedy", "beam", "sample"}),
        ("/greedy/", {"greedy", "beam", "aligned_rank"}, {"sample", "choice", "rank"}),
    ],
)
def test_failed_request_is_its_probes_status(part, lost, rest):
    """A failed request is a status of all that needs it."""

    def script(request):
        if part in request.request_id or (
            part == "score" and isinstance(request, Score)
        ):
            return Response(
                request_id=request.request_id, status="engine_error", error="too long"
            )
        return letter_model().answer(request)

    records = _evaluate(
        FakeEngine(script), letter_questions(letter_items(6), CONFIG), CONFIG
    )
    failed = [r for r in records if r.probe in lost]
    assert {r.probe for r in failed} == lost
    assert {r.status for r in failed} == {"engine_error"}
    assert all(r.logprob is None and r.rank is None for r in failed)
    assert {(r.probe, r.status) for r in records if r.probe in rest} == {
        (probe, "ok") for probe in rest
    }


@pytest.mark.parametrize("room", [1, 2, 5, 64])
def test_cancels_name_given_requests(room):
    """A cancel names a request that was given and others are never given."""
    config = CONFIG.model_copy(
        update={
            "probes": ("greedy", "beam"),
            "formats": ("open",),
            "max_new_tokens": 12,
        }
    )
    stream = letters.letter_stream(config, 4)
    given: set[str] = set()
    cancelled: set[str] = set()

    class Watched:
        def take(self, limit):
            taken = [*stream.take(0), *stream.take(limit)]  # a cancel needs no room
            assert sum(not isinstance(request, Cancel) for request in taken) <= limit
            for request in taken:
                assert request.request_id not in cancelled
                if isinstance(request, Cancel):
                    assert request.request_id in given
                    cancelled.add(request.request_id)
                given.add(request.request_id)
            return taken

    for response in FakeEngine(letter_model().answer, reorder_seed=1, room=room).run(
        Watched()
    ):
        stream.handle(response)
    assert stream.idle
    assert len(list(stream.recorded())) == 4
    assert cancelled


@pytest.mark.parametrize(
    ("settings", "items"),
    [
        ({"probes": ("greedy",)}, ROWS),
        ({"probes": ("greedy", "choice", "rank")}, ROWS),
        ({"probes": ("greedy", "beam")}, 86),
        ({"probes": ("greedy", "sample")}, 64),
        ({"probes": ("choice",)}, 64),
        ({"thinking": "on", "chat": True}, ROWS),
    ],
)
def test_items_fill_an_engine(settings, items):
    """A run of one answer an item needs as many items as the engine has rows."""
    assert items_at_once(EvalConfig(task="gazetteer", **settings)) == items
