"""A GPU that computes nothing: vLLM's own V2 model runner on a CPU (v2.py), without
its kernels, and a language model that costs next to nothing, which answers for it.

The runner prepares inputs, samples and copies as ever, but its forward pass and its
logits are slices of zeros. The script's tokens, tables and reports on prompts take the
place of what it would have sampled.
"""

import importlib
import random
import sys
import zlib
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from evaluator.engine.base import Request, Response, Score

STATES = 1021
TOP = 16  # tokens of a distribution: the tail is nobody's answer
_SHARPNESS = 3.5
_EOS_FIRST = 1 / 45  # of the states: EOS is the likeliest token
_RANK = 57  # of a scored token that is not among them
# how many copies a call of a function is
_COPIES = {
    "async_tensor_h2d": 1,
    "async_copy_to_np": 1,
    "to_cpu_nonblocking": 3,
    "unfilled": 0,
}
_NOT_LAUNCHED = ("empty", "new_empty", "set_", "detach", "lift", "_local_scalar")


class ScriptedLM:
    """A language model whose distributions were drawn beforehand.

    The distribution after a prefix is one of `STATES`, by a checksum of the prefix's
    token ids. So equal prefixes have equal distributions, and beams, samples and
    scores fit together as a model's do. How peaked the distributions are, and how
    often EOS is the likeliest token, give lengths and beams of about those of
    SmolLM2-135M on XQuAD (answers of 22 to 28 tokens where 32 are allowed, 37
    rollouts of a beam search)."""

    def __init__(self, vocabulary: int, eos_id: int) -> None:
        rng, choice = np.random.default_rng(0), random.Random(0)
        others = [token for token in range(vocabulary) if token != eos_id]
        self._eos_id = eos_id
        self._ids: list[tuple[int, ...]] = []  # of each state, the likeliest first
        self._logprobs: list[tuple[float, ...]] = []
        self._cumulated: list[list[float]] = []
        for _ in range(STATES):
            logits = rng.normal(size=4 * TOP) * _SHARPNESS
            logprobs = np.sort(logits - np.logaddexp.reduce(logits))[::-1][:TOP]
            ids = choice.sample(others, TOP)
            first = choice.random() < _EOS_FIRST
            ids[0 if first else choice.randrange(2, TOP)] = eos_id
            self._ids.append(tuple(ids))
            self._logprobs.append(tuple(logprobs.astype(np.float32).tolist()))
            self._cumulated.append(np.exp(logprobs[:8]).cumsum().tolist())

    def answer(self, request: Request, top: int | None = None) -> Response:
        """The response that an engine serving this model gives, with the `top`
        likeliest tokens, if they are not to be those that the request wants."""
        if isinstance(request, Score):
            wanted, most, draw = 1, len(request.continuation_ids), None
            forced: Sequence[int] = request.continuation_ids
        else:
            wanted, most, forced = request.top_logprobs, request.max_tokens, ()
            draw = random.Random(request.seed) if request.temperature else None
        top = wanted if top is None else top
        tokens: list[int] = []
        rows: list[int] = []
        prefix = zlib.crc32(array("I", request.prompt_ids))
        while len(tokens) < most and (forced or tokens[-1:] != [self._eos_id]):
            rows.append(prefix % STATES)
            tokens.append(forced[len(tokens)] if forced else self._next(rows[-1], draw))
            prefix = zlib.crc32(tokens[-1].to_bytes(4, "little"), prefix)
        own = [self._own(*pair) for pair in zip(rows, tokens, strict=True)]
        reported = top or draw is None
        return Response(
            request_id=request.request_id,
            token_ids=tuple(tokens),
            logprobs=tuple([logprob for _, logprob in own]) if reported else (),
            ranks=tuple([rank for rank, _ in own]) if forced else (),
            top_ids=tuple([self._ids[row][:top] for row in rows if top]),
            top_logprobs=tuple([self._logprobs[row][:top] for row in rows if top]),
        )

    def _next(self, row: int, draw: random.Random | None) -> int:
        """The likeliest token, or one that `draw` draws."""
        chances = self._cumulated[row]
        place = bisect_left(chances, draw.random() * chances[-1]) if draw else 0
        return self._ids[row][place]

    def _own(self, row: int, token: int) -> tuple[int, float]:
        """The rank and log-probability of a token."""
        ids, logprobs = self._ids[row], self._logprobs[row]
        if token in ids:
            return 1 + ids.index(token), logprobs[ids.index(token)]
        return _RANK, float(np.float32(logprobs[-1] - 2.0))


class Answers:
    """What a model says, in the runner's own tables. It needs each request before the
    core does (`remember`), and the step before it is executed (`begin`)."""

    def __init__(self, model: ScriptedLM) -> None:
        self._model = model
        self._requests: dict[str, Request] = {}
        # by the core's id: ids, log-probabilities and ranks of each token, and how many
        # of them are in the core's prompt
        self._tables: dict[str, tuple[Any, Any, Any, int]] = {}

    def remember(self, name: str, request: Request) -> None:
        """The request that the core knows by a name."""
        self._requests[name] = request

    def begin(self, step: Any) -> None:
        """Make up the answers to requests that come; forget those that have ended."""
        for name in step.finished_req_ids:
            self._requests.pop(name, None)
            self._tables.pop(name, None)
        for new in step.scheduled_new_reqs:
            request = self._requests[new.req_id]
            response = self._model.answer(request, TOP)
            own = zip(response.token_ids, response.top_ids, strict=True)
            values = zip(response.logprobs, response.top_logprobs, strict=True)
            self._tables[new.req_id] = (
                np.array([(token, *ids) for token, ids in own]),
                np.array([(first, *others) for first, others in values], np.float32),
                np.array(response.ranks or [1] * len(response.token_ids)),
                len(new.prompt_token_ids) - len(request.prompt_ids),
            )

    def sampled(self, runner: Any, output: Any, batch: Any) -> None:
        """Fill in the tokens of a step and their tables."""
        prompts = runner.req_states.prompt_len.np[batch.idx_mapping_np]
        places = batch.seq_lens_cpu_upper_bound.numpy()[: len(prompts)] - prompts
        tables = output.logprobs_tensors
        for row, name in enumerate(batch.req_ids):
            ids, logprobs, ranks, first = self._tables[name]
            if places[row] < 0:  # within a prompt
                output.num_sampled[row] = 0
            # a step may be scheduled before the last token was seen
            place = min(first + max(0, int(places[row])), len(ids) - 1)
            output.sampled_token_ids[row, 0] = int(ids[place, 0])
            if tables is not None:
                width = tables.logprobs.shape[1]
                tables.logprob_token_ids.numpy()[row, :width] = ids[place, :width]
                tables.logprobs.numpy()[row, :width] = logprobs[place, :width]
                tables.selected_token_ranks[row] = int(ranks[place])

    def reported(self, reports: dict[str, Any]) -> dict[str, Any]:
        """Fill in the tables of scores, but for the token that is sampled."""
        for name, report in reports.items():
            ids, logprobs, ranks, stop = self._tables[name]
            rows = ids[:stop, :2], logprobs[:stop, :2], ranks[:stop]
            for tensor, table in zip(report, rows, strict=False):
                tensor.numpy()[:] = table
        return reports


class Counting(TorchDispatchMode):
    """Within it, the operators and copies of a runner are counted, while it is at
    work (`counted`). This is slow.

    A tensor on a CPU cannot tell where it would be: the few operators on a host's
    tensors are counted too."""

    def __init__(self, counts: Counter[str], counted: Callable[[], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counts, self._counted = counts, counted
        self._copying = 0  # calls
        self._on_host: set[int] = set()  # places in memory that this step has copied

    def __enter__(self) -> Any:
        sys.setprofile(self._called)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        sys.setprofile(None)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        launched = not func.is_view and not func.__name__.startswith(_NOT_LAUNCHED)
        if launched and not self._copying and self._counted():
            self._counts["ops"] += 1
        return func(*args, **(kwargs or {}))

    def _called(self, frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_name
        if name not in _COPIES or not self._counted():
            return
        self._copying += {"call": 1, "return": -1}.get(event, 0)
        if event != "call":
            return
        if name == "async_tensor_h2d":  # a step begins
            self._on_host.clear()
        if name == "to_cpu_nonblocking":
            table = frame.f_locals["self"].logprobs.untyped_storage().data_ptr()
            if table in self._on_host:  # by another view of it
                return
            self._on_host.add(table)
        self._counts["copies"] += _COPIES[name]


def serve_gpu_blocks() -> None:
    """From now on vLLM serves the blocks of a GPU, which no CPU's kernel reads."""
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends import cpu_attn

    cpu_attn.CPUAttentionBackend.get_supported_kernel_block_sizes = staticmethod(
        lambda *_: [MultipleOf(16)]
    )


def without_kernels(runner: Any, answers: Answers, counts: Counter[str]) -> None:
    """From now on a V2 runner computes nothing, and has the answers instead. Steps,
    their rows and arrivals, and launches of kernels are counted.

    Replaces Triton's `InterpretedFunction.run`, `torch.empty`, vLLM's top-p, the
    model's `forward` and `compute_logits`, and the caches, whose blocks get no
    content."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    from vllm.v1.worker.gpu.sample import sampler

    zeros, tokens = torch.zeros, runner.max_num_tokens
    states, logits = zeros(tokens, 1, dtype=runner.dtype), zeros(tokens, TOP)

    def launch(*_: Any, **__: Any) -> None:
        counts["launches"] += 1

    def unfilled(*size: Any, **named: Any) -> Any:
        """A tensor that a kernel would fill."""
        return zeros(*size, **named)

    interpreter.InterpretedFunction.run = launch
    torch.empty = unfilled
    sampler.apply_top_k_top_p = lambda logits, *_: logits
    runner.model.forward = lambda input_ids, **_: states[: len(input_ids)]
    runner.model.compute_logits = lambda states: logits[: len(states)]
    blocks = runner.kv_cache_config.num_blocks
    runner.kv_caches[:] = zeros(len(runner.kv_caches), blocks, 1).unbind()
    _hand_out(runner, answers, sampler.Sampler, counts)


def _hand_out(
    runner: Any, answers: Answers, sampler: Any, counts: Counter[str]
) -> None:
    from evaluator.engine.vllm.requests import Batch

    worker = runner.prompt_logprobs_worker
    made, execute = Batch._made, runner.execute_model
    sample, report = sampler.__call__, worker.compute_prompt_logprobs

    def remembered(batch: Batch, request: Request, now: float) -> Any:
        core_request = made(batch, request, now)
        answers.remember(core_request.request_id, request)
        return core_request

    def executed(step: Any, *more: Any) -> Any:
        answers.begin(step)
        if rows := len(step.num_scheduled_tokens):
            arrivals = len(step.scheduled_new_reqs)
            counts.update(steps=1, rows=rows, arrivals=arrivals)
        return execute(step, *more)

    def sampled(own: Any, logits: Any, batch: Any) -> Any:
        output = sample(own, logits, batch)
        answers.sampled(runner, output, batch)
        return output

    Batch._made = remembered  # type: ignore[assignment, method-assign]
    runner.execute_model = executed
    sampler.__call__ = sampled
    worker.compute_prompt_logprobs = lambda *step: answers.reported(report(*step))


def idle_share(
    engines: Sequence[Sequence[tuple[float, bool]]], pace: float, priced: float
) -> float:
    """The share of a GPU's time in which no step runs, if these engines share it,
    until the first of them ends.

    `engines`: the marks of each. A step takes `pace` seconds, and its launches take
    the host `priced` seconds more."""
    steps = [iter(marks) for marks in engines]
    due = [(*next(marks), number) for number, marks in enumerate(steps)]
    heapify(due)
    began = free = due[0][0]
    late = [0.0] * len(engines)  # behind their marks
    ends: list[deque[float]] = [deque() for _ in engines]
    idle = 0.0
    while True:
        now, launched, number = heappop(due)
        if launched:
            idle += max(0.0, now - free)
            free = max(now, free) + pace
            ends[number].append(free)
            late[number] += priced
        else:
            late[number] += max(0.0, ends[number].popleft() - now)
        if (mark := next(steps[number], None)) is None:
            return idle / (free - began)
        heappush(due, (mark[0] + late[number], mark[1], number))
