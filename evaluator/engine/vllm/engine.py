"""The product's engine: one vLLM engine in this process, fed as one stream that is never drained.

- `run` pulls requests whenever it has room and returns each response as it finishes. So requests that follow from a
  response join the running batch at the next step.
- `load` builds the engine once; every later checkpoint is swapped in place and compared with its files. A quantised
  one and a mixture of experts get an engine of their own.
- A `Score` is computed by forced decoding (requests/sampling.py), and in one step where the cache allows it
  (prompt_scores.py). All options of a question share one context.

vLLM is imported when the first checkpoint is loaded, not with this module.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evaluator.checkpoints.blueprint import Blueprint, read_blueprint
from evaluator.checkpoints.tokenizer import read_eos_ids
from evaluator.core.errors import EngineError, InputError
from evaluator.engine import self_check
from evaluator.engine.admission import room
from evaluator.engine.base import EngineStats, FixedSource, LoadReport, RequestSource, Response
from evaluator.engine.config import EngineConfig, EngineKind
from evaluator.engine.vllm.counters import Counters
from evaluator.engine.vllm.setup.arguments import MAX_TOP_LOGPROBS
from evaluator.engine.vllm.setup.gpu import FASTER_DECODE
from evaluator.engine.vllm.start import (
    Started,
    check_here,
    installed_version,
    named,
    on_workers,
    serves_cpus,
    start,
)
from evaluator.engine.vllm.verify.quantised import check_quantised

_OBJECTS = 50_000  # new and alive, before Python searches for cycles


class VLLMEngine:
    """One vLLM engine, in this process, holding one checkpoint at a time."""

    name = "vllm"

    def __init__(self, config: EngineConfig) -> None:
        """Nothing is started yet. Raises InputError if vLLM is not installed."""
        self.version = installed_version()
        self.dtype: str = config.dtype  # "auto" until a checkpoint is loaded
        self._config = config
        self._started: Started | None = None
        self._blueprint: Blueprint | None = None
        self._first: Path | None = None
        self._eos_ids: list[int] = []
        self._counters = Counters()
        self._setup: dict[str, str] = {}  # what its numbers depend on, in words
        self._numbers = itertools.count()  # of the requests that vLLM has had: an id is never used again

    def load(self, checkpoint: Path) -> LoadReport:
        """Serve `checkpoint` from now on; the first one builds the engine, later ones are swapped in place.

        Raises InputError if the checkpoint is incomplete or has another architecture than the first one. Raises
        EngineError if the engine cannot be built or the loaded weights differ from the files.
        """
        began = time.monotonic()
        blueprint = read_blueprint(checkpoint)
        files = [str(file) for file in blueprint.files]
        eos_ids = sorted(read_eos_ids(checkpoint, trust_remote_code=self._config.trust_remote_code))
        # What vLLM makes of quantised weights and of experts while it loads them, it cannot make again in place.
        alone = blueprint.quantisation is not None or blueprint.mixture or not self._config.swap
        if self._started is not None and alone:
            self._give_up()
        swapped = self._started is not None
        if self._started is None:
            self._started = start(self._config, checkpoint, blueprint)
            self.dtype = self._started.dtype
        else:
            self._check_alike(checkpoint, blueprint)
            self._swap(self._started, checkpoint, files)
        not_compared = self._verify(self._started, checkpoint, files)
        self._blueprint, self._eos_ids = blueprint, eos_ids
        self._first = self._first or checkpoint
        if not swapped:
            self._started = self._checked(self._started, blueprint)
        self._counters = Counters(self._started.clock)
        return LoadReport(
            checkpoint=checkpoint,
            swapped=swapped,
            tensors=len(blueprint.tensors),
            seconds=time.monotonic() - began,
            scoring=self._started.scoring,
            notes=(*self._started.notes, *_notes(not_compared)),
            setup=self._setup,
        )

    def quantised_kernels(self) -> tuple[str, ...]:
        """vLLM's names of the kernels that compute with the loaded checkpoint's quantised matrices."""
        assert self._started is not None, "a checkpoint is loaded first"
        return tuple(sorted({name for names in on_workers(self._started.llm, "quantised_kernels") for name in names}))

    def run(self, source: RequestSource) -> Iterator[Response]:
        """Answer everything that the source gives. Raises EngineError if the engine dies or none is loaded."""
        return self._answers(source)

    def _answers(self, source: RequestSource, *, whole: bool = False) -> Iterator[Response]:
        """The same; `whole`: scores by prompt log-probabilities report whole distributions."""
        if self._started is None or self._blueprint is None:
            raise EngineError("the vLLM engine was asked to run before a checkpoint was loaded, or after it failed")
        from evaluator.engine.vllm.requests.batch import Batch, Served

        served = Served(
            dialect=self._started.dialect,
            eos_ids=self._eos_ids,
            vocabulary=self._blueprint.vocabulary,
            max_model_len=self._started.max_model_len,
            positions=self._started.positions,
            max_top_logprobs=MAX_TOP_LOGPROBS,
            by_prompt=self._started.scoring == "prompt_logprobs",
            whole=whole,
        )
        core, counters = self._started.llm.engine_core, self._counters
        rows, bursts = self._started.max_num_seqs, self._started.graphs in FASTER_DECODE
        batch = Batch(core, served, counters, self._numbers)
        counters.begin_run()
        try:
            with rare_collections():
                while True:
                    # Requests that cannot begin at once stay with the source, which puts the most urgent ones first.
                    given = source.take(room(rows, len(batch), bursts=bursts))
                    batch.submit(given)
                    if batch and not batch.has_responses:
                        counters.begin_step(was_empty=batch.was_emptied)
                        outputs = self._step(core)
                        counters.end_step()
                        batch.receive(outputs)
                    elif not given and not batch.has_responses:
                        return
                    yield from batch.responses()
        finally:
            if self._started is not None and self._started.llm.engine_core is core:
                batch.abort()

    def stats(self) -> EngineStats:
        """Since the last load. Time counts between the first and the last step of each `run` (see Counters)."""
        return self._counters.stats()

    def close(self) -> None:
        """Free the engine and its memory; GPU memory is only surely free once the process has ended."""
        self._give_up()

    def _check_alike(self, checkpoint: Path, blueprint: Blueprint) -> None:
        assert self._blueprint is not None
        difference = self._blueprint.difference(blueprint)
        if difference is not None:
            raise InputError(f"{checkpoint}: cannot be swapped into an engine built for {self._first}: {difference}")

    def _swap(self, started: Started, checkpoint: Path, files: list[str]) -> None:
        try:
            for rank, (_read, missing) in enumerate(on_workers(started.llm, "swap_weights", files)):
                if missing:
                    raise EngineError(f"{checkpoint}: no value for {missing[0]}{self._on(rank)}")
            if started.llm.engine_core.reset_prefix_cache(reset_connector=started.has_connector) is not True:
                raise EngineError(f"{checkpoint}: vLLM did not reset its prefix cache")
        except Exception as error:  # a half-swapped engine must never answer
            self._give_up()
            if isinstance(error, EngineError):
                raise
            raise EngineError(f"{checkpoint}: vLLM could not swap its weights in: {named(error)}") from error

    def _verify(self, started: Started, checkpoint: Path, files: list[str]) -> tuple[str, ...]:
        """Compare the weights in every worker with the files; an engine is given up if they differ.

        Returns the names of the matrices that could not be compared, in any worker.
        """
        not_compared: dict[str, None] = {}
        for rank, (compared, differing, passed_over) in enumerate(on_workers(started.llm, "compare_weights", files)):
            if differing or not compared:
                self._give_up()
                what = f"{differing[0]} in the engine is not that of the files" if differing else "nothing to compare"
                raise EngineError(f"{checkpoint}: after loading, {what}{self._on(rank)}")
            not_compared.update(dict.fromkeys(passed_over))
        return tuple(not_compared)

    def _on(self, rank: int) -> str:
        """Names the worker of an error, if there are several workers."""
        return f" (worker {rank} of {self._config.tensor_parallel})" if self._config.tensor_parallel > 1 else ""

    def _checked(self, started: Started, blueprint: Blueprint) -> Started:
        """The engine, after a few scores both ways, once for each combination, have settled how it scores.

        Where forced scores are wrong, prompt log-probabilities take their place. Raises EngineError if the engine
        cannot answer, or if these or its ranks cannot be right themselves, also where nothing is forced.
        """
        from evaluator.engine.vllm.setup.combination import combination_of, on_gpu

        combination = combination_of(started, self._config, blueprint)
        memory = self_check.Memory()
        forces, known = started.scoring == "forced", memory.has(combination)
        self._setup = combination | {"self-check": "not needed" if known else "passed"}
        if known:
            return started
        slower = dataclasses.replace(started, scoring="prompt_logprobs")
        asked = self_check.questions(blueprint.vocabulary, started.positions)
        fast = list(self.run(FixedSource(asked))) if forces else []
        self._started = slower
        slow = list(self.run(FixedSource(asked)))
        # One after another: a whole distribution has as many numbers as the vocabulary has tokens.
        whole = [answer for each in asked for answer in self._answers(FixedSource([each]), whole=True)]
        allowed = self_check.TOLERANCES[self_check.precision(started.dtype, combination["logits"], on_gpu=on_gpu())]
        wrong_ranks = [found for found in on_workers(started.llm, "wrong_rank") if found is not None]
        if (nonsense := self_check.nonsense(slow, whole, allowed, wrong_ranks)) is not None:
            self._give_up()
            raise EngineError(f"this vLLM's scores cannot be trusted: {nonsense}")
        wrong = self_check.disagreement(fast, slow, whole, allowed, asked) if forces else None
        if wrong is None:
            if any(response.status == "ok" for response in slow):
                memory.add(combination)
            return started
        self._setup = combination_of(slower, self._config, blueprint) | {"self-check": "failed"}
        note = f"{wrong}; scores are computed by prompt log-probabilities instead, which is slower"
        return dataclasses.replace(slower, notes=(*started.notes, note))

    def _step(self, core: Any) -> Sequence[Any]:
        """One step of the engine; returns vLLM's EngineCoreOutputs."""
        try:
            outputs: Sequence[Any] = core.get_output().outputs
        except Exception as error:  # the engine core is in an unknown state now
            self._give_up()
            raise EngineError(f"vLLM died in a step: {named(error)}") from error
        return outputs

    def _give_up(self) -> None:
        """Drop the engine; a later `load` builds a new one."""
        started, self._started = self._started, None
        self._first = self._blueprint = None
        if started is not None:
            started.llm.engine_core.shutdown()
            del started
            gc.collect()


def _notes(not_compared: tuple[str, ...]) -> tuple[str, ...]:
    """The notes of a checkpoint's LoadReport."""
    if not not_compared:
        return ()
    count = len(not_compared)
    return (f"{count} of the engine's matrices could not be compared with the files, {not_compared[0]} for one",)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let Python search for dead cycles only after 50,000 new objects within the block, instead of 700.

    Requests, responses and records form no cycles. With 256 requests in flight, a search began at every other step,
    took a millisecond (an eighth of the driver's time) and found nothing. Cycles of a third-party probe are freed
    later.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(_OBJECTS, before[0]) if before[0] else 0, *before[1:])  # 0: somebody has turned it off
    try:
        yield
    finally:
        gc.set_threshold(*before)


VLLM = EngineKind(
    name="vllm",
    help="batched, swaps checkpoints in place",
    build=VLLMEngine,
    scorings=("forced", "prompt_logprobs"),
    check_here=check_here,
    references=True,
    check_checkpoints=check_quantised,
    own_dtypes=lambda: not serves_cpus(),
)
