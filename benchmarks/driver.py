"""The driver's own throughput: the whole probe set of a task through an engine that costs nothing, records and
Parquet parts included.

    resurface bench driver [--model DIR] [--task gazetteer] [--items 600] [--rounds 3] [--profile 25]
    resurface bench driver --pace 4 --rows 256      # a model of 0.6 B parameters on an H100
    resurface bench driver --pace 12 --rows 256     # one of 8 B

Answers are invented before the clock starts. Prints requests per second of processor time and of wall time, and
tokenisation apart. The JSON line has `requests_per_second` instead of a `ratio`.

With `--pace MS` an engine takes MS milliseconds for a step and has at most `--rows` requests in flight (paced.py). The
report has the share of steps that waited for us, without vLLM's own time. `--bursts` admits requests in bursts.
"""

import argparse
import cProfile
import json
import pstats
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.harness import count, run_main
from benchmarks.serving import workload
from benchmarks.serving.workload import Questions
from evaluator.core.errors import InputError
from evaluator.engine.base import Engine, Request, Response, Score
from evaluator.engine.fake import FakeEngine
from evaluator.probes.item import Plan
from evaluator.probes.planning import plan_of
from evaluator.probes.stream import Evaluation
from evaluator.store.records import RecordStore, to_table
from launch.sweep.estimate import vocabulary_of

T = TypeVar("T")
_SHARD_ITEMS = 20
EVERY_PROBE = (*workload.PROBES, "aligned_rank", "hard_choice")  # that asks questions


class Answers:
    """Answers to any request, made of parts that are drawn once. A beam search finds distinct expansions in them."""

    def __init__(self, vocabulary: int, tokens: int, top: int) -> None:
        rng = random.Random(0)
        self._rows = [
            (tuple(rng.sample(range(8, vocabulary), top)), tuple(sorted(-rng.random() * 9 for _ in range(top))[::-1]))
            for _ in range(997)
        ]
        self._texts = [tuple(rng.randrange(8, vocabulary) for _ in range(rng.randrange(3, 17))) for _ in range(997)]
        self._tokens = tokens
        self._number = 0

    def __call__(self, request: Request) -> Response:
        self._number += 1
        if isinstance(request, Score):
            count = len(request.continuation_ids)
            return Response(
                request_id=request.request_id,
                token_ids=request.continuation_ids,
                logprobs=(-1.5,) * count,
                ranks=(3,) * count,
                top_ids=((9,),) * count,
                top_logprobs=((-0.5,),) * count,
                cached_tokens=128,
            )
        if not request.top_logprobs:
            ids = self._texts[self._number % len(self._texts)][: request.max_tokens]
            return Response(request_id=request.request_id, token_ids=ids, cached_tokens=128)
        first = self._number * 31
        rows = [self._rows[(first + step) % len(self._rows)] for step in range(request.max_tokens)]
        return Response(
            request_id=request.request_id,
            token_ids=tuple(ids[0] for ids, _ in rows),
            logprobs=tuple(values[0] for _, values in rows),
            top_ids=tuple(ids[: request.top_logprobs] for ids, _ in rows),
            top_logprobs=tuple(values[: request.top_logprobs] for _, values in rows),
            cached_tokens=128,
        )


def one_round(engine: Engine, plans: Sequence[Plan], read: Questions) -> int:
    """Everything that an engine is asked, and every record written; returns how many."""
    stream = Evaluation(
        plans, config=read.config, prompter=read.prompter, columns=workload.columns(engine="fake", dtype="float32")
    ).run(engine)
    records: list[Any] = []
    written = 0
    with tempfile.TemporaryDirectory() as folder:
        store = RecordStore(Path(folder))
        for number, (_, found) in enumerate(stream, start=1):
            records += found
            if number % _SHARD_ITEMS == 0 or number == len(plans):
                store.append("bench", "task", str(number), to_table(records))
                written += len(records)
                records = []
    return written


def main() -> None:
    parser = workload.parser(__doc__, task="gazetteer", items=600, rounds=3)
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="profile one more round: the N dearest")
    parser.add_argument("--pace", type=float, metavar="MS", help="an engine whose steps take MS milliseconds each")
    parser.add_argument("--rows", type=count, default=256, help="with --pace: requests in flight (default: 256)")
    parser.add_argument("--bursts", action="store_true", help="with --pace: admit requests in bursts")
    options = parser.parse_args()
    if options.pace is not None and not 0 < options.pace <= 1000:
        raise InputError(f"--pace {options.pace:g}: must be above 0 and at most 1000 milliseconds")
    model = workload.model_directory(options.model)
    settings = {} if options.pace is None else {"probes": EVERY_PROBE}
    read = workload.read_questions(options.task, model, options.items, **settings)
    started = time.process_time()
    plans = [plan_of(question, read.prompter, read.config) for question in read.questions]
    tokenisation = time.process_time() - started
    if options.pace is None:
        _unpaced(options, model, read, plans, tokenisation)
    else:
        _paced(options, model, read, plans)


def _paced(options: argparse.Namespace, model: Path, read: Questions, plans: Sequence[Plan]) -> None:
    from benchmarks.paced import paced_engine  # imports vLLM

    eos_id = min(read.prompter.eos_ids)
    one_round(paced_engine(plans, model, eos_id, pace=0.0, rows=options.rows)[0], plans[:_SHARD_ITEMS], read)
    graphs = "FULL_DECODE_ONLY" if options.bursts else "FULL"
    engine, core = paced_engine(plans, model, eos_id, pace=options.pace / 1000, rows=options.rows, graphs=graphs)
    began = time.perf_counter()
    records = _profiled(options, lambda: one_round(engine, plans, read))
    wall, stats, found = time.perf_counter() - began, engine.stats(), core.paces.summary()
    tokens = stats.generated_tokens / len(plans)
    print(f"{found['steps']} steps of {options.pace:g} ms, {stats.requests} requests, {records} records", end=" ")
    print(f"of {len(plans)} items, {tokens:.0f} tokens an item")
    print("{waited_share:.1%} of the steps waited for us, {waited_ms:.2f} ms on average over all steps".format(**found))
    print(f"{found['rows_per_step']:.0f} rows in a step on average; {wall:.1f} s of wall time")
    print("{mixed_share:.1%} of the steps computed prompts".format(**found))
    print("between two steps: {handling_ms:.2f} ms of processor time".format(**found))
    alone = "{waited_share_by_processor_time:.1%} of the steps would wait on a processor that nothing else uses"
    print(alone.format(**found))
    asked = {"benchmark": "driver", "pace_ms": options.pace, "rows": options.rows}
    made = {"requests": stats.requests, "records": records, "items": len(plans), "tokens_per_item": tokens}
    print(json.dumps({**asked, **found, **made}))


def _profiled(options: argparse.Namespace, work: Callable[[], T]) -> T:
    """The result of `work`; with `--profile` its dearest functions are printed."""
    if not options.profile:
        return work()
    profile = cProfile.Profile()
    found = profile.runcall(work)
    pstats.Stats(profile).sort_stats("tottime").print_stats(options.profile)
    return found


def _unpaced(
    options: argparse.Namespace, model: Path, read: Questions, plans: Sequence[Plan], tokenisation: float
) -> None:
    answers = Answers(vocabulary_of(model), read.config.max_new_tokens, 2 * read.config.beam_width)

    def asked() -> tuple[int, int]:
        engine = FakeEngine(answers, room=256)
        written = one_round(engine, plans, read)
        return engine.stats().requests, written

    requests, records = asked()  # the warm-up
    per_second: dict[str, list[float]] = {"processor": [], "wall": []}
    for _ in range(options.rounds):
        wall, processor = time.perf_counter(), time.process_time()
        requests, records = asked()
        per_second["processor"].append(requests / (time.process_time() - processor))
        per_second["wall"].append(requests / (time.perf_counter() - wall))
    sustained = {clock: round(statistics.median(values)) for clock, values in per_second.items()}
    print(f"{requests} requests, {records} records of {len(plans)} items; tokenisation once: {tokenisation:.2f} s")
    print(f"{sustained['processor']} requests per second of processor time, {sustained['wall']} of wall time")
    if options.profile:
        _profiled(options, asked)
    speeds = {"requests_per_second": sustained["processor"], "requests_per_wall_second": sustained["wall"]}
    made = {"requests": requests, "records": records, "tokenisation_s": tokenisation}
    print(json.dumps({"benchmark": "driver", **speeds, **made}))


if __name__ == "__main__":
    run_main(main)
