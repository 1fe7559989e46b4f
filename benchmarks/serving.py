"""The two sides of the serving benchmarks, each in a process of its own with an engine of its own, kept for all rounds.

`Ours` is Resurface's engine and drivers; `Theirs` is `vllm.LLM` used as its documentation shows. A side is a child
process that does one round of its work per line it reads, and answers with one line of JSON::

    python benchmarks/serving.py ours score WORKLOAD.json      (started by score.py, beam.py and pass.py)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

WIDTH, TOKENS, SAMPLES, TOP_P = 5, 32, 10, 0.9
_MAX_MODEL_LEN = 2048


class Child:
    """A side's process."""

    def __init__(self, side: str, work: str, workload: Path) -> None:
        command = [sys.executable, __file__, side, work, str(workload)]
        root = Path(__file__).resolve().parents[1]
        environment = os.environ | {"PYTHONPATH": str(root), "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._answer()  # the engine is up

    def round(self) -> Any:
        """One round of the work; returns its result."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{' '.join(self._process.args[1:4])}: the process ended with {self._process.wait()}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Ours:
    def __init__(self, workload: Mapping[str, Any]) -> None:
        from evaluator.engine.config import EngineConfig
        from evaluator.engine.vllm.engine import VLLMEngine

        self._model = Path(workload["model"])
        self._work = workload
        self._engine = VLLMEngine(EngineConfig(max_model_len=_MAX_MODEL_LEN, **workload["engine_args"]))
        self._engine.load(self._model)

    def cold(self) -> None:
        """Loading resets the prefix cache, so that no round profits from the one before."""
        self._engine.load(self._model)

    def score(self) -> dict[str, Any]:
        from evaluator.engine.base import FixedSource, Score

        requests = [
            Score(request_id=f"{i}/{j}", prompt_ids=tuple(item["prompt"]), continuation_ids=tuple(option))
            for i, item in enumerate(self._work["items"])
            for j, option in enumerate(item["options"])
        ]
        got = {r.request_id: sum(r.logprobs) for r in self._engine.run(FixedSource(requests))}
        scores = [[got[f"{i}/{j}"] for j in range(len(item["options"]))] for i, item in enumerate(self._work["items"])]
        return {"scores": scores, "stats": self._stats()}

    def beam(self, eos: bool = True) -> dict[str, Any]:
        from evaluator.engine.beam import BeamSearch

        ends = frozenset(self._work["eos_ids"]) if eos else frozenset()
        searches = {
            str(i): BeamSearch(str(i), tuple(item["prompt"]), width=WIDTH, max_tokens=TOKENS, eos_ids=ends)
            for i, item in enumerate(self._work["items"])
        }
        queue = [request for search in searches.values() for request in search.start()]

        class Source:
            def take(self, limit: int) -> Sequence[Any]:
                taken = queue[:limit]
                del queue[:limit]
                return taken

        for response in self._engine.run(Source()):
            queue.extend(searches[response.request_id.split("/")[0]].receive(response))
        return {
            "beams": [[[list(h.token_ids), h.logprob] for h in s.hypotheses()] for s in searches.values()],
            "stats": self._stats(),
        }

    @cached_property
    def _task(self) -> tuple[Any, Any, list[Any]]:
        """Settings, tokenizer and questions, read in the round before the timed ones: the other side has its prompts
        as token ids from the start. Tokenising them is ours to do in every round."""
        from evaluator.asking.prompts import Prompter
        from evaluator.asking.questions import questions_of
        from evaluator.checkpoints.tokenizer import load_tokenizer
        from evaluator.probes.config import EvalConfig
        from evaluator.tasks import load_task

        settings = self._work.get("settings", {})
        config = EvalConfig(task=self._work["task"], items=self._work["per_language"], **settings)
        prompter = Prompter(load_tokenizer(self._model), chat=False, prompt_tokens=512, one_shot_prompt_tokens=1024)
        return config, prompter, questions_of(load_task(config.task, None), config)[: self._work["count"]]

    def everything(self) -> dict[str, Any]:
        """The whole probe set, as the evaluator does it: one stream, records, Parquet."""
        import tempfile

        from evaluator.probes.item import Stamp, plan
        from evaluator.probes.stream import evaluate
        from evaluator.store.records import RecordStore, to_table

        clock = {"tokenisation": 0.0, "engine": 0.0, "writing": 0.0}

        def tokenised() -> Iterator[Any]:  # when the stream has room for another item, as in a run
            for question in questions:
                before = time.perf_counter()
                planned = plan(question, prompter, config)
                clock["tokenisation"] += time.perf_counter() - before
                yield planned

        config, prompter, questions = self._task
        started = time.perf_counter()
        stamp = Stamp(checkpoint="bench", weights_digest="", base=None, method=None, pattern=None, sparsity=None,
                      calibration=None, engine="vllm", engine_version="", dtype=self._engine.dtype)  # fmt: skip
        records = []
        for finished in evaluate(
            _Timed(self._engine, clock), tokenised(), config=config, stamp=stamp, decode=prompter.decode,
            eos_ids=prompter.eos_ids,
        ):  # fmt: skip
            records += finished.records
        before = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            RecordStore(Path(folder)).append("bench", "task", "part", to_table(records))
        clock["writing"] = time.perf_counter() - before
        clock["engine"] -= clock["tokenisation"]  # which happens inside of it
        total = time.perf_counter() - started
        clock["driver"] = total - sum(clock.values())
        greedy = {r.item_id: list(r.token_ids or ()) for r in records if r.probe == "greedy"}
        choice: dict[str, list[float]] = {}
        for r in records:
            if r.probe == "choice" and r.logprob is not None:
                choice.setdefault(r.item_id, []).append(r.logprob)
        order = [question.item.item_id for question in questions]
        return {
            "greedy": [greedy[item] for item in order],
            "scores": [choice[item] for item in order],
            "split": {name: round(seconds / total, 4) for name, seconds in clock.items()},
            "stats": self._stats(),
        }

    def _stats(self) -> dict[str, Any]:
        stats = self._engine.stats()
        counters = {name: getattr(stats, name) for name in ("requests", "steps", "prompt_tokens", "generated_tokens")}
        shares = {"idle_share": stats.idle_share, "waiting_share": stats.waiting_share}
        return counters | {name: None if share is None else round(share, 4) for name, share in shares.items()}

    def machine(self) -> dict[str, float]:
        import roofline

        return roofline.measure(self._engine.dtype)


class _Timed:
    """An engine whose time in `run` is added up: what is left is the driver's."""

    def __init__(self, engine: Any, clock: dict[str, float]) -> None:
        self._engine, self._clock, self.name = engine, clock, engine.name

    def run(self, source: Any) -> Iterator[Any]:
        stream = self._engine.run(source)
        while True:
            started = time.perf_counter()
            response = next(stream, None)
            self._clock["engine"] += time.perf_counter() - started
            if response is None:
                return
            yield response


def llm_arguments(workload: Mapping[str, Any]) -> dict[str, Any]:
    """What `vllm.LLM` is made with on the other side: what ours uses where it helps them too (block size, batch size,
    float32 on a CPU, no statistics), then what the user asked for."""
    return {
        "dtype": "float32", "max_model_len": _MAX_MODEL_LEN, "max_num_seqs": 128, "block_size": 32,
        "enforce_eager": True, "disable_log_stats": True, "max_logprobs": 64, "enable_chunked_prefill": False,
        "max_num_batched_tokens": 4096, **workload["llm_args"],
    }  # fmt: skip


class Theirs:
    def __init__(self, workload: Mapping[str, Any]) -> None:
        os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR")
        from vllm import LLM

        self._llm = LLM(workload["model"], **llm_arguments(workload))
        self._work = workload
        self._prompts = [{"prompt_token_ids": item["prompt"]} for item in workload["items"]]

    def cold(self) -> None:
        self._llm.reset_prefix_cache()

    def score(self) -> dict[str, Any]:
        from vllm import SamplingParams

        pairs = [(item["prompt"], option) for item in self._work["items"] for option in item["options"]]
        out = self._llm.generate(
            [{"prompt_token_ids": [*prompt, *option]} for prompt, option in pairs],
            SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False),
            use_tqdm=False,
        )
        flat = iter(
            sum(result.prompt_logprobs[len(prompt) + i][token].logprob for i, token in enumerate(option))
            for result, (prompt, option) in zip(out, pairs, strict=True)
        )
        return {"scores": [[next(flat) for _ in item["options"]] for item in self._work["items"]]}

    def beam(self, eos: bool = True) -> dict[str, Any]:
        from vllm.sampling_params import BeamSearchParams

        parameters = BeamSearchParams(beam_width=WIDTH, max_tokens=TOKENS, ignore_eos=not eos)
        out = self._llm.beam_search(self._prompts, parameters)
        beams = [
            [[list(s.tokens[len(item["prompt"]) :]), s.cum_logprob] for s in result.sequences]
            for item, result in zip(self._work["items"], out, strict=True)
        ]
        return {"beams": beams}

    def everything(self) -> dict[str, Any]:
        """Greedy, then samples, then beams, then candidates: four blocking calls."""
        from vllm import SamplingParams

        greedy = self._llm.generate(
            self._prompts, SamplingParams(temperature=0, max_tokens=TOKENS, detokenize=False), use_tqdm=False
        )
        half = [i for i, item in enumerate(self._work["items"]) if item["deep"]]
        self._llm.generate(
            [self._prompts[i] for i in half],
            SamplingParams(n=SAMPLES, temperature=1.0, top_p=TOP_P, max_tokens=TOKENS, seed=0, detokenize=False),
            use_tqdm=False,
        )
        everything, self._prompts = self._prompts, [self._prompts[i] for i in half]
        items = self._work["items"]
        self._work = {**self._work, "items": [items[i] for i in half]}
        self.beam()
        self._prompts, self._work = everything, {**self._work, "items": items}
        ids = [list(result.outputs[0].token_ids) for result in greedy]
        return {"greedy": ids, "scores": self.score()["scores"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=("ours", "theirs"))
    parser.add_argument("work", choices=("score", "beam", "beam_without_eos", "everything"))
    parser.add_argument("workload", type=Path)
    options = parser.parse_args()
    side = {"ours": Ours, "theirs": Theirs}[options.side](json.loads(options.workload.read_text()))
    works: dict[str, Callable[[], dict[str, Any]]] = {
        "score": side.score,
        "beam": side.beam,
        "beam_without_eos": lambda: side.beam(eos=False),
        "everything": side.everything,
    }
    print("{}", flush=True)
    for _ in sys.stdin:
        side.cold()
        started = time.perf_counter()
        result = {**works[options.work](), "seconds": time.perf_counter() - started}
        if options.work == "everything" and isinstance(side, Ours):
            result["machine"] = side.machine()
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
