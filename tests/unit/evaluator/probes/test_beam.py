"""The beam probe and the greedy request that is its first rollout."""

import pytest

from evaluator.engine.base import Cancel, Generate
from evaluator.engine.fake import FakeEngine
from evaluator.probes.config import EvalConfig
from tests.support.letters import EOS, letter_model, letter_stream


def run(probes: tuple[str, ...]) -> tuple[list[Generate], set[str]]:
    """The requests that an engine was given, and those that it was told to stop."""
    config = EvalConfig(task="toy", items=0, max_new_tokens=12, probes=probes)
    stream = letter_stream(config, 8)
    given: list[Generate] = []
    cancelled: set[str] = set()

    class Watched:
        streamed = stream.streamed

        def take(self, limit: int) -> list[Generate | Cancel]:
            taken = list(stream.take(limit))
            given.extend(each for each in taken if not isinstance(each, Cancel))
            cancelled.update(each.request_id for each in taken if isinstance(each, Cancel))
            return taken

    for response in FakeEngine(letter_model().answer, reorder_seed=1).run(Watched()):
        stream.handle(response)
    assert stream.idle
    return given, cancelled


@pytest.mark.parametrize("probes", [("greedy", "beam"), ("beam",)])
def test_the_open_greedy_request_is_sent_once_with_what_the_search_needs(probes):
    given, _ = run(probes)
    first = [request for request in given if request.request_id.endswith("/greedy/open")]
    assert len(first) == 8
    assert all(request.stream and request.top_logprobs == 5 + len(EOS) for request in first)
    (alone,) = {(request.stream, request.top_logprobs) for request in run(("greedy",))[0]}
    assert alone == (False, 0)


def test_a_search_ends_the_greedy_request_only_where_nothing_else_waits_for_it():
    assert not [name for name in run(("greedy", "beam"))[1] if "/greedy/" in name]
    assert [name for name in run(("beam",))[1] if "/greedy/" in name]
