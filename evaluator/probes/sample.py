"""The sample probe: answers drawn by nucleus sampling. Can chance still reach the
gold answer?"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evaluator.engine.base import Generate
from evaluator.probes.base import Cost, ItemProbe, Steps
from evaluator.probes.item import failed
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
        return (
            f"{self.name} x {len(config.seeds)} seeds"
            if len(config.seeds) > 1
            else self.name
        )

    def run(self, item: ItemRun) -> Steps:
        config, open_prompt = item.config, item.plan.prompts["open"]
        numbered = [
            (seed, number) for seed in config.seeds for number in range(config.samples)
        ]
        shared = {"temperature": config.temperature, "top_p": config.top_p}
        seeds = [
            sample_seed(seed, item.item.item_id, number) for seed, number in numbered
        ]
        drawn: list[dict[str, Any]] = [{**shared, "seed": seed} for seed in seeds]
        names, prompts = (
            [f"{seed}/{number}" for seed, number in numbered],
            [open_prompt] * len(numbered),
        )
        # of those that need no answer: all of them
        columns: list[dict[str, Any]] = [{} for _ in numbered]
        if config.thinks:  # each its own thought
            thoughts = yield [
                item.think(f"{self.name}/{name}", open_prompt, **each)
                for name, each in zip(names, drawn, strict=True)
            ]
            read = [item.thought_of(open_prompt, response) for response in thoughts]
            prompts = [item.prompter.after(open_prompt, thought) for thought in read]
            columns = [
                failed(response.error) if response.status != "ok" else item.cut(thought)
                for response, thought in zip(thoughts, read, strict=True)
            ]
        asked = [place for place, known in enumerate(columns) if not known]
        responses = yield [
            Generate(
                request_id=item.request_id(self.name, names[place]),
                prompt_ids=prompts[place].token_ids,
                max_tokens=config.max_new_tokens,
                **drawn[place],
            )
            for place in asked
        ]
        # until the item's other requests are answered: they show whether its
        # log-probabilities are NaN
        yield ()
        for place, response in zip(asked, responses, strict=True):
            columns[place] = item.generated(response)
        return [
            item.record(self.name, prompt=prompt, index=number, seed=seed, **each)
            for (seed, number), prompt, each in zip(
                numbered, prompts, columns, strict=True
            )
        ]

    def cost(self, config: Settings) -> Cost:
        count = config.samples * len(config.seeds)
        each = config.max_new_tokens + config.expected_thought
        return Cost(
            requests=count * (2 if config.thinks else 1), generated_tokens=count * each
        )

    def reduce(self, asked: pd.DataFrame) -> pd.DataFrame:
        counted = hits(asked, self.name)
        voted = majority(asked).reindex(counted.index)
        return counted.assign(
            sample_majority=voted.where(counted["sample_hit"].notna())
        )


def sample_seed(run_seed: int, item_id: str, number: int) -> int:
    """The seed of one sample, from run seed, item id and sample number alone: no cut
    of the work moves it."""
    digest = hashlib.sha256(f"{run_seed}:{item_id}:{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
