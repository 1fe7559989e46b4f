"""The product's engine: one vLLM engine in this process, fed as one stream that is never drained.

- `run` pulls requests whenever it has room and hands responses out as they finish, so what follows from a response
  joins the running batch at the next step.
- `load` builds the engine once; every later checkpoint is swapped in place and compared with its files.
- A `Score` is computed by forced decoding (see forcing.py), so that all options of a question share one context.

Only this module, forcing.py and vllm_worker.py know vLLM; it is imported when the first checkpoint is loaded.
On a CPU everything is computed in float32 unless told otherwise. On a GPU: the checkpoint's dtype, the V2 model runner
and trace replay; that path is written from vLLM 0.32's source and **not yet tested on a GPU**.
"""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from evaluator.checkpoints.blueprint import Blueprint, read_blueprint
from evaluator.checkpoints.tokenizer import read_eos_ids
from evaluator.engine.admission import SharedScores, refusal, refuse
from evaluator.engine.base import Cancel, EngineStats, Generate, LoadReport, Request, RequestSource, Response, Score
from evaluator.engine.config import EngineConfig, EngineKind
from evaluator.errors import EngineError, InputError

MAX_TOP_LOGPROBS = 64
_CPU_STEP_TOKENS = 4096  # computed in one step at most
_CPU_BLOCK_SIZE = 32  # vLLM's own default there is 128: too coarse to share the prompts of one item


class VLLMEngine:
    """One vLLM engine, in this process, holding one checkpoint at a time."""

    name = "vllm"

    def __init__(self, config: EngineConfig) -> None:
        self.version = _installed_version()
        self.dtype: str = config.dtype  # "auto" until a checkpoint is loaded
        self._config = config
        self._llm: Any = None
        self._forcing: Any = None
        self._blueprint: Blueprint | None = None
        self._first: Path | None = None
        self._eos_ids: list[int] = []
        self._max_model_len = config.max_model_len
        self._reference = config.scoring == "prompt_logprobs"
        self._reset_counters()

    def load(self, checkpoint: Path) -> LoadReport:
        """Serve `checkpoint` from now on; the first one builds the engine, later ones are swapped in place.

        Raises InputError if the checkpoint is incomplete, or if its architecture is not the first one's, and
        EngineError if the engine cannot be built or the weights that arrived are not those of the files.
        """
        started = time.monotonic()
        blueprint = read_blueprint(checkpoint)
        files = [str(file) for file in blueprint.files]
        eos_ids = sorted(read_eos_ids(checkpoint, trust_remote_code=self._config.trust_remote_code))
        swapped = self._llm is not None
        if swapped:
            assert self._blueprint is not None
            difference = self._blueprint.difference(blueprint)
            if difference is not None:
                raise InputError(
                    f"{checkpoint}: cannot be swapped into an engine built for {self._first}: {difference}"
                )
            self._swap(checkpoint, files)
        else:
            self._build(checkpoint, blueprint)
        compared, differing = self._on_workers("compare_weights", files)
        if differing or not compared:
            self._give_up()
            what = f"{differing[0]} in the engine is not that of the files" if differing else "nothing to compare"
            raise EngineError(f"{checkpoint}: after loading, {what}")
        self._blueprint, self._eos_ids = blueprint, eos_ids
        self._first = self._first or checkpoint
        self._reset_counters()
        return LoadReport(
            checkpoint=checkpoint,
            swapped=swapped,
            parameters=len(blueprint.tensors),
            seconds=time.monotonic() - started,
        )

    def run(self, source: RequestSource) -> Iterator[Response]:
        """Answer everything that the source gives. Raises EngineError if the engine dies or none is loaded."""
        if self._llm is None:
            raise EngineError("the vLLM engine was asked to run before a checkpoint was loaded, or after it failed")
        in_flight: dict[str, Any] = {}
        shared = SharedScores()
        ready: deque[Response] = deque()
        ended: float | None = None  # when the last step did: from then on the engine waits for its driver
        drained = False
        try:
            while True:
                room = 2 * self._config.max_num_seqs - len(in_flight)
                given = source.take(room) if room > 0 else ()
                self._submit(given, shared, in_flight, ready)
                if not ready:
                    if not in_flight:
                        if given:  # nothing but cancels
                            continue
                        return
                    began = time.perf_counter()
                    outputs = self._step()
                    waited, ended = 0.0 if ended is None else began - ended, time.perf_counter()
                    self._busy += ended - began
                    if drained:
                        self._idle += waited
                    else:
                        self._waiting += waited
                    ready.extend(
                        answer for done in self._finished(outputs, in_flight) for answer in shared.answer(done)
                    )
                    drained = not in_flight
                while ready:
                    yield ready.popleft()
        finally:
            if in_flight and self._llm is not None:
                self._llm.engine_core.abort_requests(list(in_flight))

    def stats(self) -> EngineStats:
        """The engine core computes in its steps only. Between two steps of a `run` the driver handles responses,
        tokenises and admits new requests: the engine waits, and is idle if it holds no request meanwhile. Before the
        first step and after the last nothing counts."""
        return EngineStats(
            requests=self._requests,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated,
            cached_tokens=self._cached,
            busy_seconds=self._busy,
            waiting_seconds=self._waiting,
            idle_seconds=self._idle,
        )

    def close(self) -> None:
        """Free the engine and its memory; GPU memory is only surely free once the process has ended."""
        self._give_up()

    def _build(self, checkpoint: Path, blueprint: Blueprint) -> None:
        _prepare_environment(self._config)
        with warnings.catch_warnings():  # those of vLLM's own imports are nothing that a user can mend
            warnings.simplefilter("ignore")
            self._start(checkpoint, blueprint)

    def _start(self, checkpoint: Path, blueprint: Blueprint) -> None:
        from vllm import EngineArgs
        from vllm.config import KVTransferConfig
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine

        from evaluator.engine.vllm.sampling import Forcing

        on_cpu = bool(current_platform.is_cpu())
        # The reference path's prompt holds the continuation as well, and vLLM generates one token after it.
        wanted = self._config.max_model_len + self._reference
        self._max_model_len = min(wanted, blueprint.longest or wanted)
        arguments: dict[str, Any] = {
            "model": str(checkpoint),
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "dtype": "float32" if on_cpu and self._config.dtype == "auto" else self._config.dtype,
            "max_model_len": self._max_model_len,
            "max_num_seqs": self._config.max_num_seqs,
            "block_size": self._config.block_size or (_CPU_BLOCK_SIZE if on_cpu else None),
            "gpu_memory_utilization": self._config.gpu_memory_utilization,
            "tensor_parallel_size": self._config.tensor_parallel,
            "enforce_eager": not self._config.compile,
            "trust_remote_code": self._config.trust_remote_code,
            "enable_prefix_caching": True,
            "logprobs_mode": "raw_logprobs",
            "max_logprobs": MAX_TOP_LOGPROBS,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            "worker_extension_cls": "evaluator.engine.vllm.weights.WorkerExtension",
        }
        if on_cpu:
            # A prompt that is computed in pieces makes vLLM rewind the generator of a seeded request, which a CPU
            # generator cannot do ("CPU Generator does not use offset"): prompts are computed whole.
            arguments["enable_chunked_prefill"] = False
            arguments["max_num_batched_tokens"] = max(_CPU_STEP_TOKENS, self._max_model_len)
            arguments["kv_transfer_config"] = KVTransferConfig(
                kv_connector="PartialBlocks",
                kv_connector_module_path="evaluator.engine.vllm.partial_blocks",
                kv_role="kv_both",
            )
        try:
            self._forcing = Forcing(v2=not on_cpu)
            try:
                engine_config = EngineArgs(**arguments, **self._forcing.engine_arguments()).create_engine_config()
            except ValueError as error:
                if not self._forcing.v2 or "trace replay" not in str(error):
                    raise
                self._forcing = Forcing(v2=False)  # a GPU on which vLLM falls back to its V1 runner
                engine_config = EngineArgs(**arguments, **self._forcing.engine_arguments()).create_engine_config()
            self._llm = LLMEngine.from_vllm_config(engine_config, disable_log_stats=True)
            self._on_workers("use_strict_ranks")
        except Exception as error:  # whatever vLLM raises while it starts
            self._give_up()
            raise EngineError(f"{checkpoint}: vLLM could not start an engine: {_one_line(error)}") from error
        self.dtype = str(engine_config.model_config.dtype).removeprefix("torch.")

    def _swap(self, checkpoint: Path, files: list[str]) -> None:
        try:
            _read, missing = self._on_workers("swap_weights", files)
            if missing:
                raise EngineError(f"{checkpoint}: no value for {missing[0]}")
            if self._llm.engine_core.reset_prefix_cache(reset_connector=True) is not True:
                raise EngineError(f"{checkpoint}: vLLM did not reset its prefix cache")
        except Exception as error:  # a half-swapped engine must never answer
            self._give_up()
            if isinstance(error, EngineError):
                raise
            raise EngineError(f"{checkpoint}: vLLM could not swap its weights in: {_one_line(error)}") from error

    def _on_workers(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker extension on every worker; returns the first one's answer."""
        return self._llm.collective_rpc(method, args=arguments)[0]

    def _submit(
        self,
        requests: Sequence[Request | Cancel],
        shared: SharedScores,
        in_flight: dict[str, Any],
        ready: deque[Response],
    ) -> None:
        from evaluator.engine.vllm.requests import InFlight, InFlightReference, to_core

        assert self._blueprint is not None
        accepted = []
        cancelled = [request.request_id for request in requests if isinstance(request, Cancel)]
        for ended in [in_flight.pop(request_id) for request_id in cancelled if request_id in in_flight]:
            self._llm.engine_core.abort_requests([ended.request.request_id])
            self._count(ended)
        for request in requests:
            if isinstance(request, Cancel):
                continue
            longest = self._max_model_len - (self._reference and isinstance(request, Score))
            reason = refusal(request, longest, self._blueprint.vocabulary)
            if reason is None and isinstance(request, Generate) and request.top_logprobs > MAX_TOP_LOGPROBS:
                reason = f"top_logprobs is {request.top_logprobs}, more than {MAX_TOP_LOGPROBS}"
            if reason is None:
                accepted.append(request)
            else:
                ready.append(refuse(request, reason))
        for request in accepted if self._reference else shared.admit(accepted):  # the reference shares nothing
            pending = InFlight(request)
            if isinstance(request, Generate):
                parameters = self._forcing.generate(request, self._eos_ids, self._blueprint.vocabulary)
            elif self._reference:
                parameters, pending = self._forcing.reference_score(), InFlightReference(request)
            else:
                parameters = self._forcing.score(request.continuation_ids)
            self._llm.engine_core.add_request(to_core(pending, parameters))
            in_flight[request.request_id] = pending

    def _step(self) -> Sequence[Any]:
        """One step of the engine; returns vLLM's EngineCoreOutputs."""
        try:
            outputs: Sequence[Any] = self._llm.engine_core.get_output().outputs
        except Exception as error:  # the engine core is in an unknown state now
            self._give_up()
            raise EngineError(f"vLLM died in a step: {_one_line(error)}") from error
        self._steps += 1
        return outputs

    def _finished(self, outputs: Sequence[Any], in_flight: dict[str, Any]) -> Iterator[Response]:
        """The responses that a step finished."""
        for output in outputs:
            pending = in_flight.get(output.request_id)
            if pending is None:  # it was cancelled while this step was under way
                continue
            if pending.add(output):
                del in_flight[output.request_id]
                self._count(pending)
                yield pending.response()
            elif pending.streams:
                yield pending.news()

    def _count(self, ended: Any) -> None:
        self._requests += 1
        self._prompt_tokens += len(ended.prompt()) - ended.cached_tokens
        self._generated += ended.generated
        self._cached += ended.cached_tokens

    def _reset_counters(self) -> None:
        self._steps = self._requests = self._prompt_tokens = self._generated = self._cached = 0
        self._busy = self._waiting = self._idle = 0.0

    def _give_up(self) -> None:
        """Drop the engine; a later `load` builds a new one."""
        llm, self._llm = self._llm, None
        self._first = self._blueprint = None
        if llm is not None:
            llm.engine_core.shutdown()
            del llm
            gc.collect()


def _prepare_environment(config: EngineConfig) -> None:
    """vLLM reads these when it is imported or when an engine starts; what the user has set stays."""
    defaults = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(config.kv_cache_gib),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def _installed_version() -> str:
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    raise InputError("engine 'vllm': neither vllm nor vllm-cpu is installed; use --engine torch or install one")


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


VLLM = EngineKind(
    name="vllm",
    help="vLLM: batched, and swaps checkpoints in place",
    build=VLLMEngine,
    scorings=("forced", "prompt_logprobs"),
)
