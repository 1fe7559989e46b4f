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

import argparse
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, get_args

from benchmarks.harness import Child, environment, module_command, run_main, serve
from evaluator.checkpoints.blueprint import read_blueprint
from evaluator.engine.base import Cancel, EngineStats
from evaluator.engine.vllm.start import BREAKABLE, serves_cpus

if TYPE_CHECKING:
    from benchmarks.serving.workload import Questions
    from evaluator.asking.prompts import Prompter
    from evaluator.asking.questions import Posed
    from evaluator.core.records import Record

WIDTH, TOKENS, SAMPLES, TOP_P = 5, 32, 10, 0.9
_MAX_MODEL_LEN = 2048
_ROWS = 128  # of a step; the product's default on a CPU
# Our sides by name, with the engine's settings on a GPU. On a CPU all are alike.
OURS: Mapping[str, Mapping[str, Any]] = {
    "ours": {},
    "full": {"cuda_graphs": "full"},
    "piecewise": {"cuda_graphs": "piecewise"},
    "decode": {"cuda_graphs": "decode"},
    "eager": {"cuda_graphs": False},
    "deterministic": {"deterministic": True},
    "compile": {"compile": True},
}
# The others, with arguments of `vllm.LLM` on a GPU. `theirs` has all graphs that vLLM
# (0.32) computes right without torch.compile: in those of mixed steps ("FULL"), narrow
# heads give noise (evaluator/engine/vllm/v2/schedules.py).
THEIRS: Mapping[str, Mapping[str, Any]] = {
    "theirs": {
        "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_AND_PIECEWISE"}
    },
    "theirs-compiled": {},
}
_GPU = {"gpu_memory_utilization": 0.1, "max_num_seqs": 256}  # a cache's size is given

Work = Literal["score", "beam", "beam_without_eos", "everything"]
# item -> option's number -> summed log-likelihood, nats
Scores = dict[str, dict[str, float]]


def start(side: str, work: Work, workload: Path, log: Path | None = None) -> Child:
    """A side's process, which starts its engine."""
    command = module_command("benchmarks.serving.sides", side, work, workload)
    return Child(
        f"{side}, {work}", command, env=environment(HF_HUB_OFFLINE="1"), log=log
    )


def scored_pairs(item: Mapping[str, Any]) -> list[tuple[list[int], list[int]]]:
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
    def __init__(self, workload: Mapping[str, Any], side: str) -> None:
        from evaluator.engine.config import EngineConfig
        from evaluator.engine.vllm.engine import VLLMEngine

        self._model = Path(workload["model"])
        self._work = workload
        self._engine = VLLMEngine(EngineConfig(**engine_settings(workload, side)))
        self._engine.load(self._model)
        self._rounds: list[tuple[list[Record], EngineStats]] = []  # of `everything`
        self._plans: dict[tuple[str, str], Posed] = {}  # by language and item id

    def cold(self) -> None:
        """Loading resets the prefix cache, so that no round profits from the one
        before."""
        self._engine.load(self._model)

    def score(self) -> dict[str, Any]:
        from evaluator.engine.base import FixedSource, Score

        requests: list[Score] = []
        wanted: dict[str, tuple[str, str]] = {}
        for item in self._work["items"]:
            for number, (prompt, option) in enumerate(scored_pairs(item)):
                request_id = str(len(requests))
                wanted[request_id] = item["id"], str(number)
                requests.append(
                    Score(
                        request_id=request_id,
                        prompt_ids=tuple(prompt),
                        continuation_ids=tuple(option),
                    )
                )
        scores: Scores = {}
        for response in self._engine.run(FixedSource(requests)):
            if response.status == "ok":
                item_id, option_number = wanted[response.request_id]
                scores.setdefault(item_id, {})[option_number] = sum(response.logprobs)
        return {"scores": scores, "dtype": self._engine.dtype, "stats": self._stats()}

    def beam(self, eos: bool = True) -> dict[str, Any]:
        """Beam search of every item, all at once; `eos` ends an answer."""
        from evaluator.engine.beam import BeamSearch

        ends = frozenset(self._work["eos_ids"]) if eos else frozenset()
        items = self._work["items"]
        searches = {
            str(i): BeamSearch(
                str(i),
                tuple(item["prompt"]),
                width=WIDTH,
                max_tokens=TOKENS,
                eos_ids=ends,
            )
            for i, item in enumerate(items)
        }
        queue: list[Any] = [
            request for search in searches.values() for request in search.start()
        ]

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
            queue.extend(
                searches[response.request_id.split("/")[0]].advance([response])
            )
        beams = {
            item["id"]: [
                [list(found.token_ids), found.logprob] for found in search.hypotheses()
            ]
            for item, search in zip(items, searches.values(), strict=True)
            if search.error is None
        }
        return {"beams": beams, "stats": self._stats()}

    @cached_property
    def _questions(self) -> Questions:
        """Settings, tokenizer and questions, read in the round before the timed
        ones: the other side has its prompts as token ids from the start. Tokenising
        them is ours to do in every round."""
        from benchmarks.serving.workload import read_questions

        return read_questions(
            self._work["task"],
            self._model,
            self._work["count"],
            **self._work.get("settings", {}),
        )

    def everything(self) -> dict[str, Any]:
        """The whole probe set, as the evaluator does it: one stream, records,
        Parquet."""
        from benchmarks.serving.workload import columns, key
        from evaluator.probes.planning import tokenised
        from evaluator.probes.stream import Evaluation
        from evaluator.store.records import RecordStore, to_table

        clock = {"tokenisation": 0.0, "engine": 0.0, "writing": 0.0}
        read = self._questions

        # when the stream has room for another item, as in a run
        def planned() -> Iterator[Posed]:
            for question in read.questions:
                before = time.perf_counter()
                posed = tokenised(question, read.prompter, read.config)
                clock["tokenisation"] += time.perf_counter() - before
                self._plans[question.item.language, question.item.item_id] = posed
                yield posed

        # What `Evaluation` uses of an engine.
        timed: Any = SimpleNamespace(
            name=self._engine.name, run=partial(_timed, self._engine, clock)
        )
        started = time.perf_counter()
        records: list[Record] = []
        greedy: dict[str, list[int]] = {}
        scores: Scores = {}
        for item, found in Evaluation(
            planned(),
            config=read.config,
            prompter=read.prompter,
            columns=columns(engine="vllm", dtype=self._engine.dtype),
        ).run(timed):
            records += found
            for record in found:
                if record.probe == "greedy" and record.token_ids is not None:
                    greedy[key(item)] = list(record.token_ids)
                elif record.probe == "choice" and record.logprob is not None:
                    scores.setdefault(key(item), {})[str(record.index)] = record.logprob
        before = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            RecordStore(Path(folder)).append("bench", "task", "part", to_table(records))
        clock["writing"] = time.perf_counter() - before
        clock["engine"] -= clock["tokenisation"]  # which happens inside of it
        total = time.perf_counter() - started
        clock["driver"] = total - sum(clock.values())
        self._rounds.append((records, self._engine.stats()))
        return {
            "greedy": greedy,
            "scores": scores,
            "dtype": self._engine.dtype,
            "split": {
                name: round(seconds / total, 4) for name, seconds in clock.items()
            },
            "stats": self._stats(),
        }

    def _stats(self) -> dict[str, Any]:
        stats = self._engine.stats()
        named = (
            "requests",
            "steps",
            "prompt_tokens",
            "generated_tokens",
            "busy_seconds",
        )
        counters = {name: getattr(stats, name) for name in named}
        shares = {
            name: None if share is None else round(share, 4)
            for name, share in stats.shares().items()
        }
        return counters | shares

    def accounts(self, number: int) -> dict[str, Any]:
        """The least work for the answers of a round of `everything`, the computed
        work, and this machine's peak."""
        from benchmarks import roofline
        from benchmarks.serving.workload import answers_of, fewest

        if self._questions.config.thinks:  # records hold no thought's forwards
            return {}
        records, stats = self._rounds[number]
        # Of a request's tokens all are forwarded but the last one generated. Each
        # generated one took a distribution.
        computed = stats.prompt_tokens + stats.generated_tokens - stats.requests
        return {
            "fewest": dataclasses.asdict(fewest(answers_of(records, self._plans))),
            "computed": computed,
            "machine": roofline.measure(self._engine.dtype),
        }


def _timed(engine: Any, clock: dict[str, float], source: Any) -> Iterator[Any]:
    """`engine.run`, which sums its time: the rest is the driver's."""
    stream = engine.run(source)
    while True:
        started = time.perf_counter()
        response = next(stream, None)
        clock["engine"] += time.perf_counter() - started
        if response is None:
            return
        yield response


def _positions(workload: Mapping[str, Any]) -> int:
    settings = workload.get("settings", {})
    return (
        _MAX_MODEL_LEN
        + int(settings.get("context_tokens", 0))
        + int(settings.get("thought_limit", 0))
    )


def _rows(workload: Mapping[str, Any]) -> int:
    return int(
        workload["engine_args"].get(
            "max_num_seqs", _ROWS if serves_cpus() else _GPU["max_num_seqs"]
        )
    )


def engine_settings(workload: Mapping[str, Any], side: str) -> dict[str, Any]:
    """Of our engine: those of the device, then the user's."""
    device = {} if serves_cpus() else {**_GPU, **OURS[side]}
    common = {
        "max_model_len": _positions(workload),
        "kv_cache_gib": workload["kv_cache_gib"],
    }
    return {**common, **device, **workload["engine_args"]}


def llm_arguments(workload: Mapping[str, Any], side: str = "theirs") -> dict[str, Any]:
    """What `vllm.LLM` is made with on the other side: what ours uses where it helps
    them too (dtype, block size, batch size, the size of the cache, no statistics),
    then the user's options."""
    if serves_cpus():
        device = {
            "dtype": "float32",
            "block_size": 32,
            "enforce_eager": True,
            "enable_chunked_prefill": False,
        }
        device["max_num_batched_tokens"] = 4096
    else:
        # "auto" computes float32 in bfloat16
        stored = read_blueprint(Path(workload["model"])).dtype
        device = {
            **_GPU,
            **THEIRS[side],
            "dtype": "float32" if stored == "float32" else "auto",
        }
        device["max_num_batched_tokens"] = 16_384
    return {
        **device,
        "max_model_len": _positions(workload),
        "max_num_seqs": _rows(workload),
        "kv_cache_memory_bytes": workload["kv_cache_gib"] << 30,
        "disable_log_stats": True,
        "max_logprobs": 64,
        **workload["llm_args"],
    }


class Theirs:
    """`vllm.LLM`, one blocking call per probe."""

    def __init__(self, workload: Mapping[str, Any], side: str) -> None:
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR"
        )
        if THEIRS[side] and not serves_cpus():
            os.environ[BREAKABLE] = "1"  # pieces of graphs without torch.compile
        from vllm import LLM

        self._llm = LLM(workload["model"], **llm_arguments(workload, side))
        self.cold = self._llm.reset_prefix_cache  # no round profits from the one before
        self._items: list[dict[str, Any]] = workload["items"]
        self._work = workload

    def score(self) -> dict[str, Any]:
        from vllm import SamplingParams

        pairs = [pair for item in self._items for pair in scored_pairs(item)]
        out = self._llm.generate(
            [{"prompt_token_ids": [*prompt, *option]} for prompt, option in pairs],
            SamplingParams(
                max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False
            ),
            use_tqdm=False,
        )
        flat = iter(
            sum(
                result.prompt_logprobs[len(prompt) + i][token].logprob
                for i, token in enumerate(option)
            )
            for result, (prompt, option) in zip(out, pairs, strict=True)
        )
        scores = {
            item["id"]: {
                str(number): next(flat) for number in range(len(item["options"]))
            }
            for item in self._items
        }
        return {"scores": scores}

    def beam(self, eos: bool = True, only_deep: bool = False) -> dict[str, Any]:
        """Beam search of every item, or of those that are asked in depth; `eos` ends
        an answer."""
        from vllm.sampling_params import BeamSearchParams

        items = [item for item in self._items if item["deep"] or not only_deep]
        parameters = BeamSearchParams(
            beam_width=WIDTH, max_tokens=TOKENS, ignore_eos=not eos
        )
        out = self._llm.beam_search(
            [{"prompt_token_ids": item["prompt"]} for item in items], parameters
        )
        beams = {
            item["id"]: [
                [list(s.tokens[len(item["prompt"]) :]), s.cum_logprob]
                for s in result.sequences
            ]
            for item, result in zip(items, out, strict=True)
        }
        return {"beams": beams}

    def everything(self) -> dict[str, Any]:
        """Greedy, then samples, then beams, then candidates: four blocking calls; a
        thought before them is a fifth."""
        from vllm import SamplingParams

        if budget := self._work["settings"].get("thinking"):
            self._items = list(self._after_thoughts(budget))
        prompts = [{"prompt_token_ids": item["prompt"]} for item in self._items]
        deep = [
            prompt
            for prompt, item in zip(prompts, self._items, strict=True)
            if item["deep"]
        ]
        greedy = self._llm.generate(
            prompts,
            SamplingParams(temperature=0, max_tokens=TOKENS, detokenize=False),
            use_tqdm=False,
        )
        self._llm.generate(
            deep,
            SamplingParams(
                n=SAMPLES,
                temperature=1.0,
                top_p=TOP_P,
                max_tokens=TOKENS,
                seed=0,
                detokenize=False,
            ),
            use_tqdm=False,
        )
        self.beam(only_deep=True)
        answers = {
            item["id"]: list(result.outputs[0].token_ids)
            for item, result in zip(self._items, greedy, strict=True)
        }
        return {"greedy": answers, **self.score()}

    @cached_property
    def _prompter(self) -> Prompter:
        from benchmarks.serving.workload import prompter_of

        return prompter_of(Path(self._work["model"]), thinking=True)

    def _after_thoughts(self, budget: int) -> Iterator[dict[str, Any]]:
        """The items with what the model thinks of them, read and tokenised as we do."""
        from vllm import SamplingParams

        from evaluator.asking.prompts import Prompt

        thoughts = self._prompter.thoughts
        assert thoughts is not None
        out = self._llm.generate(
            [{"prompt_token_ids": item["prompt"]} for item in self._work["items"]],
            SamplingParams(
                temperature=0,
                max_tokens=budget,
                stop_token_ids=[thoughts.end_id],
                detokenize=False,
            ),
            use_tqdm=False,
        )
        for item, result in zip(self._work["items"], out, strict=True):
            prompt = Prompt(
                text=item["text"], token_ids=tuple(item["prompt"]), truncated=False
            )
            ids = tuple(result.outputs[0].token_ids)
            thought = thoughts.read(
                prompt.text, ids, self._prompter.eos_ids, self._prompter.decode
            )
            prompt = self._prompter.after(prompt, thought)
            found = self._prompter.continuations(
                prompt, [text[1:] for text in item["option_texts"]]
            )
            pairs = [(each.prompt_ids, each.continuation_ids) for each in found]
            yield {**item, "prompt": list(prompt.token_ids), "pairs": pairs}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("side", choices=(*OURS, *THEIRS))
    parser.add_argument("work", choices=get_args(Work))
    parser.add_argument("workload", type=Path)
    options = parser.parse_args()
    workload = json.loads(options.workload.read_text())
    side: Any = (Ours if options.side in OURS else Theirs)(workload, options.side)
    accounts: Any = getattr(side, "accounts", dict)
    work = (
        partial(side.beam, eos=False)
        if options.work == "beam_without_eos"
        else getattr(side, options.work)
    )
    serve(work, cold=side.cold, facts=accounts)


if __name__ == "__main__":
    run_main(main)
