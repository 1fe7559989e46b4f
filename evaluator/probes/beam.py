"""The beam probe: the best hypotheses of a beam search. An answer outside all of these is hard to reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from evaluator.core.records import Record
from evaluator.engine.base import Cancel, Request, Response
from evaluator.engine.beam import BeamSearch
from evaluator.probes.base import Asking, Cost, Inquiry, ItemProbe
from evaluator.probes.recording import Recorder, failed

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.probes.base import Settings

REQUESTS = 3  # per beam: measured 15 for a width of 5


class Beam(ItemProbe):
    """`beam_width` answers to the open prompt, best first."""

    name = "beam"
    help = "the best hypotheses of a beam search"
    evidence = "reachable"
    deep = True
    view = "answers"
    title = "beams"
    # How many beams; whether one contains a gold answer; how many do.
    columns: Mapping[str, str] = {"beams": "Int64", "beam_hit": "boolean", "beam_hits": "Int64"}

    def ask(self, asking: Asking) -> Inquiry:
        return _Beams(asking)

    def cost(self, config: Settings) -> Cost:
        width = config.beam_width
        return Cost(requests=REQUESTS * width, generated_tokens=width * config.max_new_tokens)

    def reduce(self, asked: pd.DataFrame) -> pd.DataFrame:
        from evaluator.probes.reducing import hits

        return hits(asked, self.name)


class _Beams(Inquiry):
    gathers = True

    def __init__(self, asking: Asking) -> None:
        super().__init__()
        self._asking = asking
        self._search = BeamSearch(
            f"{asking.serial}/beam",
            asking.prompt().token_ids,
            width=asking.config.beam_width,
            max_tokens=asking.config.max_new_tokens,
            eos_ids=asking.eos_ids,
            first_request_id=asking.greedy_id("open"),
        )

    def start(self) -> Sequence[Request]:
        """The greedy request of the open prompt: the search's first rollout is the greedy answer."""
        return self._search.start()

    def receive(self, response: Response) -> Sequence[Request | Cancel]:
        self._search.add(response)
        return ()

    def follow(self) -> Sequence[Request | Cancel]:
        return self._search.advance()

    def records(self, recorder: Recorder) -> list[Record]:
        prompt, error = self._asking.prompt(), self._search.error
        if error is not None:
            width = self._asking.config.beam_width
            return [recorder.record("beam", "open", prompt, index=index, **failed(error)) for index in range(width)]
        return [
            recorder.record(
                "beam", "open", prompt, index=index, logprob=beam.logprob, **recorder.graded(beam.token_ids)
            )
            for index, beam in enumerate(self._search.hypotheses())
        ]
