"""The sample probe: answers drawn by nucleus sampling. Can chance still reach the
gold answer?"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from evaluator.core.records import Columns
from evaluator.core.reducing import hits, majority
from evaluator.engine.base import Generate
from evaluator.probes.base import Cost, ItemProbe, Steps
from evaluator.probes.item import failure_of

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.probes.item import ItemRun, Settings


class Sample(ItemProbe):
    """`samples` answers to the open prompt under each of the run seeds."""

    name = "sample"
    help = "random answers, drawn from the likeliest tokens (top-p)"
    evidence = "reachable"
    deep = True
    drawn = True
    blind = True
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
        seeds = len(config.run_seeds)
        return f"{self.name} x {seeds} seeds" if seeds > 1 else self.name

    def run(self, item: ItemRun) -> Steps:
        config, open_prompt = item.config, item.question.prompts["open"]
        samples = [
            (seed, n) for seed in config.run_seeds for n in range(config.samples)
        ]
        drawn: dict[tuple[int, int], Columns] = {
            (seed, number): {
                "temperature": config.temperature,
                "top_p": config.top_p,
                "seed": sample_seed(seed, item.item.item_id, number),
            }
            for seed, number in samples
        }
        prompts = dict.fromkeys(samples, open_prompt)
        columns: dict[tuple[int, int], Columns] = {}
        if config.thinks:  # each its own thought
            thoughts = yield [
                item.think(
                    f"sample/{seed}/{number}", open_prompt, **drawn[seed, number]
                )
                for seed, number in samples
            ]
            for sample, response in zip(samples, thoughts, strict=True):
                thought = item.thought_of(open_prompt, response)
                prompts[sample] = item.prompter.after(open_prompt, thought)
                columns[sample] = failure_of([response]) or item.cut(thought)
        unanswered = [sample for sample in samples if not columns.get(sample)]
        requests = [
            Generate(
                request_id=item.request_id(self.name, f"{seed}/{number}"),
                prompt_ids=prompts[seed, number].token_ids,
                max_tokens=config.max_new_tokens,
                **drawn[seed, number],
            )
            for seed, number in unanswered
        ]
        responses = yield from item.answered(requests)
        # until the item's other requests are answered: they show whether its
        # log-probabilities are NaN
        yield ()
        for sample, response in zip(unanswered, responses, strict=True):
            columns[sample] = item.generated(response)
        return [
            item.record(
                self.name,
                prompt=prompts[seed, number],
                index=number,
                seed=seed,
                **columns[seed, number],
            )
            for seed, number in samples
        ]

    def cost(self, config: Settings) -> Cost:
        return Cost.of_answers(config.samples * len(config.run_seeds), config)

    def reduce(self, records: pd.DataFrame) -> pd.DataFrame:
        counted = hits(records, self.name)
        voted = majority(records).reindex(counted.index)
        return counted.assign(
            sample_majority=voted.where(counted["sample_hit"].notna())
        )


def sample_seed(run_seed: int, item_id: str, number: int) -> int:
    """The seed of one sample, from run seed, item id and sample number alone: no cut
    of the work moves it."""
    digest = hashlib.sha256(f"{run_seed}:{item_id}:{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
