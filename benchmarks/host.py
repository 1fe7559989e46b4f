"""Does the host keep a GPU busy? The whole driver and vLLM's own engine core, against a
device of a fixed pace.

    resurface bench host --pace 4 --rows 256     # a model of 0.6 B parameters on an H100
    resurface bench host --pace 12 --rows 256    # one of 8 B
    resurface bench host --pace 8 --rows 256 --engines 2    # two processes share a device

Scheduler, cache manager, asynchronous steps, probes, records and Parquet parts are
real. Only the executor is ours (device.py): each step takes MS milliseconds, and
answers come from a script. Launches of kernels are not in these figures, nor is the
model runner's preparation of inputs.

The device is idle when it has ended a step and no other has been submitted. The last
line is JSON: `idle_share`, `host_ms_a_step`, the `parts` of that time (vLLM's and ours)
and the `processor`.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.harness import Options, count, print_table, run_main
from benchmarks.serving import workload
from evaluator.asking.questions import Posed
from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.core.config import validated
from evaluator.core.errors import InputError, Json, json_text
from evaluator.core.files import parquet_bytes
from evaluator.core.garbage import collect_rarely
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.probes.planning import tokenised
from evaluator.probes.stream import Evaluation
from evaluator.store.records import to_table
from launch.provenance import processor
from launch.sweep.models import vocabulary_of

if TYPE_CHECKING:
    from benchmarks.device import Device, ScriptedLM

EVERY_PROBE = (*workload.PROBES, "aligned_rank", "hard_choice")  # that asks questions
_SHARD_ITEMS = 20
_LEAD_IN = 3  # tokens before the gold answer
_WARM_UP = 4  # items
_PATIENCE = 600  # seconds that engines wait for each other
_ROWS = 256
_BLOCK_SIZE = 16  # vLLM's default on a GPU
# as on an H100
_STEP_TOKENS = 16_384


class Clock:
    """The seconds of vLLM's engine core, and of the device inside of it: waiting for
    it, and making up its answers."""

    def __init__(self) -> None:
        self.core = self.device = 0.0

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, whose time is added to a part."""

        def run(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = call(*arguments)
            took = time.perf_counter() - began
            setattr(self, part, getattr(self, part) + took)
            return result

        return run

    def parts(self, steps: int, wall: float) -> dict[str, float]:
        """Milliseconds a step of the host, vLLM's and ours."""
        seconds = {"vllm": self.core - self.device, "ours": wall - self.core}
        return {part: 1000 * took / steps for part, took in seconds.items()}


class HostEngine(VLLMEngine):
    """Our vLLM engine in front of vLLM's own engine core, with a device of a fixed
    pace.

    Requests are worded as for the V2 runner, which GPUs have."""

    def __init__(
        self, config: EngineConfig, model: Path, script: ScriptedLM, device: Device
    ) -> None:
        super().__init__(config)
        self.clock = Clock()
        self._script, self._device = script, device
        self._outputs: Any = None  # of the last step
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
        checkpoint = self._served = Checkpoint(model)
        self._eos_ids = [self._script.eos_id]
        positions = min(
            config.max_model_len + 1, checkpoint.longest or config.max_model_len + 1
        )
        arguments = of_device(config, checkpoint, model, positions, on_cpu=False)
        arguments |= {
            "block_size": config.block_size or _BLOCK_SIZE,
            "max_num_seqs": rows,
            "dtype": "bfloat16",
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
        self._instrument()

    def _instrument(self) -> None:
        """Time the core and the device."""
        client, timed = self._client, self.clock.timed
        step = client.get_output

        def get_output() -> Any:
            self._outputs = None  # what vLLM made is its own to free
            self._outputs = step()
            return self._outputs

        client.add_request = timed("core", client.add_request)
        client.abort_requests = timed("core", client.abort_requests)
        client.get_output = timed("core", get_output)
        executor = self._core.model_executor
        executor.outputs = timed("device", executor.outputs)
        executor.sleep = timed("device", executor.sleep)

    @property
    def counts(self) -> dict[str, int]:
        """The device's steps, their rows, those whose prompts they computed, and the
        steps with such rows."""
        counts: dict[str, int] = self._core.model_executor.counts
        return counts

    def begin(self, device: Device) -> None:
        """Forget all requests and cached blocks, and go on with another device."""
        while self._core.scheduler.has_requests() or self._core.batch_queue:
            self._client.get_output()
        assert self._client.reset_prefix_cache()
        self._core.model_executor.begin(device)
        self.clock.core = self.clock.device = 0.0


def scripted(model: Path, read: workload.Questions, plans: list[Posed]) -> ScriptedLM:
    """Answers for a model's questions. Every second item is answered: words of its
    context, then the gold answer."""
    from benchmarks.device import ScriptedLM

    script = ScriptedLM(vocabulary_of(model), min(read.prompter.eos_ids))
    for plan in plans[::2]:
        gold = plan.scored.get(plan.item.answers[0])
        if "open" in plan.prompts and gold is not None:
            prompt = plan.prompts["open"].token_ids
            script.plant(prompt, (*prompt[:_LEAD_IN], *gold.continuation_ids))
    return script


def one_round(engine: HostEngine, plans: list[Posed], read: workload.Questions) -> int:
    """Ask everything of `plans` and write the records, as an engine's actor does;
    returns how many records."""
    columns = workload.columns(dtype="bfloat16")
    evaluation = Evaluation(
        plans, config=read.config, prompter=read.prompter, columns=columns
    )
    records: list[Any] = []
    count = 0
    for number, (_, of_item) in enumerate(evaluation.run(engine), start=1):
        records += of_item
        count += len(of_item)
        if number % _SHARD_ITEMS == 0 or number == len(plans):
            parquet_bytes(to_table(records))
            records = []
    return count


# of a process that has an engine: the devices, and the barrier at which engines meet
_shared: list[Any] = []


def _inherit(*shared: Any) -> None:
    _shared[:] = shared


def measured(number: int, options: Json) -> Json:
    """One engine of the benchmark, in a process of its own: its share of the
    items."""
    warm, device, barrier = _shared
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    collect_rarely()  # as in an engine's process
    model = Path(options["model"])
    read = workload.read_questions(
        options["task"], model, options["items"], probes=EVERY_PROBE
    )
    plans = [
        tokenised(each, read.prompter, read.config)
        for each in read.questions[number :: options["engines"]]
    ]
    config = EngineConfig(**{"max_num_seqs": options["rows"], **options["engine_args"]})
    engine = HostEngine(config, model, scripted(model, read, plans), warm)
    one_round(engine, plans[:_WARM_UP], read)
    engine.begin(device)
    gc.collect()
    gc.freeze()
    barrier.wait(_PATIENCE)  # an engine that failed never comes
    began = time.perf_counter()
    records = one_round(engine, plans, read)
    wall = time.perf_counter() - began
    stats, counts = engine.stats(), engine.counts
    return {
        "parts": engine.clock.parts(counts["steps"], wall),
        "wall": wall,
        **counts,
        "requests": stats.requests,
        "tokens": stats.generated_tokens,
        "items": len(plans),
        "records": records,
    }


def main() -> None:
    parser = Options(__doc__)
    workload.add_model(parser)
    add = parser.add_argument
    pace = "of a step (default: 12)"
    add("--pace", type=float, default=12.0, metavar="MS", help=pace)
    rows = "requests in flight in each engine (default: 256)"
    add("--rows", type=count, default=_ROWS, help=rows)
    engines = "engines that share the device (default: 1)"
    add("--engines", type=count, default=1, help=engines)
    add("--task", default="gazetteer", help="whose questions (default: gazetteer)")
    add("--items", type=count, default=300, help="questions (default: 300)")
    options = parser.parse_args()
    if not 0 < options.pace <= 1000:
        raise InputError(
            f"--pace {options.pace:g}: must be above 0 and at most 1000 milliseconds"
        )
    validated(EngineConfig, options.engine_args, "--engine-args")
    model = workload.model_directory(options.model)
    options.model = str(model)
    read = workload.read_questions(options.task, model, options.items)
    if len(read.questions) < options.engines:
        raise InputError(
            f"--engines {options.engines}: {options.task} has fewer questions"
        )
    print(json_text(_report(options, *_run(options))))


def _run(options: argparse.Namespace) -> tuple[list[Json], Device]:
    """What each engine measured, and the device that they shared."""
    from benchmarks.device import Device

    spawn = multiprocessing.get_context("spawn")
    device = Device(options.pace / 1000)
    shared = (Device(0.0), device, spawn.Barrier(options.engines))
    with ProcessPoolExecutor(options.engines, spawn, _inherit, shared) as processes:
        running = [
            processes.submit(measured, number, vars(options))
            for number in range(options.engines)
        ]
        return [process.result() for process in running], device


def _report(options: argparse.Namespace, engines: list[Json], device: Device) -> Json:
    """The benchmark's figures, after they are printed."""
    total: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    seconds = max(engine.pop("wall") for engine in engines)
    for engine in engines:
        parts.update(engine.pop("parts"))
        total.update(engine)
    a_step = {
        name: total[name] / total["steps"] for name in ("rows", "arrivals", "mixed")
    }
    means = {name: took / len(engines) for name, took in parts.items()}
    print(
        f"{total['steps']} steps of {options.pace:g} ms, {a_step['rows']:.0f} rows and"
        f" {a_step['arrivals']:.1f} arrivals in each"
    )
    rows = [(name, f"{took:.2f}") for name, took in means.items()]
    print_table("host, ms a step", ("part", "now"), rows)
    print(f"the device is idle for {device.idle_share:.1%} of the time")
    return {
        "benchmark": "host",
        "pace_ms": options.pace,
        "engines": options.engines,
        "idle_share": device.idle_share,
        "host_ms_a_step": sum(means.values()),
        "parts": means,
        **total,
        **a_step,
        "seconds": seconds,
        "processor": processor(),
    }


if __name__ == "__main__":
    run_main(main)
