"""Does the host keep a GPU busy? The whole driver and vLLM's own engine core, against a
device of a fixed pace.

    resurface bench host --pace 4 --rows 256               # a model of 0.6 B parameters
    on an H100 resurface bench host --pace 12 --rows 256              # one of 8 B
    resurface bench host --pace 8 --rows 256 --engines 2   # two engines, in two
    processes, share the device resurface bench host --pace 8 --rows 256 --engine-args
    '{"cuda_graphs": "piecewise"}'   # requests in bursts

Scheduler, cache manager, asynchronous steps, probes, records and Parquet parts are
real. Only the executor is ours (device.py): each step takes MS milliseconds, and
answers come from a script. Launches of kernels are not in these figures, nor is the
model runner's preparation of inputs.

The device is idle when it has ended a step and no other has been submitted. Then the
same requests run again, at the same steps, without our code: the floor, which is vLLM's
own.

The last line is JSON: `idle_share`, `host_ms_a_step`, the `parts` of that time, the
`floor` and the `processor`.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.harness import Options, count, print_table, run_main
from benchmarks.serving import workload
from evaluator.checkpoints.blueprint import read_blueprint
from evaluator.core.errors import EngineError, InputError, json_text
from evaluator.core.files import parquet_bytes
from evaluator.core.garbage import collect_rarely
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.probes.item import Plan
from evaluator.probes.planning import plan_of
from evaluator.probes.stream import Evaluation
from evaluator.store.records import to_table
from launch.provenance import processor
from launch.sweep.document import validated
from launch.sweep.estimate import vocabulary_of

if TYPE_CHECKING:
    from benchmarks.device import Device, ScriptedLM

EVERY_PROBE = (*workload.PROBES, "aligned_rank", "hard_choice")  # that asks questions
# parts of the host's time that are vLLM's own
VLLM = ("adding", "hashing", "schedule", "update", "core")
OURS = ("requests", "receiver", "sources", "records", "loop")
_DEVICE = "device"  # waiting for it, and making up its answers
_SHARD_ITEMS = 20
_LEAD_IN = 3  # tokens before the gold answer
_WARM_UP = 4  # items
_ROWS = 256
_BLOCK_SIZE = 16  # vLLM's default on a GPU
# what `step_size` finds for a model of 0.6 B parameters on an H100
_STEP_TOKENS = 16_384


class Parts:
    """The wall time of calls, by part. The time of a call inside another one counts
    for the inner one alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def of(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, timed."""

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            self._inner.append(0.0)
            try:
                return call(*arguments, **named)
            finally:
                took = time.perf_counter() - began
                self.seconds[part] += took - self._inner.pop()
                self._inner[-1] += took

        return timed

    def taken(self, steps: int, wall: float) -> dict[str, float]:
        """Milliseconds a step of every part; `loop` is what no other part took.
        Counting begins again."""
        seconds, self.seconds = self.seconds, defaultdict(float)
        seconds["loop"] = wall - sum(seconds.values())
        return {part: 1000 * took / steps for part, took in seconds.items()}


class HostEngine(VLLMEngine):
    """Our vLLM engine in front of vLLM's own engine core, with a device of a fixed
    pace.

    Requests are worded as for the V2 runner, which GPUs have. What reaches the core
    is noted, so that it can be repeated without us."""

    def __init__(
        self,
        config: EngineConfig,
        model: Path,
        script: ScriptedLM,
        device: Device,
        parts: Parts,
    ) -> None:
        super().__init__(config)
        self.parts = parts
        self._script, self._device = script, device
        self._steps = 0
        self._given: Any = None  # the outputs of the last step
        # the step, and a request or the ids of cancelled ones
        self._arrived: list[tuple[int, Any]] = []
        self._build(model)

    def _build(self, model: Path) -> None:
        from vllm import EngineArgs
        from vllm.v1.engine.core_client import InprocClient

        from benchmarks.device import executor
        from evaluator.engine.vllm.arguments import (
            FASTER_DECODE,
            graph_arguments,
            of_device,
        )
        from evaluator.engine.vllm.sampling import Dialect
        from evaluator.engine.vllm.start import Started, patch_engine

        config, rows = self._config, self._config.max_num_seqs or _ROWS
        blueprint = self._blueprint = read_blueprint(model)
        self._eos_ids = [self._script.eos_id]
        positions = min(
            config.max_model_len + 1, blueprint.longest or config.max_model_len + 1
        )
        arguments = of_device(config, model, model, blueprint, positions, on_cpu=False)
        arguments |= {
            "block_size": config.block_size or _BLOCK_SIZE,
            "max_num_seqs": rows,
            "dtype": "bfloat16",
        }
        arguments |= {
            "max_num_batched_tokens": config.max_num_batched_tokens or _STEP_TOKENS,
            "enforce_eager": True,
        }
        # of the output head, which nothing computes
        arguments.pop("hf_overrides", None)
        vllm_config = EngineArgs(**arguments).create_engine_config()
        # vLLM's CPU platform turns it off
        vllm_config.scheduler_config.async_scheduling = True
        # The V2 runner's scheduler. The runner itself needs Triton, which a CPU lacks.
        with patch.object(type(vllm_config), "use_v2_model_runner", True):
            client = InprocClient(
                vllm_config, executor(self._script, self._device), log_stats=False
            )
        llm = SimpleNamespace(engine_core=client, collective_rpc=client.collective_rpc)
        one_step = patch_engine(llm, config, v2=True)
        graphs = graph_arguments(
            config.cuda_graphs, compile=False, requests=rows, tokens=rows
        )
        mode = graphs.get("compilation_config", {}).get("cudagraph_mode", "NONE")
        assert mode in (*FASTER_DECODE, "FULL", "NONE")
        self._started = Started(
            llm=llm,
            dialect=Dialect(v2=True, one_step=one_step),
            max_model_len=min(config.max_model_len, positions),
            positions=positions,
            max_num_seqs=rows,
            dtype="bfloat16",
            scoring=config.scoring,
            graphs=mode,
        )
        self._core, self._client = client.engine_core, client
        self._time()

    def _time(self) -> None:
        """Time the core's parts, and note what reaches it."""
        client, core, of = self._client, self._core, self.parts.of
        add, abort, step = client.add_request, client.abort_requests, client.get_output

        def add_request(request: Any) -> None:
            self._arrived.append((self._steps, request))
            add(request)

        def abort_requests(ids: list[str]) -> None:
            self._arrived.append((self._steps, list(ids)))
            abort(ids)

        def get_output() -> Any:
            self._steps += 1
            self._given = None  # what vLLM made is its own to free
            self._given = step()
            return self._given

        client.add_request = of("adding", add_request)
        client.abort_requests = of("adding", abort_requests)
        client.get_output = of("core", get_output)
        core.request_block_hasher = of("hashing", core.request_block_hasher)
        core.scheduler.schedule = of("schedule", core.scheduler.schedule)
        core.scheduler.update_from_output = of(
            "update", core.scheduler.update_from_output
        )
        core.model_executor.outputs = of(_DEVICE, core.model_executor.outputs)
        core.model_executor.sleep = of(_DEVICE, core.model_executor.sleep)

    @property
    def counts(self) -> dict[str, int]:
        """The device's steps, their rows, those whose prompts they computed, and the
        steps with such rows."""
        counts: dict[str, int] = self._core.model_executor.counts
        return counts

    def begin(self, device: Device) -> list[tuple[int, Any]]:
        """Forget all requests and cached blocks, and go on with another device;
        returns what has reached the core."""
        while self._core.scheduler.has_requests() or self._core.batch_queue:
            self._client.get_output()
        assert self._client.reset_prefix_cache()
        self._core.model_executor.begin(device)
        self.parts.seconds.clear()
        arrived, self._arrived, self._steps = self._arrived, [], 0
        return arrived

    def repeat(self, arrived: list[tuple[int, Any]]) -> None:
        """Send the same requests at the same steps, without our code."""
        for step, sent in arrived:
            while self._steps < step:
                self._client.get_output()
            if isinstance(sent, list):
                self._client.abort_requests(sent)
            else:
                self._client.add_request(sent)
        while self._core.scheduler.has_unfinished_requests():
            self._client.get_output()


def scripted(model: Path, read: workload.Questions, plans: list[Plan]) -> ScriptedLM:
    """Answers for a model's questions. Every second item is answered: words of its
    context, then the gold answer."""
    from benchmarks.device import ScriptedLM

    script = ScriptedLM(vocabulary_of(model), min(read.prompter.eos_ids))
    for plan in plans[::2]:
        if (
            "open" in plan.prompts
            and (gold := plan.scored.get(plan.question.item.answers[0])) is not None
        ):
            prompt = plan.prompts["open"].token_ids
            script.plant(prompt, (*prompt[:_LEAD_IN], *gold.continuation_ids))
    return script


@contextmanager
def timed(parts: Parts) -> Iterator[None]:
    """Time our own parts within the block."""
    from evaluator.engine.vllm.requests import Batch

    of = parts.of
    with (
        patch.object(Batch, "submit", of("requests", Batch.submit)),
        patch.object(Batch, "receive", of("receiver", Batch.receive)),
        patch.object(Evaluation, "take", of("sources", Evaluation.take)),
        patch.object(Evaluation, "handle", of("sources", Evaluation.handle)),
    ):
        yield


def one_round(engine: HostEngine, plans: list[Plan], read: workload.Questions) -> int:
    """Ask everything of `plans` and write the records, as an engine's actor does;
    returns how many records."""
    write = engine.parts.of(
        "records", lambda found: len(parquet_bytes(to_table(found)))
    )
    columns = workload.columns(engine="vllm", dtype="bfloat16")
    stream = Evaluation(
        plans, config=read.config, prompter=read.prompter, columns=columns
    ).run(engine)
    records: list[Any] = []
    count = 0
    for number, (_, found) in enumerate(stream, start=1):
        records += found
        count += len(found)
        if number % _SHARD_ITEMS == 0 or number == len(plans):
            write(records)
            records = []
    return count


# of a process that has an engine: the devices, and the barrier at which engines meet
_shared: list[Any] = []


def _inherit(*shared: Any) -> None:
    _shared[:] = shared


def measured(number: int, options: dict[str, Any]) -> dict[str, Any]:
    """One engine of the benchmark, in a process of its own: its share of the items,
    and then the floor."""
    try:
        return _measured(number, options, *_shared)
    except Exception:
        _shared[-1].abort()  # the others need not wait at the barrier
        raise EngineError(f"engine {number + 1}: {traceback.format_exc()}") from None


def _measured(
    number: int,
    options: dict[str, Any],
    warm: Device,
    device: Device,
    floor: Device,
    barrier: Any,
) -> dict[str, Any]:
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    collect_rarely()  # as in an engine's process
    model = Path(options["model"])
    read = workload.read_questions(
        options["task"], model, options["items"], probes=EVERY_PROBE
    )
    plans = [
        plan_of(each, read.prompter, read.config)
        for each in read.questions[number :: options["engines"]]
    ]
    parts = Parts()
    config = EngineConfig(**{"max_num_seqs": options["rows"], **options["engine_args"]})
    engine = HostEngine(config, model, scripted(model, read, plans), warm, parts)
    one_round(engine, plans[:_WARM_UP], read)
    engine.begin(device)
    gc.collect()
    gc.freeze()
    barrier.wait()
    with timed(parts):
        began = time.perf_counter()
        records = one_round(engine, plans, read)
        wall = time.perf_counter() - began
    stats, counts = engine.stats(), engine.counts
    taken = parts.taken(counts["steps"], wall)
    arrived = engine.begin(floor)
    barrier.wait()
    began = time.perf_counter()
    engine.repeat(arrived)
    alone = parts.taken(engine.counts["steps"], time.perf_counter() - began)
    asked = {
        "requests": stats.requests,
        "tokens": stats.generated_tokens,
        "items": len(plans),
        "records": records,
    }
    return {"parts": taken, "floor": alone, "wall": wall, **counts, **asked}


def main() -> None:
    parser = Options(__doc__)
    workload.add_model(parser)
    parser.add_argument(
        "--pace", type=float, default=12.0, metavar="MS", help="of a step (default: 12)"
    )
    parser.add_argument(
        "--rows",
        type=count,
        default=_ROWS,
        help="requests in flight in each engine (default: 256)",
    )
    parser.add_argument(
        "--engines",
        type=count,
        default=1,
        help="engines that share the device (default: 1)",
    )
    parser.add_argument(
        "--task", default="gazetteer", help="whose questions (default: gazetteer)"
    )
    parser.add_argument(
        "--items", type=count, default=300, help="questions (default: 300)"
    )
    options = parser.parse_args()
    if not 0 < options.pace <= 1000:
        raise InputError(
            f"--pace {options.pace:g}: must be above 0 and at most 1000 milliseconds"
        )
    validated(EngineConfig, options.engine_args, "--engine-args")
    options.model = str(workload.model_directory(options.model))
    if (
        workload.read_questions(
            options.task, Path(options.model), options.items
        ).questions[options.engines - 1 :]
        == []
    ):
        raise InputError(
            f"--engines {options.engines}: {options.task} has fewer questions"
        )
    print(json_text(_report(options, *_run(options))))


def _run(options: argparse.Namespace) -> tuple[list[dict[str, Any]], Device, Device]:
    """What each engine measured, the device that they shared, and that of the floor."""
    from benchmarks.device import Device

    spawn = multiprocessing.get_context("spawn")
    warm, device, floor = (
        Device(0.0),
        Device(options.pace / 1000),
        Device(options.pace / 1000),
    )
    shared = (warm, device, floor, spawn.Barrier(options.engines))
    with ProcessPoolExecutor(options.engines, spawn, _inherit, shared) as processes:
        found = [
            processes.submit(measured, number, vars(options))
            for number in range(options.engines)
        ]
        return [each.result() for each in found], device, floor


def _report(
    options: argparse.Namespace,
    engines: list[dict[str, Any]],
    device: Device,
    floor: Device,
) -> Any:
    """The benchmark's figures, after they are printed as a table."""
    parts, alone = (
        _mean([engine[name] for engine in engines]) for name in ("parts", "floor")
    )
    ours, vllm, least = (
        sum(parts[name] for name in OURS),
        sum(parts[name] for name in VLLM),
        sum(alone.values()),
    )
    steps = sum(engine["steps"] for engine in engines)
    a_step = {
        name: sum(engine[name] for engine in engines) / steps
        for name in ("rows", "arrivals", "mixed")
    }
    print(f"{steps} steps of {options.pace:g} ms", end=", ")
    print(
        "{rows:.0f} rows and {arrivals:.1f} arrivals in each, {mixed:.0%} of them with"
        " arrivals".format(**a_step)
    )
    rows = [
        *((name, parts[name], alone[name]) for name in (*VLLM, *OURS)),
        ("all", ours + vllm, least),
    ]
    shown = [(name, f"{now:.2f}", f"{floor_ms:.2f}") for name, now, floor_ms in rows]
    print_table("host, ms a step", ("part", "now", "floor"), shown)
    print(
        f"the device is idle for {device.idle_share:.1%} of the time"
        f" ({floor.idle_share:.1%} without our code)"
    )
    print(f"our code takes {ours / vllm:.0%} as long as vLLM's own")
    return {
        "benchmark": "host",
        "pace_ms": options.pace,
        "engines": options.engines,
        "idle_share": device.idle_share,
        "host_ms_a_step": ours + vllm,
        "parts": parts,
        "ours_of_vllm": ours / vllm,
        "floor": {
            "idle_share": floor.idle_share,
            "host_ms_a_step": least,
            "parts": alone,
        },
        "steps": steps,
        **a_step,
        **{
            name: sum(engine[name] for engine in engines)
            for name in ("items", "requests", "tokens", "records")
        },
        "seconds": max(engine["wall"] for engine in engines),
        "processor": processor(),
    }


def _mean(engines: list[dict[str, float]]) -> dict[str, float]:
    return {
        name: sum(parts.get(name, 0.0) for parts in engines) / len(engines)
        for name in (*VLLM, *OURS)
    }


if __name__ == "__main__":
    run_main(main)
