"""The sample probe: answers drawn by nucleus sampling. Can chance still reach the gold answer?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from evaluator.core.records import Record
from evaluator.engine.base import NOT_NUMBERS, Generate
from evaluator.probes.base import Asking, Cost, Inquiry, ItemProbe
from evaluator.probes.recording import Recorder, failed

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.probes.base import Settings


class Sample(ItemProbe):
    """`samples` answers to the open prompt under each of the sample seeds."""

    name = "sample"
    help = "answers drawn by nucleus sampling"
    evidence = "reachable"
    deep = True
    view = "answers"
    title = "samples"
    # How many samples; whether one contains a gold answer; how many do.
    columns: Mapping[str, str] = {"samples": "Int64", "sample_hit": "boolean", "sample_hits": "Int64"}

    def describe(self, config: Settings) -> str:
        return f"{self.name} x {len(config.seeds)} seeds" if len(config.seeds) > 1 else self.name

    def ask(self, asking: Asking) -> Inquiry:
        return _Samples(asking)

    def cost(self, config: Settings) -> Cost:
        count = config.samples * len(config.seeds)
        return Cost(requests=count, generated_tokens=count * config.max_new_tokens)

    def reduce(self, asked: pd.DataFrame) -> pd.DataFrame:
        from evaluator.probes.reducing import hits

        return hits(asked, self.name)


def sample_seed(run_seed: int, item_id: str, number: int) -> int:
    """The seed of one sample, from run seed, item id and sample number alone: no cut of the work moves it."""
    digest = hashlib.sha256(f"{run_seed}:{item_id}:{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class _Samples(Inquiry):
    def __init__(self, asking: Asking) -> None:
        super().__init__()
        self._asking = asking

    def _numbered(self) -> Iterator[tuple[str, int, int]]:
        """The request id, the sample seed and the number of every sample."""
        for seed in self._asking.config.seeds:
            for number in range(self._asking.config.samples):
                yield self._asking.request_id("sample", f"{seed}/{number}"), seed, number

    def start(self) -> list[Generate]:
        config, item_id = self._asking.config, self._asking.plan.question.item.item_id
        return [
            Generate(
                request_id=request_id,
                prompt_ids=self._asking.prompt().token_ids,
                max_tokens=config.max_new_tokens,
                temperature=config.temperature,
                top_p=config.top_p,
                seed=sample_seed(seed, item_id, number),
            )
            for request_id, seed, number in self._numbered()
        ]

    def records(self, recorder: Recorder) -> list[Record]:
        return [self._record(recorder, *numbered) for numbered in self._numbered()]

    def _record(self, recorder: Recorder, request_id: str, seed: int, number: int) -> Record:
        response, prompt = self.responses[request_id], self._asking.prompt()
        if response.status != "ok":
            return recorder.record("sample", "open", prompt, index=number, seed=seed, **failed(response.error))
        if (
            recorder.collapsed and not response.logprobs
        ):  # drawn without a look at log-probabilities: other requests saw
            return recorder.record("sample", "open", prompt, index=number, seed=seed, **failed(NOT_NUMBERS))
        return recorder.record(
            "sample",
            "open",
            prompt,
            index=number,
            seed=seed,
            logprob=sum(response.logprobs) if response.logprobs else None,
            cached_tokens=response.cached_tokens,
            **recorder.graded(response.token_ids),
        )
