"""The rank probe: the rank of the gold answer's first token in the vocabulary after the open prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evaluator.asking.questions import Question
from evaluator.core.records import Record
from evaluator.engine.base import Request
from evaluator.probes.base import Asking, Cost, Inquiry, ItemProbe
from evaluator.probes.recording import Recorder, scored
from evaluator.tasks.loading import gold_option

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.probes.base import Settings


class Rank(ItemProbe):
    """The rank of the first token (1: the most likely), and how far it is behind the top token, in nats."""

    name = "rank"
    help = "the rank of the gold answer's first token"
    evidence = "reachable"
    view = "rank"
    title = "first token of the gold answer"
    # Of the gold answer's first token; the margin in nats.
    columns: Mapping[str, str] = {"rank": "Int64", "margin": "Float64"}

    def continuations(self, question: Question) -> tuple[str, ...]:
        return (gold_option(question.item),)

    def ask(self, asking: Asking) -> Inquiry:
        return _Rank(asking)

    def cost(self, config: Settings) -> Cost:
        return Cost(scored=frozenset({"gold"}))

    def reduce(self, asked: pd.DataFrame) -> pd.DataFrame:
        from evaluator.probes.reducing import KEY, where_measured

        typed = asked.astype({"rank": "Int64", "margin": "Float64"})
        return where_measured(typed.groupby(list(KEY))[["rank", "margin"]].first(), asked, self.name, "rank")


class _Rank(Inquiry):
    def __init__(self, asking: Asking) -> None:
        super().__init__()
        self._asking = asking
        self._gold = gold_option(asking.plan.question.item)

    def start(self) -> list[Request]:
        return [self._asking.score(self._gold)]

    def records(self, recorder: Recorder) -> list[Record]:
        response = self.responses[self._asking.score_id(self._gold)]
        columns: dict[str, Any] = scored(response, self._asking.scored(self._gold))
        if response.status == "ok":
            columns["rank"] = response.ranks[0]
            columns["margin"] = response.logprobs[0] - response.top_logprobs[0][0]
        return [recorder.record("rank", "open", self._asking.prompt(), **columns)]
