"""What the driver alone sustains: the whole probe set of a task through an engine that costs nothing, records and
Parquet parts included.

    resurface bench driver [--model DIR] [--task gazetteer] [--items 600] [--rounds 3] [--profile 25]

Answers are invented before the clock starts: greedy answers with the log-probabilities that a beam search reads,
samples, and scores. Prints requests per second of processor time and of wall time. Tokenisation is counted apart, since
it is done once for all checkpoints. The JSON line has `requests_per_second` instead of a `ratio`.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import random
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.processes import run_main
from benchmarks.serving import workload
from benchmarks.serving.workload import Questions
from evaluator.engine.base import Request, Response, Score
from evaluator.engine.fake import FakeEngine
from evaluator.probes.planning import Plan, Planner
from evaluator.probes.stream import evaluate
from evaluator.store.records import RecordStore, to_table

_SHARD_ITEMS = 20


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


def one_round(plans: list[Plan], read: Questions, answers: Answers) -> tuple[int, int]:
    """Requests answered and records written."""
    engine = FakeEngine(answers, room=256)
    stream = evaluate(
        engine,
        iter(plans),
        config=read.config,
        stamp=workload.stamp(engine="fake", dtype="float32"),
        decode=read.prompter.decode,
        eos_ids=read.prompter.eos_ids,
    )
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
    return engine.stats().requests, written


def processor_seconds() -> float:
    """Processor time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = workload.parser(__doc__, task="gazetteer", items=600, rounds=3)
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="profile one more round: the N dearest")
    options = parser.parse_args()
    model = workload.model_directory(options.model)
    read = workload.read_questions(options.task, model, options.items)
    started = processor_seconds()
    planner = Planner(read.prompter, read.config)
    plans = [planner.plan(question) for question in read.questions]
    tokenisation = processor_seconds() - started
    answers = Answers(workload.vocabulary_of(model), read.config.max_new_tokens, 2 * read.config.beam_width)
    requests, records = one_round(plans, read, answers)  # the warm-up
    per_second: dict[str, list[float]] = {"processor": [], "wall": []}
    for _ in range(options.rounds):
        wall, processor = time.perf_counter(), processor_seconds()
        requests, records = one_round(plans, read, answers)
        per_second["processor"].append(requests / (processor_seconds() - processor))
        per_second["wall"].append(requests / (time.perf_counter() - wall))
    sustained = {clock: round(statistics.median(values)) for clock, values in per_second.items()}
    print(f"{requests} requests, {records} records of {len(plans)} items; tokenisation once: {tokenisation:.2f} s")
    print(f"{sustained['processor']} requests per second of processor time, {sustained['wall']} of wall time")
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(one_round, plans, read, answers)
        pstats.Stats(profile).sort_stats("tottime").print_stats(options.profile)
    print(
        json.dumps(
            {
                "benchmark": "driver",
                "requests_per_second": sustained["processor"],
                "requests_per_wall_second": sustained["wall"],
                "requests": requests,
                "records": records,
                "tokenisation_s": tokenisation,
            }
        )
    )


if __name__ == "__main__":
    run_main(main)
