"""The product's engine: one vLLM engine in this process, fed as one stream that is
never drained.

- `run` pulls requests whenever it has room and returns each response as it finishes.
  So requests that follow from a response join the running batch at the next step.
- `load` builds the engine once; every later checkpoint is swapped in place and
  compared with its files. A quantised one and a mixture of experts get an engine of
  their own.
- A `Score` is computed by forced decoding (sampling.py), and in one step where the
  cache allows it (prompt_scores.py). All options of a question share one context.

vLLM is imported when the first checkpoint is loaded, not with this module."""

import dataclasses
import gc
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.overlay import served_directory
from evaluator.checkpoints.shapes import text_model
from evaluator.checkpoints.tokenizer import read_eos_ids
from evaluator.core.errors import EngineError, InputError
from evaluator.core.memory import rare_collections
from evaluator.core.records import EngineStats
from evaluator.engine.admission import room
from evaluator.engine.base import (
    FixedSource,
    LoadReport,
    RequestSource,
    Response,
    Score,
)
from evaluator.engine.config import AUTO_CACHE, EngineConfig, EngineKind
from evaluator.engine.processor import instruction_sets
from evaluator.engine.self_check import disagreement, impossible, questions
from evaluator.engine.tolerances import precision
from evaluator.engine.vllm.arguments import FASTER_DECODE, cache_dtypes
from evaluator.engine.vllm.counters import Counters
from evaluator.engine.vllm.quantised import check_quantisation
from evaluator.engine.vllm.schemes import cpu_auto, longrope_remark
from evaluator.engine.vllm.start import (
    DEFAULTS,
    Started,
    check_here,
    check_model,
    installed_version,
    named,
    on_workers,
    serves_cpus,
    start,
)


class VLLMEngine:
    """One vLLM engine, in this process, holding one checkpoint at a time."""

    name = "vllm"

    def __init__(self, config: EngineConfig) -> None:
        """Nothing is started yet. Raises InputError if vLLM is not installed."""
        self.version = installed_version()
        self.dtype: str = config.dtype  # "auto" until a checkpoint is loaded
        self._config = config
        self._started: Started | None = None
        self._served: Checkpoint | None = None
        self._eos_ids: list[int] = []
        self._counters = Counters()
        self._setup: dict[str, str] = {}  # what its numbers depend on, in words
        # of the requests that vLLM has had: an id is never used again
        self._numbers = itertools.count()

    def load(self, checkpoint: Path) -> LoadReport:
        """Serve `checkpoint` from now on; the first one builds the engine, later ones
        are swapped in place.

        Raises InputError if the checkpoint is incomplete or has another architecture
        than the one before. Raises EngineError if the engine cannot be built or the
        loaded weights differ from the files.
        """
        began = time.monotonic()
        stored = Checkpoint(checkpoint)
        stored.check_served()
        eos_ids = read_eos_ids(
            checkpoint, trust_remote_code=self._config.trust_remote_code
        )
        # What vLLM makes of quantised weights and of experts while it loads them, it
        # cannot make again in place.
        if stored.quantisation or stored.is_mixture or not self._config.swap:
            self.close()
        swapped = self._served is not None
        if self._served is not None:
            why = self._served.difference(stored)
            if why is not None:
                raise InputError(
                    f"{checkpoint}: cannot be swapped into an engine built for"
                    f" {self._served.path}: {why}"
                )
        try:
            with served_directory(stored) as served:
                files = [str(shard) for shard in Checkpoint(served).shards]
                if self._started is None:
                    self._started = start(self._config, stored, served)
                else:
                    self._swap(self._started, files)
                notes: tuple[str, ...] = ()
                if stored.quantisation is None:
                    notes = self._verify(self._started, files)
            on_workers(self._started.llm, "note_head", str(checkpoint))
            self._served, self._eos_ids = stored, sorted(eos_ids)
            self.dtype = self._started.dtype
            if not swapped:
                self._started = self._checked(self._started, stored)
        except EngineError as error:  # a half-swapped engine must never answer
            self.close()
            place = str(checkpoint)
            if stored.quantisation is not None:
                place += f": {stored.quantisation.label}"
            raise EngineError(f"{place}: {error}") from error
        self._counters = Counters(self._started.clock)
        self._counters.peak_memory = self._peak_memory(self._started)
        return LoadReport(
            checkpoint=checkpoint,
            swapped=swapped,
            tensors=len(stored.tensors),
            seconds=time.monotonic() - began,
            scoring=self._started.scoring,
            notes=(*self._started.notes, *notes),
            setup=self._setup,
            kv_scales=on_workers(self._started.llm, "kv_scales")[0],
        )

    def run(self, source: RequestSource) -> Iterator[Response]:
        """Answer everything that the source gives. Raises EngineError if the engine
        dies or none is loaded."""
        if self._started is None or self._served is None:
            raise EngineError(
                "the vLLM engine was asked to run before a checkpoint was loaded, or"
                " after it failed"
            )
        from evaluator.engine.vllm.requests import Batch

        core, counters = self._started.llm.engine_core, self._counters
        rows, bursts = self._started.max_num_seqs, self._started.graphs in FASTER_DECODE
        batch = Batch(
            self._started,
            self._served.vocabulary,
            self._eos_ids,
            counters,
            self._numbers,
        )
        counters.begin_run()
        try:
            with rare_collections():
                while True:
                    batch.submit(source.take(0))  # what is cancelled makes room
                    # Requests that cannot begin at once stay with the source, which
                    # puts the most urgent ones first.
                    given = source.take(room(rows, len(batch.in_flight), bursts=bursts))
                    batch.submit(given)
                    if batch.in_flight and not batch.ready:
                        with counters.step(was_empty=batch.was_emptied):
                            outputs = self._step(core)
                        batch.receive(outputs)
                        del outputs  # before the next step makes as many objects
                    elif not given and not batch.ready:
                        counters.peak_memory = self._peak_memory(self._started)
                        return
                    while batch.ready:
                        yield batch.ready.popleft()
        finally:
            # else the engine was closed meanwhile
            if batch.in_flight and self._started is not None:
                core.abort_requests(list(batch.in_flight))

    def confirm(self) -> None:
        """It holds the weights itself."""

    def stats(self) -> EngineStats:
        """Since the last load. Time counts between the first and the last step of
        each `run` (see Counters)."""
        return self._counters.stats()

    def close(self) -> None:
        """Free the engine and its memory; a later `load` builds a new one. GPU
        memory is only surely free once the process has ended."""
        started, self._started, self._served = self._started, None, None
        if started is not None:
            started.llm.engine_core.shutdown()
            del started
            gc.collect()

    def _peak_memory(self, started: Started) -> int:
        """Only between runs: the answers of separate workers would mix with those of
        a step."""
        return sum(on_workers(started.llm, "peak_memory"))

    def _swap(self, started: Started, files: list[str]) -> None:
        try:
            swapped = on_workers(started.llm, "swap_weights", files)
            # The V1 runner has a connector (v1/partial_blocks.py); vLLM answers False
            # where it is to reset none.
            is_reset = started.llm.engine_core.reset_prefix_cache(
                reset_connector=not started.dialect.v2
            )
        except Exception as error:  # whatever vLLM raises
            raise EngineError(
                f"vLLM could not swap its weights in: {named(error)}"
            ) from error
        for rank, missing in enumerate(swapped):
            if missing:
                raise EngineError(f"no value for {missing[0]}{self._on(rank)}")
        if is_reset is not True:
            raise EngineError("vLLM did not reset its prefix cache")

    def _verify(self, started: Started, files: list[str]) -> tuple[str, ...]:
        """Compare the weights in every worker with the files. Returns a note if
        matrices could not be compared, in any worker."""
        not_compared: dict[str, None] = {}
        for rank, (compared, differing, passed_over) in enumerate(
            on_workers(started.llm, "compare_weights", files)
        ):
            if differing:
                what = f"{differing[0]} in the engine is not that of the files"
                raise EngineError(f"after loading, {what}{self._on(rank)}")
            if not compared:
                raise EngineError(f"after loading, nothing to compare{self._on(rank)}")
            not_compared.update(dict.fromkeys(passed_over))
        if not not_compared:
            return ()
        return (
            f"{len(not_compared)} of the engine's matrices could not be compared with"
            f" the files, {next(iter(not_compared))} for one",
        )

    def _on(self, rank: int) -> str:
        """Names the worker of an error, if there are several workers."""
        workers = self._config.tensor_parallel
        return f" (worker {rank} of {workers})" if workers > 1 else ""

    def _checked(self, started: Started, checkpoint: Checkpoint) -> Started:
        """The engine, after a few scores both ways have settled how it scores.

        Where forced scores are wrong, prompt log-probabilities take their place. Raises
        EngineError if the engine cannot answer, or if these or its ranks cannot be
        right themselves, also where nothing is forced.
        """
        from vllm.platforms import current_platform

        logits = on_workers(started.llm, "logits_dtype")[0]
        computed = precision(
            started.dtype, logits, on_gpu=not current_platform.is_cpu()
        )
        # one difference of 1e-7 may round a cached number to its neighbour
        if self._config.kv_cache != AUTO_CACHE:
            computed = "half, float32 logits"
        requests = questions(checkpoint.vocabulary, started.positions)
        slower = dataclasses.replace(started, scoring="prompt_logprobs")
        fast = self._answers(requests)
        self._started = slower
        slow = self._answers(requests)
        for wrong_rank in filter(None, on_workers(started.llm, "wrong_rank")):
            raise EngineError(
                f"this vLLM's scores cannot be trusted: of planted tokens, {wrong_rank}"
            )
        if (nonsense := impossible(slow)) is not None:
            raise EngineError(
                "this vLLM's scores cannot be trusted: its prompt log-probabilities"
                f" hold {nonsense}"
            )
        wrong = disagreement(fast, slow, computed, requests)
        if wrong is not None:
            note = (
                f"{wrong}; scores are computed by prompt log-probabilities instead,"
                " which is slower"
            )
            started = dataclasses.replace(slower, notes=(note,))
        self._setup = _setup(started, self._config, checkpoint) | {
            "logits": logits,
            "self-check": "passed" if wrong is None else "failed",
        }
        return started

    def _answers(self, requests: Sequence[Score]) -> dict[str, Response]:
        responses = self.run(FixedSource(requests))
        return {response.request_id: response for response in responses}

    def _step(self, core: Any) -> Any:
        """One step of the engine; returns vLLM's EngineCoreOutputs."""
        try:
            return core.get_output().outputs
        except Exception as error:  # the engine core is in an unknown state now
            self.close()
            raise EngineError(f"vLLM died in a step: {named(error)}") from error


# Settings that choose no kernel: requests, places, and sizes of steps.
_INDIFFERENT = {
    "kind",
    "dtype",
    "scoring",
    "trust_remote_code",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_gib",
    "gpu_memory_utilization",
    "shared_gpu",
}


def _setup(
    started: Started, config: EngineConfig, checkpoint: Checkpoint
) -> dict[str, str]:
    """What an engine's numbers depend on besides weights and requests: builds,
    device and kernels, by name."""
    import torch
    from vllm import envs
    from vllm.platforms import current_platform

    scoring = "in one step" if started.dialect.one_step else "by forced decoding"
    if started.scoring == "prompt_logprobs":
        scoring = "by prompt log-probabilities"
    instructions = [torch.backends.cpu.get_cpu_capability(), *instruction_sets()]
    head = text_model(checkpoint.settings).get("head_dim")
    # Only names: values may be secret.
    variables = [
        name
        for name, value in sorted(os.environ.items())
        if name in envs.environment_variables and value != DEFAULTS.get(name)
    ]
    settings = config.model_dump(mode="json", exclude=_INDIFFERENT)
    described = {
        "device": str(current_platform.get_device_name()),
        "instructions": " ".join(instructions),
        "dtype": started.dtype,
        "runner": "V2" if started.dialect.v2 else "V1",
        "scoring": scoring,
        "graphs": started.graphs,
        "vllm": installed_version(),
        "torch": torch.__version__,
        "architecture": f"{checkpoint.settings.get('model_type')} with heads of {head}",
        "environment": ", ".join(variables) or "nothing set",
        "settings": ", ".join(
            f"{name}: {value}" for name, value in sorted(settings.items())
        ),
    }
    if checkpoint.quantisation is not None:
        quantisation = checkpoint.quantisation
        described["weights"] = f"{quantisation.library}, {quantisation.label}"
    return described


VLLM = EngineKind(
    name="vllm",
    help="batched",
    build=VLLMEngine,
    scorings=("forced", "prompt_logprobs"),
    check_here=check_here,
    batches=True,
    check_model=check_model,
    references=True,
    shares_models=True,
    remark=longrope_remark,
    check_quantisation=check_quantisation,
    cache_dtypes=lambda here: cache_dtypes(on_cpu=here and serves_cpus()),
    auto_dtype=lambda quantisation: cpu_auto(quantisation) if serves_cpus() else "auto",
)
