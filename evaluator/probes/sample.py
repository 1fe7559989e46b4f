"""The sample probe: answers drawn by nucleus sampling. Can chance still reach the
gold answer?"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evaluator.core.reducing import hits, majority
from evaluator.engine.base import Generate, Response
from evaluator.probes.base import Cost, ItemProbe, Steps
from evaluator.probes.item import failed

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.asking.prompts import Prompt
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
        seeds = len(config.seeds)
        return f"{self.name} x {seeds} seeds" if seeds > 1 else self.name

    def run(self, item: ItemRun) -> Steps:
        config, open_prompt = item.config, item.question.prompts["open"]
        samples = [
            _Drawn(item, seed, number, open_prompt)
            for seed in config.seeds
            for number in range(config.samples)
        ]
        if config.thinks:  # each its own thought
            thoughts = yield [sample.think() for sample in samples]
            for sample, response in zip(samples, thoughts, strict=True):
                sample.take_thought(response)
        unanswered = [sample for sample in samples if not sample.columns]
        responses = yield [
            Generate(
                request_id=item.request_id(self.name, sample.name),
                prompt_ids=sample.prompt.token_ids,
                max_tokens=config.max_new_tokens,
                **sample.drawn,
            )
            for sample in unanswered
        ]
        # until the item's other requests are answered: they show whether its
        # log-probabilities are NaN
        yield ()
        for sample, response in zip(unanswered, responses, strict=True):
            sample.columns = item.generated(response)
        return [
            item.record(
                self.name,
                prompt=sample.prompt,
                index=sample.number,
                seed=sample.seed,
                **sample.columns,
            )
            for sample in samples
        ]

    def cost(self, config: Settings) -> Cost:
        count = config.samples * len(config.seeds)
        each = config.max_new_tokens + config.expected_thought
        return Cost(
            requests=count * (2 if config.thinks else 1), generated_tokens=count * each
        )

    def reduce(self, records: pd.DataFrame) -> pd.DataFrame:
        counted = hits(records, self.name)
        voted = majority(records).reindex(counted.index)
        return counted.assign(
            sample_majority=voted.where(counted["sample_hit"].notna())
        )


class _Drawn:
    """One sample of an item."""

    def __init__(self, item: ItemRun, seed: int, number: int, prompt: Prompt) -> None:
        self._item = item
        self.seed, self.number, self.prompt = seed, number, prompt
        self.name = f"{seed}/{number}"
        self.drawn: dict[str, Any] = {
            "temperature": item.config.temperature,
            "top_p": item.config.top_p,
            "seed": sample_seed(seed, item.item.item_id, number),
        }
        self.columns: dict[str, Any] = {}  # of its record, once they are known

    def think(self) -> Generate:
        return self._item.think(f"sample/{self.name}", self.prompt, **self.drawn)

    def take_thought(self, response: Response) -> None:
        """Answer after this thought, unless it failed or was cut."""
        item = self._item
        thought = item.thought_of(self.prompt, response)
        self.prompt = item.prompter.after(self.prompt, thought)
        if response.status != "ok":
            self.columns = failed(response.error)
        else:
            self.columns = item.cut(thought)


def sample_seed(run_seed: int, item_id: str, number: int) -> int:
    """The seed of one sample, from run seed, item id and sample number alone: no cut
    of the work moves it."""
    digest = hashlib.sha256(f"{run_seed}:{item_id}:{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
