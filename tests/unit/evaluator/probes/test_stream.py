"""One evaluation as a stream, on the shipped fake engine: every probe, any order, any cut, and what failures leave."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from evaluator.asking.questions import NO_GOLD, Question
from evaluator.core.errors import EngineError
from evaluator.core.records import Record
from evaluator.engine.base import Cancel, Generate, Request, Response, Score
from evaluator.engine.fake import FakeEngine
from evaluator.probes.config import EvalConfig
from evaluator.probes.rank import NOT_SAID
from tests.support.letters import (
    letter_evaluation,
    letter_items,
    letter_model,
    letter_plan,
    letter_plans,
    letter_questions,
    letter_stream,
)


def _evaluate(engine: FakeEngine, questions: list[Question], config: EvalConfig, in_flight: int = 64) -> list[Record]:
    stream = letter_evaluation(letter_plans(questions, config), config, in_flight=in_flight)
    return [record for _, found in stream.run(engine) for record in found]


CONFIG = EvalConfig(task="toy", items=0, max_new_tokens=6)


def test_numbers_are_the_language_models_own() -> None:
    lm = letter_model()
    questions = letter_questions(letter_items(6), CONFIG)
    records = _evaluate(FakeEngine(lm.answer), questions, CONFIG)
    by_item = {question.item.item_id: letter_plan(question, CONFIG) for question in questions}
    for record in records:
        if record.probe != "rank":
            continue
        plan = by_item[record.item_id]
        gold = plan.scored[plan.question.item.answers[0]]
        row = lm.logprobs(gold.prompt_ids)
        first = gold.continuation_ids[0]
        assert record.rank == 1 + int((row > row[first]).sum())
        assert record.margin == pytest.approx(row[first] - row.max())
        second = lm.logprobs((*gold.prompt_ids, first))[gold.continuation_ids[1]]
        assert record.logprob == pytest.approx(row[first] + second)
    gold_choices = {r.item_id: r.logprob for r in records if r.probe == "choice" and r.is_gold}
    assert gold_choices == {r.item_id: r.logprob for r in records if r.probe == "rank"}


def test_results_do_not_depend_on_order_window_or_cut() -> None:
    questions = letter_questions(letter_items(14), CONFIG)
    whole = sorted(_evaluate(FakeEngine(letter_model().answer), questions, CONFIG), key=repr)
    for seed, in_flight, room in ((1, 1, 1), (2, 3, 7), (3, 64, 500)):
        engine = FakeEngine(letter_model().answer, reorder_seed=seed, room=room)
        assert sorted(_evaluate(engine, questions, CONFIG, in_flight=in_flight), key=repr) == whole
    parts = [
        record
        for start in range(0, 14, 3)
        for record in _evaluate(FakeEngine(letter_model().answer), questions[start : start + 3], CONFIG)
    ]
    assert sorted(parts, key=repr) == whole


def test_a_probe_alone_gives_what_it_gives_among_all() -> None:
    questions = letter_questions(letter_items(8), CONFIG)
    everything = _evaluate(FakeEngine(letter_model().answer), questions, CONFIG)
    for probe in ("greedy", "beam", "sample", "choice", "rank"):
        config = CONFIG.model_copy(update={"probes": (probe,)})
        alone = _evaluate(FakeEngine(letter_model().answer), letter_questions(letter_items(8), config), config)
        assert sorted(alone, key=repr) == sorted((r for r in everything if r.probe == probe), key=repr)


def test_an_excluded_item_is_recorded_and_never_sent() -> None:
    items = [*letter_items(5), replace(letter_items(1)[0], item_id="empty", answers=("?!",))]
    asked: list[Request] = []

    def script(request: Request) -> Response:
        asked.append(request)
        return letter_model().answer(request)

    questions = letter_questions(items, CONFIG)
    records = [r for r in _evaluate(FakeEngine(script), questions, CONFIG) if r.item_id == "empty"]
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
def test_a_failed_request_is_a_status_of_all_that_needs_it(part: str, lost: set[str], rest: set[str]) -> None:
    def script(request: Request) -> Response:
        if part in request.request_id or (part == "score" and isinstance(request, Score)):
            return Response(request_id=request.request_id, status="engine_error", error="too long")
        return letter_model().answer(request)

    records = _evaluate(FakeEngine(script), letter_questions(letter_items(6), CONFIG), CONFIG)
    failed = [r for r in records if r.probe in lost]
    assert {r.probe for r in failed} == lost
    assert {r.status for r in failed} == {"engine_error"}
    assert all(r.logprob is None and r.rank is None for r in failed)
    assert {(r.probe, r.status) for r in records if r.probe in rest} == {(probe, "ok") for probe in rest}


def test_a_cut_context_is_said_in_status_and_column() -> None:
    items = [replace(item, item_id="cut") if n == 0 else item for n, item in enumerate(letter_items(5))]
    records = [
        r
        for r in _evaluate(FakeEngine(letter_model().answer), letter_questions(items, CONFIG), CONFIG)
        if r.item_id == "cut"
    ]
    assert {r.status for r in records if r.text != NOT_SAID} == {"truncated"}
    assert all(r.truncated for r in records)


def test_a_dying_engine_is_an_error_and_what_ended_before_is_kept() -> None:
    questions = letter_questions(letter_items(12), CONFIG)
    stream = letter_evaluation(letter_plans(questions, CONFIG), CONFIG, in_flight=2)
    ended = []
    with pytest.raises(EngineError, match="died"):
        ended.extend(stream.run(FakeEngine(letter_model().answer, fail_after=80)))
    assert 0 < len(ended) < 12


def test_a_response_of_an_ended_item_is_ignored_and_an_unknown_one_is_an_error() -> None:
    config = CONFIG.model_copy(update={"probes": ("greedy",), "formats": ("open",)})
    stream = letter_stream(config, 1)
    (request,) = stream.take(8)
    assert isinstance(request, Generate)
    stream.handle(letter_model().answer(request))
    assert stream.idle
    stream.handle(letter_model().answer(request))
    assert stream.idle
    for unknown in ("7/greedy/open", "x/greedy/open"):
        with pytest.raises(EngineError, match="unknown request"):
            stream.handle(Response(request_id=unknown))


@pytest.mark.parametrize("room", [1, 2, 5, 64])
def test_a_cancel_names_a_request_that_was_given_and_others_are_never_given(room: int) -> None:
    config = CONFIG.model_copy(update={"probes": ("greedy", "beam"), "formats": ("open",), "max_new_tokens": 12})
    stream = letter_stream(config, 4)
    given: set[str] = set()
    cancelled: set[str] = set()

    class Watched:
        def take(self, limit: int) -> Sequence[Request | Cancel]:
            taken = [*stream.take(0), *stream.take(limit)]  # a cancel needs no room
            assert sum(not isinstance(request, Cancel) for request in taken) <= limit
            for request in taken:
                assert request.request_id not in cancelled
                if isinstance(request, Cancel):
                    assert request.request_id in given
                    cancelled.add(request.request_id)
                given.add(request.request_id)
            return taken

    for response in FakeEngine(letter_model().answer, reorder_seed=1, room=room).run(Watched()):
        stream.handle(response)
    assert stream.idle
    assert len(list(stream.recorded())) == 4
    assert cancelled
