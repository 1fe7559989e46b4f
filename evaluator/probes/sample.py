"""The sample probe: answers drawn by nucleus sampling. Can chance still reach the gold answer?"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from evaluator.engine.base import Generate
from evaluator.probes.base import Cost, ItemProbe, Steps
from evaluator.probes.reducing import hits, majority

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.probes.item import ItemRun, Settings


class Sample(ItemProbe):
    """`samples` answers to the open prompt under each of the sample seeds."""

    name = "sample"
    help = "random answers, drawn from the likeliest tokens (top-p)"
    evidence = "reachable"
    deep = True
    view = "answers"
    title = "samples"
    columns: Mapping[str, str] = {
        # How many samples; whether one contains a gold answer; how many do.
        "samples": "Int64",
        "sample_hit": "boolean",
        "sample_hits": "Int64",
        # The chance that the majority's answer contains one.
        "sample_majority": "Float64",
    }

    def describe(self, config: Settings) -> str:
        return f"{self.name} x {len(config.seeds)} seeds" if len(config.seeds) > 1 else self.name

    def run(self, item: ItemRun) -> Steps:
        config, prompt_ids = item.config, item.prompts["open"].token_ids
        numbered = [(seed, number) for seed in config.seeds for number in range(config.samples)]
        responses = yield [
            Generate(
                request_id=item.request_id(self.name, f"{seed}/{number}"),
                prompt_ids=prompt_ids,
                max_tokens=config.max_new_tokens,
                temperature=config.temperature,
                top_p=config.top_p,
                seed=sample_seed(seed, item.item.item_id, number),
            )
            for seed, number in numbered
        ]
        yield ()  # until the item's other requests are answered: they show whether its log-probabilities are NaN
        return [
            item.record(self.name, index=number, seed=seed, **item.generated(response))
            for (seed, number), response in zip(numbered, responses, strict=True)
        ]

    def cost(self, config: Settings) -> Cost:
        count = config.samples * len(config.seeds)
        return Cost(requests=count, generated_tokens=count * config.max_new_tokens)

    def reduce(self, asked: pd.DataFrame) -> pd.DataFrame:
        counted = hits(asked, self.name)
        voted = majority(asked).reindex(counted.index)
        return counted.assign(sample_majority=voted.where(counted["sample_hit"].notna()))


def sample_seed(run_seed: int, item_id: str, number: int) -> int:
    """The seed of one sample, from run seed, item id and sample number alone: no cut of the work moves it."""
    digest = hashlib.sha256(f"{run_seed}:{item_id}:{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
