"""The driver against the clock: a fake engine core that takes a fixed time for a step, as a GPU does.

`PacedCore` stands where vLLM's EngineCoreClient stands behind `VLLMEngine.run`. It keeps two steps in hand, like vLLM's
`step_with_batch_queue`: a call of `get_output` submits the next step and then waits for the one before it. A step
begins when it is submitted or when the step before it ends, whichever is later, and ends `pace` seconds after it began;
it gives one token to each of at most `rows` rows. A prompt is computed in the step of its first token.

A step **waited for us** when it began later than the step before it had ended: the core was idle because no
call for the next step had come. The first step of a core does not count. The time for making up tokens is
off the clock, and so is what `sleep` oversleeps.

`paced_engine` is our vLLM engine's own loop in front of such a core: a GPU's engine without vLLM and the GPU.
"""

from __future__ import annotations

import gc
import random
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.outputs import LogprobsLists

from evaluator.checkpoints.blueprint import read_blueprint
from evaluator.engine.base import LoadReport
from evaluator.engine.config import EngineConfig
from evaluator.engine.fake import FakeLM
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.engine.vllm.sampling import Dialect
from evaluator.engine.vllm.start import Started
from evaluator.probes.item import Plan
from launch.sweep.estimate import vocabulary_of

_LEAD_IN = 3  # tokens before the gold answer
_IN_HAND = 2  # steps that are submitted and not yet read: vLLM's batch queue
STATES = 1021
TOP = 16  # tokens of a distribution: the tail is nobody's answer
_SHARPNESS = 3.5
_EOS_FIRST = 1 / 45  # of the states: EOS is the likeliest token
_RANK = 57  # of a scored token that is not among them


def _after(state: int, token: int) -> int:
    return (state * 31 + token * 17 + 7) % STATES


class ScriptedLM:
    """A language model that costs next to nothing: its distributions were drawn before the clock starts.

    The next-token distribution after a prefix is one of `STATES`, found by folding the prefix's token ids: equal
    prefixes have equal distributions, so beams, samples and scores fit together as a model's do. Some prefixes are
    *planted*: there a given token is the likeliest, so that greedy answers say the gold answer. How peaked the
    distributions are and how often EOS is the likeliest token are set so that lengths and beams are about those of
    SmolLM2-135M on XQuAD (answers of 22 to 28 tokens where 32 are allowed, 37 rollouts to a beam search).

    A distribution is a row of `ids` and `logprobs`, most likely first.
    """

    def __init__(self, vocabulary: int, eos_id: int) -> None:
        rng = random.Random(0)
        script = FakeLM(vocabulary=4 * TOP, eos_ids=frozenset(), seed=1, sharpness=_SHARPNESS)
        others = [token for token in range(vocabulary) if token != eos_id]
        self.ids: list[list[int]] = []
        self.logprobs: list[list[float]] = []
        for state in range(STATES):
            row = np.sort(script.logprobs((state,)))[::-1][:TOP].astype(np.float32)
            ids = rng.sample(others, TOP)
            ids[0 if rng.random() < _EOS_FIRST else rng.randrange(2, TOP)] = eos_id
            self.ids.append(ids)
            self.logprobs.append([float(value) for value in row])
        self._cumulated = [list(accumulate(np.exp(row[:8]).tolist())) for row in self.logprobs]
        self._planted: dict[tuple[int, ...], int] = {}  # prefix -> row
        self.eos_id = eos_id

    def plant(self, prompt_ids: tuple[int, ...], answer: Sequence[int]) -> None:
        """Make `answer` the greedy answer to a prompt, followed by the last token's state."""
        prefix = prompt_ids
        for token in answer:
            ids = list(self.ids[reduce(_after, prefix, 0)])
            if token in ids:
                ids[ids.index(token)] = ids[0]
            ids[0] = token
            self._planted[prefix] = len(self.ids)
            self.ids.append(ids)
            self.logprobs.append(self.logprobs[reduce(_after, prefix, 0)])
            self._cumulated.append(self._cumulated[reduce(_after, prefix, 0)])
            prefix = (*prefix, token)

    def forced(self, prompt_ids: tuple[int, ...], continuation: Sequence[int]) -> list[int]:
        """The row of each token of a continuation."""
        rows, state = [], reduce(_after, prompt_ids, 0)
        prefix: tuple[int, ...] | None = prompt_ids
        for token in continuation:
            planted = None if prefix is None else self._planted.get(prefix)
            prefix = None if planted is None or prefix is None else (*prefix, token)
            rows.append(state if planted is None else planted)
            state = _after(state, token)
        return rows

    def rank(self, row: int, token: int) -> tuple[int, float]:
        """The rank and log-probability of a token."""
        ids = self.ids[row]
        if token in ids:
            return 1 + ids.index(token), self.logprobs[row][ids.index(token)]
        return _RANK, self.logprobs[row][-1] - 2.0

    def continued(
        self, prompt_ids: tuple[int, ...], most: int, draw: random.Random | None = None
    ) -> tuple[list[int], list[int]]:
        """The likeliest continuation, or one that `draw` draws, and the row of each token.

        At most `most` tokens, or up to EOS.
        """
        tokens: list[int] = []
        rows: list[int] = []
        state = reduce(_after, prompt_ids, 0)
        prefix: tuple[int, ...] | None = prompt_ids
        while len(tokens) < most and not (tokens and tokens[-1] == self.eos_id):
            planted = None if prefix is None else self._planted.get(prefix)
            row = state if planted is None else planted
            chances = self._cumulated[row]
            token = self.ids[row][0 if draw is None else bisect_left(chances, draw.random() * chances[-1])]
            tokens.append(token)
            rows.append(row)
            prefix = None if planted is None or prefix is None else (*prefix, token)
            state = _after(state, token)
        return tokens, rows


class PacedEngine(VLLMEngine):
    """Requests are worded as for vLLM's V2 runner, which GPUs have: candidates are scored by forced decoding."""

    def __init__(self, core: PacedCore, rows: int, model: Path, eos_id: int, graphs: str) -> None:
        super().__init__(EngineConfig(max_num_seqs=rows))
        self._core = core
        self._graphs = graphs
        self._rows = rows
        self._eos_ids = [eos_id]
        self.load(model)

    def load(self, checkpoint: Path) -> LoadReport:
        """The core is ready already; requests are checked against `checkpoint`."""
        self._blueprint = read_blueprint(checkpoint)
        self._started = Started(
            llm=SimpleNamespace(engine_core=self._core),
            dialect=Dialect(v2=True),
            max_model_len=4096,
            positions=4096,
            max_num_seqs=self._rows,
            dtype="bfloat16",
            scoring="forced",
            graphs=self._graphs,
        )
        return LoadReport(checkpoint=checkpoint, swapped=False, tensors=0, seconds=0.0)


def paced_engine(
    plans: Sequence[Plan],
    model: Path,
    eos_id: int,
    *,
    pace: float,
    rows: int,
    graphs: str = "FULL",
    clock: Clock | None = None,
) -> tuple[PacedEngine, PacedCore]:
    """An engine that answers `plans`; a step of at most `rows` rows takes `pace` seconds. `graphs` is vLLM's name.

    Every second item is answered: some words of its context, then the gold answer.
    """
    language = ScriptedLM(vocabulary_of(model), eos_id)
    for plan in plans[::2]:
        if "open" in plan.prompts and plan.scored:
            prompt = plan.prompts["open"].token_ids
            gold = plan.scored.get(plan.question.item.answers[0])
            if gold is not None:
                language.plant(prompt, (*prompt[:_LEAD_IN], *gold.continuation_ids))
    core = PacedCore(language, pace=pace, rows=rows, clock=clock)
    engine = PacedEngine(core, rows, model, eos_id, graphs)
    gc.collect()
    gc.freeze()  # as vLLM does when its engine core has been built
    return engine, core


class Clock:
    """Time that can be stopped. `now` and `sleep` are replaced in tests."""

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._stopped = 0.0
        self._unspent = 0.0

    def now(self) -> float:
        return self._now() - self._stopped

    def spent(self) -> float:
        """Processor seconds of this process, stopped times left out."""
        return time.process_time() - self._unspent

    def wait_until(self, moment: float) -> None:
        """Sleep until `moment`; it is then exactly that late, however long the sleep was."""
        left = moment - self.now()
        if left > 0:
            self._sleep(left)
            self._stopped += max(0.0, self.now() - moment)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """What happens within takes no time."""
        before, spent = self._now(), time.process_time()
        try:
            yield
        finally:
            self._unspent += time.process_time() - spent
            self._stopped += self._now() - before


@dataclass(slots=True)
class Paces:
    """The measurements, step by step."""

    pace: float
    waited: list[float] = field(default_factory=list)  # seconds; 0: the step was in time
    rows: list[int] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)  # rows whose prompt the step computes
    handled: list[float] = field(default_factory=list)  # processor seconds between two calls of `get_output`

    def summary(self) -> dict[str, float]:
        """What `bench driver` reports.

        `waited_share_by_processor_time`: what `waited_share` would be if this process had its core for itself.
        """
        waited, arrivals, handled = (np.array(each or [0.0]) for each in (self.waited, self.arrivals, self.handled))
        return {
            "steps": len(self.waited),
            "waited_share": float((waited > 0).mean()),
            "waited_ms": 1000 * float(waited.mean()),
            "waited_share_by_processor_time": float((handled > self.pace).mean()),
            "handling_ms": 1000 * float(handled.mean()),
            "rows_per_step": float(np.mean(self.rows or [0])),
            "mixed_share": float((arrivals > 0).mean()),
        }


@dataclass(slots=True)
class _Row:
    """One request: all that it will say is made up when it comes."""

    request_id: str
    most: int  # tokens after which it ends for certain; an EOS is known when its token is read
    tokens: list[int]
    rows: list[int]  # of the tables, one per token
    own: list[tuple[int, float]]  # rank and log-probability of each token, where they are asked for
    top: int  # of how many of the likeliest tokens it is told
    scheduled: int = 0
    given: int = 0
    gone: bool = False


class PacedCore:
    """Takes EngineCoreRequests, gives EngineCoreOutputs, at its own pace."""

    def __init__(self, model: ScriptedLM, *, pace: float, rows: int, clock: Clock | None = None) -> None:
        """`pace` in seconds."""
        self._model = model
        self._ids = np.array(model.ids, dtype=np.int64)  # nothing is planted from here on
        self._logprobs = np.array(model.logprobs, dtype=np.float32)
        self._most_rows = rows
        self._clock = clock or Clock()
        self._arrived: list[EngineCoreRequest] = []
        self._aborted: list[str] = []
        self.add_request, self.abort_requests = self._arrived.append, self._aborted.extend
        self._waiting: deque[_Row] = deque()
        self._running: dict[str, _Row] = {}
        self._known: dict[str, _Row] = {}  # running and waiting
        self._submitted: deque[tuple[float, list[_Row]]] = deque()  # when each ends
        self._free_at: float | None = None
        self._returned: float | None = None
        self.paces = Paces(pace)

    def get_output(self) -> Any:
        """The outputs of the oldest submitted step; nothing while there is room to submit another."""
        called, spent = self._clock.now(), self._clock.spent()
        if self._returned is not None:
            self.paces.handled.append(spent - self._returned)
        with self._clock.stopped():
            self._take_in()
            submitted = self._submit(called)
            early = submitted and len(self._submitted) < _IN_HAND
            ends, rows = (called, []) if early or not self._submitted else self._submitted.popleft()
            outputs = SimpleNamespace(outputs=self._outputs(rows))
        self._clock.wait_until(ends)
        self._returned = None if early else self._clock.spent()
        return outputs

    def shutdown(self) -> None:
        """Nothing to free."""

    def _take_in(self) -> None:
        """The requests since the last call. To stop the clock for each of them would take longer than they took."""
        for request in self._arrived:
            row = self._known[request.request_id] = self._row(request)
            self._waiting.append(row)
        for request_id in self._aborted:
            self._running.pop(request_id, None)
            self._known.pop(request_id).gone = True
        self._arrived.clear()
        self._aborted.clear()

    def _submit(self, now: float) -> bool:
        while self._waiting and len(self._running) < self._most_rows:
            row = self._waiting.popleft()
            if not row.gone:
                self._running[row.request_id] = row
        rows = [row for row in self._running.values() if row.scheduled < row.most]
        if not rows:
            return False
        arrived = sum(row.scheduled == 0 for row in rows)
        for row in rows:
            row.scheduled += 1
        begins = now if self._free_at is None else max(now, self._free_at)
        if self._free_at is not None:
            self.paces.waited.append(begins - self._free_at)
            self.paces.rows.append(len(rows))
            self.paces.arrivals.append(arrived)
        self._free_at = begins + self.paces.pace
        self._submitted.append((self._free_at, rows))
        return True

    def _outputs(self, rows: list[_Row]) -> list[EngineCoreOutput]:
        alive = [row for row in rows if not row.gone]
        if not alive:
            return []
        states, wide = [row.rows[row.given] for row in alive], max(row.top for row in alive)
        own_ids = np.array([[row.tokens[row.given]] for row in alive])
        ids = np.concatenate([own_ids, self._ids[states, :wide]], axis=1)
        own = [row.own[row.given] if row.own else (1, 0.0) for row in alive]
        own_logprobs = np.array([[logprob] for _, logprob in own], dtype=np.float32)
        logprobs = np.concatenate([own_logprobs, self._logprobs[states, :wide]], axis=1)
        lists = LogprobsLists(ids, logprobs, np.array([rank for rank, _ in own]))
        outputs = []
        for number, row in enumerate(alive):
            output = EngineCoreOutput(request_id=row.request_id, new_token_ids=[row.tokens[row.given]])
            if row.own:
                output.new_logprobs = lists.slice_request(number, 1)
            if row.given == 0:
                output.prefill_stats = PrefillStats(num_cached_tokens=64)
            row.given += 1
            if row.given == len(row.tokens):
                output.finish_reason = FinishReason.LENGTH if row.given == row.most else FinishReason.STOP
                row.gone = True
                del self._running[row.request_id], self._known[row.request_id]
            outputs.append(output)
        return outputs

    def _row(self, request: EngineCoreRequest) -> _Row:
        parameters = request.sampling_params
        assert parameters is not None
        assert parameters.max_tokens is not None
        prompt, most = tuple(request.prompt_token_ids or ()), parameters.max_tokens
        if parameters.trace_decode_token_ids:
            tokens = list(parameters.trace_decode_token_ids)
            rows = self._model.forced(prompt, tokens)
        else:
            draw = None if parameters.temperature == 0 else random.Random(parameters.seed or 0)
            tokens, rows = self._model.continued(prompt, most, draw)
        reported = parameters.logprobs is not None
        own = [self._model.rank(*each) for each in zip(rows, tokens, strict=True)] if reported else []
        return _Row(request.request_id, most, tokens, rows, own, parameters.logprobs or 0)
