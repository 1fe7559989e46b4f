"""Does the host keep a GPU busy? The whole driver, vLLM's own engine core and its V2
model runner, on a CPU, for a GPU that takes MS milliseconds for a step.

    resurface bench host --pace 5.5 --rows 256    # a model of 0.6 B parameters on an H100
    resurface bench host --pace 5.5 --engines 3   # three engines share the GPU

Scheduler, cache manager, asynchronous steps, the runner's preparation of inputs, its
sampler and its copies are real, and so are tokenising, probes, records and Parquet
parts. No kernel runs, and answers come from a script. What only a GPU's host does is
counted in a first round, and has a price.

The second round's processor time is the host's. The GPU is simulated from it
afterwards, so neither sleep nor other work counts. It is idle when it has ended a step
and no other has been launched. Engines have processes of their own, with `--items`
questions each. The last line is JSON: `idle_share`, `host_ms_a_step`, its `parts`, and
`loop_us`, the time of a fixed loop, by which two machines compare.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import math
import multiprocessing
import os
import tempfile
import time
import timeit
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Options, count, print_table, run_main, settings
from benchmarks.pruning.synthetic import SHAPES, write_checkpoint
from benchmarks.serving import workload
from evaluator.asking.questions import Posed
from evaluator.checkpoints.tokenizer import read_eos_ids
from evaluator.core.config import validated
from evaluator.core.errors import InputError, Json, json_text
from evaluator.core.files import parquet_bytes
from evaluator.core.memory import collect_rarely
from evaluator.core.records import Record
from evaluator.engine.config import EngineConfig
from evaluator.probes.planning import tokenised
from evaluator.probes.stream import Evaluation
from evaluator.store.records import to_table
from launch.provenance import processor
from launch.run.decide.sharing import MOST, Trial
from launch.sweep.models import vocabulary_of
from tests.support import v2
from tests.support.scripted import idle_share

if TYPE_CHECKING:
    from evaluator.engine.base import Engine

_LAYERS = 28  # of a model of 0.6 B parameters, and of one of 1.7 B
_PROMPT = 512  # tokens of a prompt beside its context, at most
_MOST = 1000.0
# what our engine or vLLM chooses on an H100
_ON_A_GPU = {
    "block_size": 16,
    "max_num_batched_tokens": 16_384,
    "dtype": "bfloat16",
    "kv_cache_gib": 2,  # as many tokens as beside a model of 0.6 B parameters
}
# of an H100's host, in microseconds; a step is one graph
_PRICES = {
    "launches": ("--launch-us", 12.0),
    "ops": ("--op-us", 7.0),
    "steps": ("--graph-us", 200.0),
    "copies": ("--copy-us", 12.0),
}


def loop_us() -> float:
    """The processor's microseconds for a fixed loop, the best of twenty."""
    timed = timeit.repeat(
        "for number in range(10_000): table[number % 97] = (number, str(number))",
        "table = {}",
        timer=time.thread_time,
        repeat=20,
        number=1,
    )
    return 1e6 * min(timed)


def questions(options: argparse.Namespace, number: int) -> workload.Questions:
    """One engine's own questions, and a prompter that knows none of their tokens.
    Raises InputError if the task has too few."""
    items, context = options.items, options.context_tokens
    read = workload.read_questions(
        options.task,
        options.model,
        items * options.engines,
        context_tokens=context,
        prompt_tokens=_PROMPT + context,
    )
    if (most := len(read.questions)) < items * options.engines:
        raise InputError(
            f"--items {items}: {options.task} has {most} questions for all engines"
        )
    return replace(read, questions=read.questions[number * items :][:items])


def one_round(
    engine: Engine, read: workload.Questions, tokenise: Callable[..., Posed] = tokenised
) -> list[Record]:
    """Ask all questions and write the records, as an engine's actor does."""
    evaluation = Evaluation.of(
        (tokenise(each, read.prompter, read.config) for each in read.questions),
        config=read.config,
        prompter=read.prompter,
        columns=workload.columns(dtype="bfloat16"),
    )
    records = [record for _, some in evaluation.run(engine) for record in some]
    parquet_bytes(to_table(records))
    return records


def measured(number: int, options: argparse.Namespace) -> Json:
    """One engine of the benchmark, in a process of its own."""
    v2.enter()
    from benchmarks.device import PREPARATION, SIMULATION, HostEngine
    from tests.support.scripted import Answers, Counting, ScriptedLM, serve_gpu_blocks

    collect_rarely()  # as in an engine's process
    model = options.model
    chosen = {**_ON_A_GPU, "max_num_seqs": options.rows, **options.engine_args}
    script = ScriptedLM(vocabulary_of(model), min(read_eos_ids(model)))
    serve_gpu_blocks()
    engine = HostEngine(EngineConfig(**chosen), Answers(script))
    engine.load(model)
    account = engine.account
    tokenise = account.timed("tokenising", tokenised)
    with Counting(account.counts, lambda: account.part == PREPARATION):
        one_round(engine, questions(options, number), tokenise)
    counts = dict(account.counts)
    engine.load(model)  # it forgets all cached blocks
    read = questions(options, number)
    gc.collect()
    gc.freeze()
    account.begin()
    cpu, wall = time.thread_time(), time.perf_counter()
    records = one_round(engine, read, tokenise)
    account.enter("ours")
    # other work on this machine is not the host's
    busy = (time.thread_time() - cpu) / (time.perf_counter() - wall)
    del account.seconds[SIMULATION]
    assert account.counts["steps"] == counts["steps"], "two rounds differ"
    lines = "\n".join(sorted(map(repr, records)))
    parts = {part: busy * took for part, took in account.seconds.items()}
    marks = [(busy * host, launched) for host, launched in account.marks]
    apart, size = 0, math.ceil(options.items / options.tasks)
    if options.tasks > 1:
        engine.load(model)
        for start in range(0, options.items, size):
            account.begin()
            one_round(engine, replace(read, questions=read.questions[start:][:size]))
            apart += account.counts["steps"]
    return {
        "counts": counts,
        "parts": parts,
        "marks": marks,
        "digest": hashlib.sha256(lines.encode()).hexdigest(),
        "loop_us": loop_us(),
        "apart": apart or counts["steps"],
    }


def settled(idle: Sequence[float]) -> int:
    """The engines that a run would settle on, if it had work without end. `idle`: a
    GPU's share with one engine, with two, ..."""
    trial = Trial(len(idle), "")
    while not trial.settled:
        busy = 1 - idle[trial.engines - 1]
        trial.decide(busy, busy, math.inf, 0.0)
    return trial.engines


def main() -> None:
    parser = Options(__doc__)
    add = parser.add_argument
    add("--pace", type=_amount, default=5.5, metavar="MS", help="of a step")
    add("--rows", type=count, default=256, help="requests in flight in each engine")
    shared = "engines that share the GPU; auto: as many as a run would keep"
    add(
        "--engines",
        type=lambda text: None if text == "auto" else count(text),
        default=1,
        help=shared,
    )
    add("--task", default="gazetteer", help="whose questions")
    add("--items", type=count, default=200, help="questions of each engine")
    tasks = "divide them into N tasks, and count the steps of a stream for each too"
    add("--tasks", type=count, default=1, metavar="N", help=tasks)
    add("--context-tokens", type=count, default=320, help="of each question")
    add("--engine-args", type=settings, default={}, help="JSON: our engine's settings")
    for name, (option, price) in _PRICES.items():
        told = f"of the host for one of the {name} (default: {price:g})"
        add(option, dest=name, type=_amount, default=price, metavar="US", help=told)
    options = parser.parse_args()
    options.auto = options.engines is None
    options.engines = options.engines or MOST
    if (why := v2.missing()) is not None:
        raise InputError(why)
    validated(EngineConfig, options.engine_args, "--engine-args")
    with tempfile.TemporaryDirectory() as folder:
        shape = replace(SHAPES["tiny"], num_hidden_layers=_LAYERS)
        options.model = write_checkpoint(Path(folder) / "model", shape)
        questions(options, 0)  # says whether the task has as many
        os.environ["OMP_NUM_THREADS"] = "1"  # a GPU's host computes nothing
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.engines, spawn) as processes:
            running = [
                processes.submit(measured, number, options)
                for number in range(options.engines)
            ]
            engines = [process.result() for process in running]
    print(json_text(_report(options, engines)))


def _amount(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount <= _MOST:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number from 0 to {_MOST:g}"
        )
    return amount


def _report(options: argparse.Namespace, engines: list[Json]) -> Json:
    """The benchmark's figures, after they are printed."""
    counts: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    for engine in engines:
        counts.update(engine["counts"])
        parts.update(engine["parts"])
    steps = counts["steps"]
    for name in _PRICES:
        part = "copies" if name == "copies" else "launches"
        parts[part] += counts[name] * getattr(options, name) / 1e6
    priced = (parts["launches"] + parts["copies"]) / steps
    marks = [engine["marks"] for engine in engines]
    pace = options.pace / 1e3
    idle = [
        idle_share(marks[: number + 1], pace, priced) for number in range(len(marks))
    ]
    number = settled(idle) if options.auto else len(idle)
    account = {part: 1e3 * seconds / steps for part, seconds in parts.items()}
    figures = {
        "idle_share": idle[number - 1],
        "host_ms_a_step": sum(account.values()),
        "loop_us": max(engine["loop_us"] for engine in engines),
        **{name: number / steps for name, number in counts.items()},
        "steps": steps,
        "steps_apart": sum(engine["apart"] for engine in engines),
    }
    rows = [(part, f"{spent:.2f}") for part, spent in account.items()]
    print_table("host, ms a step", ("part", "now"), rows)
    said = "{host_ms_a_step:.2f} ms in all, GPU idle {idle_share:.1%}, {loop_us:.0f} us"
    print(said.format(**figures), "for a fixed loop")
    if options.tasks > 1:
        said = (
            "{steps:,} steps of one stream, {steps_apart:,} of a stream for each task"
        )
        print(said.format(**figures))
    return {
        "benchmark": "host",
        "engines": number,
        **figures,
        "parts": account,
        "digests": [engine["digest"] for engine in engines],
        "processor": processor(),
    }


if __name__ == "__main__":
    run_main(main)
