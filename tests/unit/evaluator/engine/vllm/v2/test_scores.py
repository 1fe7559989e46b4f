"""Scores and references on the V2 runner, in chunks, beside vLLM's own worker for
prompt log-probabilities."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from evaluator.engine.base import Reference
from evaluator.engine.distributions import divergences_from, divergences_of
from tests.support.engines import only_v2
from tests.support.requests import scoring

pytestmark = only_v2
WIDTH, VOCABULARY, LONGEST = 8, 50, 32
PROMPT, CONTINUATION = list(range(10)), [11, 7, 30, 44]


class Runner:
    """The parts of a V2 runner that matter here: rows of requests, in slots that are
    used again."""

    def __init__(self, seed: int) -> None:
        from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker

        from evaluator.engine.vllm.v2.scores import ScoringWorker

        generator = torch.Generator().manual_seed(seed)
        self.prompt_logprobs_worker: Any = ScoringWorker(
            PromptLogprobsWorker(4, torch.device("cpu"))
        )
        self.head_HV = torch.randn(WIDTH, VOCABULARY, generator=generator)
        # a position's, whatever the request
        self.states_TH = torch.randn(LONGEST, WIDTH, generator=generator)
        self.tokens_RT = torch.zeros(4, LONGEST, dtype=torch.int32)
        self.lengths_R = np.zeros(4, dtype=np.int32)
        self.slots: dict[str, int] = {}

    def add(self, name: str, slot: int, parameters: Any, prompt: list[int]) -> None:
        self.slots[name] = slot
        self.tokens_RT[slot, : len(prompt)] = torch.tensor(prompt)
        self.lengths_R[slot] = len(prompt)
        self.prompt_logprobs_worker.add_request(name, slot, parameters)

    def step(self, *chunks: tuple[str, int, int]) -> dict[str, Any]:
        """Compute the positions [start, end) of each request; the rows are
        overwritten afterwards."""
        ends = np.cumsum([0, *(end - start for _, start, end in chunks)])
        hidden = torch.cat([self.states_TH[start:end] for _, start, end in chunks])
        batch = SimpleNamespace(
            req_ids=[name for name, _, _ in chunks],
            idx_mapping_np=np.array([self.slots[name] for name, _, _ in chunks]),
            num_computed_prefill_tokens_np=np.array([start for _, start, _ in chunks]),
            num_scheduled_tokens=np.diff(ends),
            query_start_loc_np=ends,
        )
        found: dict[str, Any] = self.prompt_logprobs_worker.compute_prompt_logprobs(
            lambda rows: rows @ self.head_HV,
            hidden,
            batch,
            self.tokens_RT,
            torch.zeros(4),
            self.lengths_R,
        )
        hidden.zero_()
        return found

    def logits(self, first: int, count: int) -> torch.Tensor:
        return self.states_TH[first : first + count] @ self.head_HV


def parameters(reference: Reference | None) -> Any:
    from evaluator.engine.vllm.sampling import Dialect

    score = scoring("one", PROMPT, CONTINUATION, reference=reference)
    return Dialect(v2=True, one_step=True).score(score, in_prompt=True)


def sampled() -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=3)


in_chunks = pytest.mark.parametrize(
    "chunks",
    [
        [(0, 13)],
        [(0, 5), (5, 13)],
        [(0, 9), (9, 10), (10, 12), (12, 13)],
        [(0, 12), (12, 13)],
    ],
    ids=["at once", "in the context", "in the continuation", "the last row alone"],
)


@in_chunks
def test_continuation_is_scored_by_rows(chunks):
    prompt, runner = [*PROMPT, *CONTINUATION[:-1]], Runner(1)
    runner.add("plain", 3, sampled(), [1, 2, 3])
    for name, slot in (("one", 1), ("two", 2)):
        runner.add(name, slot, parameters(None), prompt)
    for start, end in chunks:
        found = runner.step(("two", start, end), ("plain", 0, 3), ("one", start, end))
        assert set(found) == ({"one", "two"} if end == 13 else set())
    # the sampler reports the last token
    rows = runner.logits(len(PROMPT) - 1, len(CONTINUATION) - 1)
    chosen = rows.gather(1, torch.tensor(CONTINUATION[:-1])[:, None])
    for table in found.values():
        assert table.logprob_token_ids[:, 0].tolist() == CONTINUATION[:-1]
        assert table.logprob_token_ids[:, 1].tolist() == rows.argmax(1).tolist()
        assert (
            table.selected_token_ranks.tolist() == (1 + (rows > chosen).sum(1)).tolist()
        )
        assert torch.allclose(
            table.logprobs,
            rows.log_softmax(1).gather(1, table.logprob_token_ids.long()),
            atol=1e-6,
        )


@in_chunks
def test_kept_continuation_is_compared_by_rows(chunks, tmp_path):
    prompt = [*PROMPT, *CONTINUATION[:-1]]
    kept = Reference(path=str(tmp_path / "one"), keep=True)
    base, other = Runner(1), Runner(2)
    tables = {}
    for runner, reference in (
        (base, kept),
        (other, dataclasses.replace(kept, keep=False)),
    ):
        runner.add("plain", 3, sampled(), [1, 2, 3])
        runner.add("one", 1, parameters(reference), prompt)
        for start, end in chunks:
            found = runner.step(("plain", 0, 3), ("one", start, end))
            assert (end == 13) == ("one" in found)
        assert list(found) == ["one"]
        tables[runner] = found["one"]

    rows = other.logits(len(PROMPT) - 1, len(CONTINUATION))
    chosen = rows.gather(1, torch.tensor(CONTINUATION)[:, None])
    own = tables[other]
    assert own.logprob_token_ids[:, 0].tolist() == CONTINUATION
    assert own.selected_token_ranks.tolist() == (1 + (rows > chosen).sum(1)).tolist()
    assert torch.allclose(
        own.logprobs[:, 0],
        rows.log_softmax(1).gather(1, torch.tensor(CONTINUATION)[:, None])[:, 0],
    )
    assert tables[base].logprobs.shape == (4, 2)
    expected = divergences_from(
        dataclasses.replace(kept, keep=False), rows, CONTINUATION
    )
    found = divergences_of(own.logprobs[:, 2:].tolist())
    assert [tuple(each) for each in found] == [
        pytest.approx(tuple(each)) for each in expected
    ]
    assert all(divergence.kld > 0.01 for divergence in expected)


def test_preempted_request_begins_anew(tmp_path):
    """A preempted request begins anew and a slot is used again."""
    prompt = [*PROMPT, *CONTINUATION[:-1]]
    runner, kept = Runner(1), Reference(path=str(tmp_path / "one"), keep=True)
    runner.add("one", 1, parameters(kept), prompt)
    assert runner.step(("one", 0, 11)) == {}
    runner.prompt_logprobs_worker.remove_request("one")
    runner.add("one", 2, parameters(kept), prompt)
    runner.add("next", 1, sampled(), [1, 2])
    found = runner.step(("next", 0, 2), ("one", 0, 13))
    assert list(found) == ["one"]
    assert len(found["one"].logprobs) == len(CONTINUATION)
    same = divergences_from(
        dataclasses.replace(kept, keep=False), runner.logits(9, 4), CONTINUATION
    )
    assert [divergence.kld for divergence in same] == [0.0] * 4
    assert runner.step(("one", 13, 14)) == {}  # its one generated token
