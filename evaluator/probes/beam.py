"""The beam probe: the best hypotheses of a beam search. An answer outside all of
these is hard to reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from evaluator.core.reducing import first_of, hits
from evaluator.engine.base import Cancel, Request
from evaluator.engine.beam import BeamSearch
from evaluator.probes.base import Cost, ItemProbe, Steps
from evaluator.probes.item import failed

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.probes.item import ItemRun, Settings

REQUESTS = 3  # per beam: measured 15 for a width of 5


class Beam(ItemProbe):
    """`beam_width` answers to the open prompt, best first."""

    name = "beam"
    help = "the most likely answers that a beam search finds"
    evidence = "reachable"
    deep = True
    gathers = True
    view = "answers"
    title = "beams"
    # How many beams; whether one contains a gold answer; how many do; the score of the
    # best one, in nats.
    columns: Mapping[str, str] = {
        "beams": "Int64",
        "beam_hit": "boolean",
        "beam_hits": "Int64",
        "beam_logprob": "Float64",
    }

    def run(self, item: ItemRun) -> Steps:
        """The search's first rollout is the greedy request of the open prompt."""
        width, greedy = item.config.beam_width, item.greedy()
        search = BeamSearch(
            item.request_id(self.name, "rollout"),
            greedy.prompt_ids,
            width=width,
            max_tokens=greedy.max_tokens,
            eos_ids=item.eos_ids,
            first_request_id=greedy.request_id,
            first_stream=item.stream,
        )
        following: Sequence[Request | Cancel] = search.start()
        while following or not search.done:
            following = search.advance((yield following))
        if search.error is not None:
            return [
                item.record(self.name, index=index, **failed(search.error))
                for index in range(width)
            ]
        return [
            item.record(
                self.name,
                index=index,
                logprob=beam.logprob,
                **item.graded(beam.token_ids),
            )
            for index, beam in enumerate(search.hypotheses())
        ]

    def cost(self, config: Settings) -> Cost:
        width = config.beam_width
        return Cost(
            requests=REQUESTS * width, generated_tokens=width * config.max_new_tokens
        )

    def reduce(self, records: pd.DataFrame) -> pd.DataFrame:
        score = f"{self.name}_logprob"
        best = records[records["index"] == 0]
        scores = first_of(best, {score: best["logprob"]}, {score: "Float64"})
        return hits(records, self.name).join(scores)
