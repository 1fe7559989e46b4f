"""The sides of the serving benchmarks, each in a separate process with its own engine,
for all rounds.

`Ours` is Resurface's engine and drivers; `Theirs` is `vllm.LLM` used as its
documentation shows. A side is a child process that does one round of its work per line
it reads, and answers with one line of JSON::

    python -m benchmarks.serving.sides full score WORKLOAD.json      (started by the benchmarks of serving)

On a GPU the caches of all engines have a fixed size: vLLM then measures no memory, and
they can start side by side.

Results are keyed by the workload's item ids, and scores by the option's number besides,
so that a comparison sees which answers a side lacks.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from benchmarks.harness import Options, run_main, serve
from benchmarks.serving.launching import (
    OURS,
    SAMPLES,
    THEIRS,
    TOKENS,
    TOP_P,
    WIDTH,
    Work,
    engine_settings,
    llm_arguments,
)
from benchmarks.serving.workload import Questions, columns, key, read_questions
from evaluator.asking.prompts import Prompt, Prompter
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.errors import Document, Json
from evaluator.core.records import Record
from evaluator.engine.base import Cancel, FixedSource, Score
from evaluator.engine.beam import BeamSearch
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.engine.vllm.start import BREAKABLE, serves_cpus
from evaluator.probes.config import EvalConfig
from evaluator.probes.planning import prompter_of, tokenised
from evaluator.probes.stream import Evaluation
from evaluator.store.records import RecordStore, to_table

# item -> option's number -> summed log-likelihood, nats
Scores = dict[str, dict[str, float]]


def scored_pairs(item: Document) -> list[tuple[list[int], list[int]]]:
    """Of each option of a workload's item: the ids before it, and its own. Where a
    tokenizer merges across the boundary, the ids before it are fewer than the prompt's.
    After a thought they are `pairs`.
    """
    if "pairs" in item:
        return list(item["pairs"])
    starts = item.get("starts") or [len(item["prompt"])] * len(item["options"])
    return [
        (item["prompt"][:start], option)
        for start, option in zip(starts, item["options"], strict=True)
    ]


class Ours:
    def __init__(self, workload: Document, side: str) -> None:
        self._model = Path(workload["model"])
        self._work = workload
        self._engine = VLLMEngine(EngineConfig(**engine_settings(workload, side)))
        self._engine.load(self._model)

    def cold(self) -> None:
        """Loading resets the prefix cache, so that no round profits from the one
        before."""
        self._engine.load(self._model)

    def score(self) -> Json:
        requests: list[Score] = []
        wanted: dict[str, tuple[str, str]] = {}
        for item in self._work["items"]:
            for number, (prompt, option) in enumerate(scored_pairs(item)):
                request_id = str(len(requests))
                wanted[request_id] = item["id"], str(number)
                request = Score(
                    request_id=request_id,
                    prompt_ids=tuple(prompt),
                    continuation_ids=tuple(option),
                )
                requests.append(request)
        scores: Scores = {}
        for response in self._engine.run(FixedSource(requests)):
            if response.status == "ok":
                item_id, option_number = wanted[response.request_id]
                scores.setdefault(item_id, {})[option_number] = sum(response.logprobs)
        return {"scores": scores, "dtype": self._engine.dtype, "stats": self._stats()}

    def beam(self) -> Json:
        """Beam search of every item, all at once."""
        ends = frozenset(self._work["eos_ids"])
        searches: dict[str, BeamSearch] = {}
        queue: list[Any] = []
        for number, item in enumerate(self._work["items"]):
            search = BeamSearch(
                str(number),
                tuple(item["prompt"]),
                width=WIDTH,
                max_tokens=TOKENS,
                eos_ids=ends,
            )
            searches[str(number)] = search
            queue += search.start()

        class Source:
            def take(self, limit: int) -> Sequence[Any]:
                for search in searches.values():
                    queue.extend(search.advance())
                taken = [each for each in queue if isinstance(each, Cancel)]
                queue[:] = [each for each in queue if not isinstance(each, Cancel)]
                taken += queue[:limit]
                del queue[:limit]
                return taken

        for response in self._engine.run(Source()):
            search = searches[response.request_id.split("/")[0]]
            queue.extend(search.advance([response]))
        beams = {}
        for item, search in zip(self._work["items"], searches.values(), strict=True):
            if search.error is None:
                hypotheses = search.hypotheses()
                beams[item["id"]] = [
                    [list(beam.token_ids), beam.logprob] for beam in hypotheses
                ]
        return {"beams": beams, "stats": self._stats()}

    @cached_property
    def _questions(self) -> Questions:
        """Settings, tokenizer and questions, read in the round before the timed
        ones: the other side has its prompts as token ids from the start. Tokenising
        them is ours to do in every round."""
        work = self._work
        settings = work.get("settings", {})
        return read_questions(work["task"], self._model, work["count"], **settings)

    def everything(self) -> Json:
        """The whole probe set, as the evaluator does it: one stream, records,
        Parquet."""
        read = self._questions
        evaluation = Evaluation.of(
            # when the stream has room for another item, as in a run
            (tokenised(each, read.prompter, read.config) for each in read.questions),
            config=read.config,
            prompter=read.prompter,
            columns=columns(dtype=self._engine.dtype),
        )
        records: list[Record] = []
        greedy: dict[str, list[int]] = {}
        scores: Scores = {}
        for item, of_item in evaluation.run(self._engine):
            records += of_item
            for record in of_item:
                if record.probe == "greedy" and record.token_ids is not None:
                    if record.thought_state != "cut":  # which has no answer
                        greedy[key(item)] = list(record.token_ids)
                elif record.probe == "choice" and record.logprob is not None:
                    scores.setdefault(key(item), {})[str(record.index)] = record.logprob
        with tempfile.TemporaryDirectory() as folder:
            RecordStore(Path(folder)).append("bench", to_table(records))
        return {
            "greedy": greedy,
            "scores": scores,
            "dtype": self._engine.dtype,
            "stats": self._stats(),
        }

    def _stats(self) -> Json:
        stats = self._engine.stats()
        reported: Json = {
            name: getattr(stats, name)
            for name in ("requests", "steps", "prompt_tokens", "generated_tokens")
        }
        shares = {"busy_seconds": stats.busy_seconds, **stats.shares()}
        for name, share in shares.items():
            reported[name] = None if share is None else round(share, 4)
        return reported


class Theirs:
    """`vllm.LLM`, one blocking call per probe."""

    def __init__(self, workload: Document, side: str) -> None:
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR"
        )
        if THEIRS[side] and not serves_cpus():
            os.environ[BREAKABLE] = "1"  # pieces of graphs without torch.compile
        from vllm import LLM

        self._llm = LLM(workload["model"], **llm_arguments(workload, side))
        self.cold = self._llm.reset_prefix_cache  # no round profits from the one before
        self._items: list[Json] = workload["items"]
        self._work = workload

    def _generate(self, prompts: Sequence[Sequence[int]], **parameters: Any) -> Any:
        """The results of one blocking call."""
        from vllm import SamplingParams

        return self._llm.generate(
            [{"prompt_token_ids": list(ids)} for ids in prompts],
            SamplingParams(detokenize=False, **parameters),
            use_tqdm=False,
        )

    def score(self) -> Json:
        pairs = [pair for item in self._items for pair in scored_pairs(item)]
        prompts = [[*prompt, *option] for prompt, option in pairs]
        results = self._generate(
            prompts, max_tokens=1, temperature=0, prompt_logprobs=0
        )
        values = []
        for (prompt, option), result in zip(pairs, results, strict=True):
            tables = result.prompt_logprobs[len(prompt) :]
            tokens = zip(tables, option, strict=True)
            values.append(sum(table[token].logprob for table, token in tokens))
        scores: Scores = {}
        value = iter(values)
        for item in self._items:
            options = range(len(item["options"]))
            scores[item["id"]] = {str(number): next(value) for number in options}
        return {"scores": scores}

    def beam(self, only_deep: bool = False) -> Json:
        """Beam search of every item, or of those that are asked in depth."""
        from vllm.sampling_params import BeamSearchParams

        items = [item for item in self._items if item["deep"] or not only_deep]
        parameters = BeamSearchParams(beam_width=WIDTH, max_tokens=TOKENS)
        prompts = [{"prompt_token_ids": item["prompt"]} for item in items]
        results = self._llm.beam_search(prompts, parameters)
        beams = {}
        for item, result in zip(items, results, strict=True):
            start = len(item["prompt"])
            beams[item["id"]] = [
                [list(beam.tokens[start:]), beam.cum_logprob]
                for beam in result.sequences
            ]
        return {"beams": beams}

    def everything(self) -> Json:
        """Greedy, then samples, then beams, then candidates: four blocking calls; a
        thought before them is a fifth."""
        if budget := self._work["settings"].get("thinking"):
            self._items = list(self._after_thoughts(budget))
        prompts = [item["prompt"] for item in self._items]
        greedy = self._generate(prompts, temperature=0, max_tokens=TOKENS)
        self._generate(
            [item["prompt"] for item in self._items if item["deep"]],
            n=SAMPLES,
            temperature=1.0,
            top_p=TOP_P,
            max_tokens=TOKENS,
            seed=0,
        )
        self.beam(only_deep=True)
        answers = {}
        for item, result in zip(self._items, greedy, strict=True):
            if not item.get("cut"):  # a thought without an end has no answer
                answers[item["id"]] = list(result.outputs[0].token_ids)
        return {"greedy": answers, **self.score()}

    @cached_property
    def _prompter(self) -> Prompter:
        work = self._work
        config = EvalConfig(task=work["task"], **work["settings"])
        return prompter_of(load_tokenizer(Path(work["model"])), config)

    def _after_thoughts(self, budget: int) -> Iterator[Json]:
        """The items with what the model thinks of them, read and tokenised as we do."""
        prompter, thoughts = self._prompter, self._prompter.thoughts
        assert thoughts is not None
        items = self._work["items"]
        results = self._generate(
            [item["prompt"] for item in items],
            temperature=0,
            max_tokens=budget,
            stop_token_ids=[thoughts.end_id],
        )
        for item, result in zip(items, results, strict=True):
            ids = tuple(item["prompt"])
            prompt = Prompt(text=item["text"], token_ids=ids, truncated=False)
            thought_ids = tuple(result.outputs[0].token_ids)
            thought = thoughts.read(
                prompt.text, thought_ids, prompter.eos_ids, prompter.decode
            )
            prompt = prompter.after(prompt, thought)
            texts = [text[1:] for text in item["option_texts"]]
            options = prompter.continuations(prompt, texts)
            pairs = [(option.prompt_ids, option.continuation_ids) for option in options]
            cut = thought is not None and thought.state == "cut"
            yield {**item, "prompt": list(prompt.token_ids), "pairs": pairs, "cut": cut}


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("side", choices=(*OURS, *THEIRS))
    parser.add_argument("work", choices=get_args(Work))
    parser.add_argument("workload", type=Path)
    options = parser.parse_args()
    workload = json.loads(options.workload.read_text())
    kind: Any = Ours if options.side in OURS else Theirs
    side = kind(workload, options.side)
    serve(getattr(side, options.work), cold=side.cold)


if __name__ == "__main__":
    run_main(main)
