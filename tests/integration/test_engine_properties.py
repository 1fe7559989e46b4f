"""The fast paths on a real engine against plain searches over full forward passes, where they could go wrong.

Tiny random models of 24 tokens, so that options share beginnings and beams nearly tie; one of them cannot tell eight of
its tokens from eight others, so that they tie exactly. Prompts end around block boundaries, begin alike, and fill the
context. Everything goes through one engine as one stream, as in a run; checkpoints are swapped in.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evaluator.engine.base import Request, Response, Score
from evaluator.engine.beam import BeamSearch, Hypothesis
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support.engines import Waiting, both_runners, fewer
from tests.support.models import save_tiny_model
from tests.support.search import Tokens, plain_beams

pytestmark = both_runners

VOCABULARY, EOS_IDS = 24, (0, 3, 5, 7)
TWINS = {16 + k: 8 + k for k in range(8)}
CONTEXT, WIDTH, NEW = 288, 5, 8
LENGTHS = (1, 15, 16, 17, 31, 32, 33, 127, 128, 129, 256, CONTEXT - NEW - 1, CONTEXT - NEW)
TOLERANCE = 1e-4  # nats
ROUNDING = 2e-5  # nats: what is closer may change places between two implementations in float32
CONFIG = EngineConfig(max_model_len=CONTEXT, max_num_seqs=16)


@dataclasses.dataclass
class Loaded:
    engine: VLLMEngine
    model: Any
    twins: dict[int, int]

    def distributions(self, prefixes: Sequence[Tokens]) -> np.ndarray:
        """Next-token log-probabilities by one full forward pass, [prefix, token]."""
        with torch.inference_mode():
            return self.model(torch.tensor(prefixes)).logits[:, -1].log_softmax(-1).double().numpy()


@pytest.fixture(scope="module")
def engine() -> Iterator[VLLMEngine]:
    engine = VLLMEngine(CONFIG)
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=fewer(["twins", "seed 0", "seed 1", "seed 2"]))
def loaded(request: pytest.FixtureRequest, engine: VLLMEngine, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    from transformers import AutoModelForCausalLM

    twins = TWINS if request.param == "twins" else {}
    seed = 3 if twins else int(request.param[-1])
    checkpoint = tmp_path_factory.mktemp("tiny") / "model"
    save_tiny_model(checkpoint, seed=seed, eos_ids=EOS_IDS, vocabulary=VOCABULARY)
    if twins:
        make_twins(checkpoint / "model.safetensors")
    assert engine.load(checkpoint).scoring == "forced"
    return Loaded(engine, AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32").eval(), twins)


def make_twins(file: Path) -> None:
    """Give each twin the embedding of the other: it is read, and predicted, as the same."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    (table,) = (tensor for name, tensor in tensors.items() if "embed" in name)
    table[list(TWINS)] = table[list(TWINS.values())]
    save_file(tensors, file, metadata={"format": "pt"})


def prompts() -> dict[int, Tokens]:
    """One text, cut to every length: what is long finds what is short in the prefix cache, a part of a block too."""
    draw = random.Random(4)
    text = tuple(draw.randrange(1, VOCABULARY) for _ in range(CONTEXT))
    return {length: text[:length] for length in fewer(LENGTHS, 6)} | {CONTEXT - NEW: text[: CONTEXT - NEW]}


def options(length: int) -> list[Tokens]:
    """Equal ones, beginnings of one another, and some that share their first token; EOS among them."""
    draw = random.Random(length)
    first = tuple(draw.randrange(VOCABULARY) for _ in range(NEW))
    others = [(first[0], *(draw.randrange(VOCABULARY) for _ in range(n))) for n in (1, 3)]
    return [first, first[:1], first[:4], first, *others, others[1], (draw.randrange(VOCABULARY),), (EOS_IDS[0], 7)]


def stream(engine: VLLMEngine, requests: Sequence[Request], searches: Sequence[BeamSearch]) -> dict[str, Response]:
    """Everything at once; searches get what is theirs, the other answers come back."""
    of = {f"search{number}": search for number, search in enumerate(searches)}
    source = Waiting([*(first for search in searches for first in search.start()), *requests])
    answers: dict[str, Response] = {}
    for response in engine.run(source):
        search = of.get(response.request_id.partition("/")[0])
        if search is None:
            assert response.request_id not in answers
            answers[response.request_id] = response
        else:
            source.requests += search.receive(response)
    return answers


def assert_equal_beams(loaded: Loaded, prompt: Tokens, hypotheses: Sequence[Hypothesis]) -> bool:
    """Whether the comparison was strict: no decision of the plain search was closer than rounding."""
    found = plain_beams(
        loaded.distributions,
        prompt,
        width=WIDTH,
        max_tokens=NEW,
        eos_ids=frozenset(EOS_IDS),
        twins=loaded.twins,
    )
    assert len({h.token_ids for h in hypotheses}) == WIDTH
    for h in hypotheses:
        rows = [loaded.distributions([prompt + h.token_ids[:step]])[0] for step in range(len(h.token_ids))]
        own = sum(row[token] for row, token in zip(rows, h.token_ids, strict=True))
        assert h.logprob == pytest.approx(own, abs=TOLERANCE)
    if found.closest < ROUNDING:
        return False

    def kinds(beams: Sequence[Tokens]) -> list[Tokens]:
        return [tuple(loaded.twins.get(token, token) for token in ids) for ids in beams]

    ours, theirs = kinds([h.token_ids for h in hypotheses]), kinds([ids for ids, _ in found.beams])
    assert Counter(ours) == Counter(theirs) if loaded.twins else ours == theirs
    assert [h.score for h in hypotheses] == pytest.approx(
        [total / len(ids) for ids, total in found.beams], abs=TOLERANCE
    )
    return True


def assert_equal_score(loaded: Loaded, request: Score, answer: Response) -> None:
    ids = request.prompt_ids + request.continuation_ids
    with torch.inference_mode():
        every = loaded.model(torch.tensor([ids])).logits[0, len(request.prompt_ids) - 1 : -1]
    rows = every.log_softmax(-1).double().numpy()
    own = rows[range(len(rows)), request.continuation_ids]
    assert (answer.status, answer.token_ids) == ("ok", request.continuation_ids)
    assert answer.logprobs == pytest.approx(own.tolist(), abs=TOLERANCE)
    assert [top for (top,) in answer.top_logprobs] == pytest.approx(rows.max(1).tolist(), abs=TOLERANCE)
    kinds = np.array([loaded.twins.get(token, token) for token in range(VOCABULARY)])
    others = kinds[None, :] != kinds[list(request.continuation_ids)][:, None]  # a twin is not above its twin
    lowest, highest = (1 + (others & (rows > (own + slack)[:, None])).sum(1) for slack in (ROUNDING, -ROUNDING))
    assert all(low <= rank <= high for low, rank, high in zip(lowest, answer.ranks, highest, strict=True))


def test_one_stream_of_beams_and_scores_equals_plain_searches(loaded: Loaded) -> None:
    contexts = prompts()
    searches = [
        BeamSearch(f"search{number}", prompt, width=WIDTH, max_tokens=NEW, eos_ids=frozenset(EOS_IDS))
        for number, prompt in enumerate(contexts.values())
    ]
    scores = [
        Score(request_id=f"{length}/{number}", prompt_ids=prompt, continuation_ids=ids)
        for length, prompt in contexts.items()
        for number, ids in enumerate(options(length))
    ]
    cold = stream(loaded.engine, scores, searches)
    warm = stream(loaded.engine, scores[::-1], [])
    strict = [
        assert_equal_beams(loaded, prompt, search.hypotheses())
        for prompt, search in zip(contexts.values(), searches, strict=True)
    ]
    assert sum(strict) >= len(strict) - 1
    for request in scores:
        assert_equal_score(loaded, request, cold[request.request_id])
        assert_equal_score(loaded, request, warm[request.request_id])
    assert loaded.engine.stats().cached_tokens > 0
