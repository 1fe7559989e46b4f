"""A device that takes a fixed time for a step, behind vLLM's own engine core.

`executor(script, device)` is a vLLM Executor. The core's scheduler, cache manager and
asynchronous steps are real. The executor computes nothing: a step begins when it is
submitted or when the device has ended the step before, whichever is later, and ends
`pace` seconds afterwards. Its tokens and log-probabilities come from a script.

Several engines share one `Device`, as processes share a GPU: it takes one step after
another, whoever submits it.

Replaces vLLM's `Executor`. Reads `SchedulerOutput`, `NewRequestData` and
`SamplingParams`; makes `ModelRunnerOutput`.
"""

import multiprocessing
import random
import time
import zlib
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import (
    EMPTY_MODEL_RUNNER_OUTPUT,
    LogprobsLists,
    LogprobsTensors,
    ModelRunnerOutput,
)

from evaluator.engine.vllm.prompt_scores import REFERENCE, SCORED_FROM

STATES = 1021
TOP = 16  # tokens of a distribution: the tail is nobody's answer
# of keys and values: what an H100 has room for beside a model of 0.6 B parameters
CACHED_TOKENS = 640_000
_SHARPNESS = 3.5
_EOS_FIRST = 1 / 45  # of the states: EOS is the likeliest token
_RANK = 57  # of a scored token that is not among them


class ScriptedLM:
    """A language model that costs next to nothing: its distributions were drawn
    before the clock starts.

    The distribution after a prefix is one of `STATES`, by a checksum of the prefix's
    token ids. So equal prefixes have equal distributions, and beams, samples and
    scores fit together as a model's do. Some prefixes are *planted*: there a given
    token is the likeliest. How peaked the distributions are, and how often EOS is
    the likeliest token, give lengths and beams of about those of SmolLM2-135M on
    XQuAD (answers of 22 to 28 tokens where 32 are allowed, 37 rollouts of a beam
    search).

    A distribution is a row of `ids` and `logprobs`, most likely first."""

    def __init__(self, vocabulary: int, eos_id: int) -> None:
        rng, choice = np.random.default_rng(0), random.Random(0)
        others = [token for token in range(vocabulary) if token != eos_id]
        self.ids: list[list[int]] = []
        self.logprobs: list[list[float]] = []
        self._cumulated: list[list[float]] = []
        for _ in range(STATES):
            logits = rng.normal(size=4 * TOP) * _SHARPNESS
            logprobs = np.sort(logits - np.logaddexp.reduce(logits))[::-1][:TOP]
            ids = choice.sample(others, TOP)
            first = choice.random() < _EOS_FIRST
            ids[0 if first else choice.randrange(2, TOP)] = eos_id
            self.ids.append(ids)
            self.logprobs.append(logprobs.astype(np.float32).tolist())
            self._cumulated.append(np.exp(logprobs[:8]).cumsum().tolist())
        self._planted: dict[int, int] = {}  # checksum -> row
        self.eos_id = eos_id

    def plant(self, prompt_ids: Sequence[int], answer: Sequence[int]) -> None:
        """Make `answer` the greedy answer to a prompt."""
        prefix = checksum(prompt_ids)
        for token in answer:
            row = prefix % STATES
            ids = list(self.ids[row])
            if token in ids:
                ids[ids.index(token)] = ids[0]
            ids[0] = token
            self._planted[prefix] = len(self.ids)
            self.ids.append(ids)
            self.logprobs.append(self.logprobs[row])
            self._cumulated.append(self._cumulated[row])
            prefix = _then(prefix, token)

    def _row(self, prefix: int) -> int:
        return self._planted.get(prefix, prefix % STATES)

    def rank(self, row: int, token: int) -> tuple[int, float]:
        """The rank and log-probability of a token."""
        ids = self.ids[row]
        if token in ids:
            return 1 + ids.index(token), self.logprobs[row][ids.index(token)]
        return _RANK, self.logprobs[row][-1] - 2.0

    def forced(
        self, prompt_ids: Sequence[int], continuation: Sequence[int]
    ) -> list[int]:
        """The row of each token of a continuation."""
        rows, prefix = [], checksum(prompt_ids)
        for token in continuation:
            rows.append(self._row(prefix))
            prefix = _then(prefix, token)
        return rows

    def continued(
        self, prompt_ids: Sequence[int], most: int, draw: random.Random | None = None
    ) -> list[int]:
        """The likeliest continuation, or one that `draw` draws, of at most `most`
        tokens, or up to EOS."""
        tokens: list[int] = []
        prefix = checksum(prompt_ids)
        while len(tokens) < most and tokens[-1:] != [self.eos_id]:
            row, number = self._row(prefix), 0
            if draw is not None:
                chances = self._cumulated[row]
                number = bisect_left(chances, draw.random() * chances[-1])
            tokens.append(self.ids[row][number])
            prefix = _then(prefix, tokens[-1])
        return tokens


def checksum(ids: Sequence[int]) -> int:
    """Of a prefix, by its token ids."""
    return zlib.crc32(array("I", ids))


def _then(prefix: int, token: int) -> int:
    """The checksum of a prefix and one more token."""
    return zlib.crc32(token.to_bytes(4, "little"), prefix)


class Device:
    """One device, shared by the processes that inherit it. Its times are those of
    `now`, which processes share."""

    def __init__(
        self, pace: float, now: Callable[[], float] = time.perf_counter
    ) -> None:
        """`pace`: the seconds of a step."""
        self.pace, self._now = pace, now
        # The end of the last step, idle seconds, steps.
        self._queue: Any = multiprocessing.get_context("spawn").Array("d", 3)

    def submit(self) -> float:
        """Begin a step when the device is free; returns when the step ends."""
        with self._queue.get_lock():
            free, idle, steps = self._queue
            begins: float = max(self._now(), free)
            self._queue[:] = [
                begins + self.pace,
                idle + (begins - free if steps else 0.0),
                steps + 1,
            ]
            return begins + self.pace

    @property
    def steps(self) -> int:
        return int(self._queue[2])

    @property
    def idle_share(self) -> float:
        """The share of the time between the first step's begin and the last one's
        end in which no step ran."""
        _, idle, steps = self._queue
        return float(idle / max(1e-9, idle + steps * self.pace))


@dataclass(slots=True)
class _Row:
    """One request: its whole answer is made up when it comes."""

    tokens: list[int]
    rows: list[int]  # of the tables, one per token
    # rank and log-probability of each token, where they are reported
    own: list[tuple[int, float]]
    top: int  # how many of the likeliest tokens each report has
    left: int  # tokens of the prompt that are not computed
    report: LogprobsTensors | None  # on the prompt's last tokens
    given: int = 0


class PacedExecutor(Executor):  # type: ignore[misc]
    """Executes nothing, at a device's pace. `executor` makes the class that vLLM
    builds."""

    script: ScriptedLM
    device: Device
    sleep: Callable[[float], None] = staticmethod(time.sleep)
    now: Callable[[], float] = staticmethod(time.perf_counter)

    def _init_executor(self) -> None:
        self._known: dict[str, _Row] = {}
        self.begin(self.device)
        self._submitted: Any = None
        # nothing is planted from here on
        self._ids = np.array(self.script.ids, dtype=np.int64)
        self._logprobs = np.array(self.script.logprobs, dtype=np.float32)

    def begin(self, device: Device) -> None:
        """Submit steps to another device from now on, and count anew."""
        self.device = device
        # mixed: steps with arrivals
        self.counts: Counter[str] = Counter()

    def collective_rpc(self, method: Any, *_: Any, **__: Any) -> Any:
        """No worker is there: its peak of memory is 0."""
        return [0]

    def check_health(self) -> None:
        """Always."""

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    def get_kv_cache_specs(self) -> Any:
        size = self.cache_config.block_size
        return [
            {
                "layer": FullAttentionSpec(
                    block_size=size, num_kv_heads=1, head_size=16, dtype=torch.bfloat16
                )
            }
        ]

    def determine_available_memory(self) -> list[int]:
        spec = self.get_kv_cache_specs()[0]["layer"]
        return [CACHED_TOKENS // spec.block_size * spec.page_size_bytes]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [["LBNHC"]]

    def compile_or_warm_up_model(self) -> None:
        """Nothing to compile."""

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Take a step. `sample_tokens` submits it, unless it has no tokens."""
        self._submitted = scheduler_output
        return SimpleNamespace(result=partial(self._without_tokens, scheduler_output))

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """A step that was submitted: vLLM waits for its `result`."""
        return SimpleNamespace(
            result=partial(self._result, self._submitted, self.device.submit())
        )

    def _without_tokens(self, step: Any) -> ModelRunnerOutput:
        """Forget what a step ends. vLLM asks for results in order: the step before
        may hold rows of that."""
        self._forget(step)
        return EMPTY_MODEL_RUNNER_OUTPUT

    def _result(self, submitted: Any, ends: float) -> ModelRunnerOutput:
        """Make up the outputs while the device computes, then wait for it."""
        found = self.outputs(submitted)
        if (left := ends - self.now()) > 0:
            self.sleep(left)
        return found

    def outputs(self, step: Any) -> ModelRunnerOutput:
        """What the script says in a step. Steps come in their order."""
        self._forget(step)
        for new in step.scheduled_new_reqs:
            known = self._known.get(new.req_id)  # of a request that was preempted
            row = self._known[new.req_id] = self._row(new)
            row.given = 0 if known is None else known.given
        names = list(step.num_scheduled_tokens)
        rows = [self._known[name] for name in names]
        tokens: list[list[int]] = []
        table_rows, ids, logprobs, ranks, reports = [], [], [], [], {}
        for name, row in zip(names, rows, strict=True):
            row.left -= step.num_scheduled_tokens[name]
            # a step that was scheduled before EOS was seen
            place = min(row.given, len(row.tokens) - 1)
            rank, logprob = row.own[place] if row.own else (1, 0.0)
            table_rows.append(row.rows[place])
            ids.append([row.tokens[place]])
            logprobs.append([logprob])
            ranks.append(rank)
            tokens.append([])
            if row.left > 0:
                continue
            row.left = 1
            tokens[-1] = ids[-1]
            if row.given == 0 and row.report is not None:
                reports[name] = row.report
            row.given += 1
        arrivals = len(step.scheduled_new_reqs)
        self.counts.update(
            steps=1, rows=len(rows), arrivals=arrivals, mixed=bool(arrivals)
        )
        top = max(row.top for row in rows)
        own_logprobs = np.array(logprobs, np.float32)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=tokens,
            logprobs=LogprobsLists(
                np.concatenate([np.array(ids), self._ids[table_rows, :top]], axis=1),
                np.concatenate(
                    [own_logprobs, self._logprobs[table_rows, :top]], axis=1
                ),
                np.array(ranks),
            ),
            prompt_logprobs_dict=reports,
        )

    def _forget(self, step: Any) -> None:
        for name in step.finished_req_ids:
            self._known.pop(name, None)

    def _row(self, new: Any) -> _Row:
        prompt, parameters = new.prompt_token_ids, new.sampling_params
        orders = parameters.extra_args or {}
        assert REFERENCE not in orders, "a device has no distributions to compare"
        tokens = list(parameters.trace_decode_token_ids or ())
        if not tokens:
            draw = None
            if parameters.temperature:
                draw = random.Random(parameters.seed or 0)
            tokens = self.script.continued(prompt, parameters.max_tokens, draw)
        rows = self.script.forced(prompt, tokens)
        own = []
        if parameters.logprobs is not None:
            own = self._ranks(rows, tokens)
        report = None
        if SCORED_FROM in orders:
            report = self._report(prompt, orders[SCORED_FROM])
        left = len(new.prefill_token_ids or prompt) - new.num_computed_tokens
        return _Row(tokens, rows, own, parameters.logprobs or 0, left, report)

    def _ranks(self, rows: list[int], tokens: list[int]) -> list[tuple[int, float]]:
        pairs = zip(rows, tokens, strict=True)
        return [self.script.rank(row, token) for row, token in pairs]

    def _report(self, prompt: list[int], context: int) -> LogprobsTensors:
        """Of the tokens of a continuation that are in the prompt."""
        tokens = prompt[context:]
        rows = self.script.forced(prompt[:context], tokens)
        ranks, logprobs = zip(*self._ranks(rows, tokens), strict=True)
        best_ids = [self.script.ids[row][0] for row in rows]
        best_logprobs = [self.script.logprobs[row][0] for row in rows]
        return LogprobsTensors(
            torch.tensor([tokens, best_ids]).T,
            torch.tensor([logprobs, best_logprobs]).T,
            torch.tensor(ranks),
        )


def executor(script: ScriptedLM, device: Device) -> type[PacedExecutor]:
    """An Executor class whose engines answer by `script` at the pace of `device`."""
    return type("Paced", (PacedExecutor,), {"script": script, "device": device})
