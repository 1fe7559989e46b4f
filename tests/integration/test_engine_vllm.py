"""VLLMEngine against transformers, in float32: greedy, scores, beams, samples,
swaps, streams; one engine for all."""

import contextlib
import random
import shutil
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from scipy.stats import chisquare

from evaluator.engine.base import Cancel, FixedSource, Generate
from evaluator.engine.config import EngineConfig
from evaluator.engine.torch_engine import TorchEngine
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support import engines
from tests.support.engines import (
    TOLERANCE,
    Waiting,
    both_runners,
    fewer,
    greedy_tokens,
    opened,
    oracle_of,
)
from tests.support.engines import answers as ask
from tests.support.fake import streamed_tokens
from tests.support.models import load_model, save_tiny_model
from tests.support.requests import generation, scoring
from tests.support.traps import lay_traps

pytestmark = both_runners

BUNDLED = Path(__file__).resolve().parents[2] / "launch" / "reference_model"
CONFIG = EngineConfig(max_model_len=400, max_num_seqs=16)
BLOCK = 32
EOS_IDS = (0, 7)


@dataclass
class Served:
    checkpoint: Path
    other: Path
    engine: VLLMEngine
    oracle: TorchEngine
    model: Any
    vocabulary: int


TIED, *OTHERS = [
    pytest.param(name, marks=pytest.mark.more) for name in ("qwen3", "mistral", "phi3")
]


@pytest.fixture(
    scope="module", params=fewer([TIED, "qwen3_untied", *OTHERS, "bundled"])
)
def served(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "bundled":
        if not (BUNDLED / "config.json").exists():
            pytest.skip("the bundled model is not there")
        checkpoint, other = BUNDLED, half_of(BUNDLED, directory / "other")
    else:
        checkpoint = save_tiny_model(
            directory / "one", request.param, 0, eos_ids=EOS_IDS
        )
        other = save_tiny_model(directory / "other", request.param, 1, eos_ids=EOS_IDS)
    # the tests that compare answers say which weights were read
    if request.param == "qwen3_untied":
        for each in (checkpoint, other):
            lay_traps(each, directory / "run")
    model = load_model(checkpoint)
    engine = VLLMEngine(CONFIG)
    # its forced scores are right, and every matrix was compared
    assert engine.load(checkpoint).notes == ()
    yield Served(
        checkpoint,
        other,
        engine,
        oracle_of(checkpoint, CONFIG),
        model,
        int(model.config.vocab_size),
    )
    engine.close()
    assert not (directory / "run").exists()  # code that a checkpoint brought


def half_of(checkpoint, directory):
    shutil.copytree(checkpoint, directory)
    for file in directory.glob("*.safetensors"):
        tensors = load_file(file)
        for tensor in tensors.values():
            if tensor.dim() == 2:
                tensor[:, ::2] = 0
        save_file(tensors, file, metadata={"format": "pt"})
    return directory


def prompts(vocabulary, lengths, seed=0):
    draw = random.Random(seed)
    return [engines.random_tokens(draw, length, vocabulary) for length in lengths]


def test_greedy_and_top_equal_oracle(served):
    """Greedy tokens equal transformers and top logprobs the oracle."""
    asked = [
        generation(i, prompt, 24, top_logprobs=10 * (i % 2))
        for i, prompt in enumerate(prompts(served.vocabulary, fewer(range(1, 200, 13))))
    ]
    ours, theirs = ask(served.engine, asked), ask(served.oracle, asked)
    for request in asked:
        a, b = ours[request.request_id], theirs[request.request_id]
        assert a.token_ids == greedy_tokens(served.model, request.prompt_ids, 24)
        assert a.top_ids == b.top_ids
        assert a.logprobs == pytest.approx(b.logprobs, abs=TOLERANCE)
        for row, expected in zip(a.top_logprobs, b.top_logprobs, strict=True):
            assert row == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize(
    "length", fewer([1, 15, 16, 17, BLOCK - 1, BLOCK, BLOCK + 1, 127, 128, 129, 256], 2)
)
def test_scores_equal_oracle_around_blocks(served, length):
    """Scores and ranks equal the oracle around block boundaries."""
    draw = random.Random(length)
    (context,) = prompts(served.vocabulary, [length], seed=length)
    options = [
        engines.random_tokens(draw, n, served.vocabulary) for n in (1, 2, 5, 9, BLOCK)
    ]
    # a beginning of another one, and two that occur twice
    options += [options[3][:4], options[3], options[0]]
    asked = [scoring(i, context, option) for i, option in enumerate(options)]
    cold, warm, theirs = (
        ask(served.engine, asked),
        ask(served.engine, asked),
        ask(served.oracle, asked),
    )
    for request in asked:
        expected = theirs[request.request_id]
        lowest, highest = engines.rank_bounds(served.model, request)
        assert all(
            low <= rank <= high
            for low, rank, high in zip(lowest, expected.ranks, highest, strict=True)
        )
        for answer in (cold[request.request_id], warm[request.request_id]):
            assert answer.token_ids == request.continuation_ids
            assert all(
                low <= rank <= high
                for low, rank, high in zip(lowest, answer.ranks, highest, strict=True)
            )
            assert answer.logprobs == pytest.approx(expected.logprobs, abs=TOLERANCE)
            assert answer.top_ids == expected.top_ids
            assert [row[0] for row in answer.top_logprobs] == pytest.approx(
                [row[0] for row in expected.top_logprobs], abs=TOLERANCE
            )
    if length > BLOCK:
        assert all((warm[r.request_id].cached_tokens or 0) >= BLOCK for r in asked)


@pytest.mark.parametrize("max_tokens", [1, 12 if engines.runs_v2() else 24])
def test_beams_among_scores_equal_transformers(served, max_tokens):
    asked = prompts(served.vocabulary, fewer([5, 31, 32, 33, 64, 90, 120, 150]), seed=2)
    pad = served.model.generation_config.pad_token_id
    scores = [
        scoring(f"s{number}.{n}", prompt, (9, 50, 33)[n:])
        for number, prompt in enumerate(asked)
        for n in range(3)
    ]
    how = {"width": 5, "max_tokens": max_tokens, "pad": pad, "among": scores}
    found = engines.assert_beams_of_transformers(
        served.engine, served.model, asked, **how
    )
    engines.assert_alike(found, ask(served.oracle, scores))


def test_samples_ignore_cut_of_work(served):
    """Samples do not depend on how the work is cut."""
    asked = [
        generation(f"{i}.{n}", prompt, 10, temperature=1.0, top_p=0.9, seed=100 * i + n)
        for i, prompt in enumerate(
            prompts(served.vocabulary, fewer([9, 40, 64, 100], 2), seed=3)
        )
        for n in range(5)
    ]
    whole = ask(served.engine, asked)
    one_by_one = {
        r.request_id: ask(served.engine, [r])[r.request_id] for r in asked[::3]
    }
    noise = [
        generation(f"noise{i}", prompt, 7, top_logprobs=3)
        for i, prompt in enumerate(prompts(served.vocabulary, [20, 50, 80], seed=4))
    ]
    mixed = ask(served.engine, [*noise, *asked[::-1]])
    assert all(whole[r.request_id].logprobs == () for r in asked)
    assert all(mixed[k].token_ids == v.token_ids for k, v in whole.items())
    assert all(whole[k].token_ids == v.token_ids for k, v in one_by_one.items())
    assert len({v.token_ids for v in whole.values()}) > len(asked) // 2


def test_samples_follow_nucleus_distribution(served):
    """Chi-square against transformers' own probabilities; what is rarer than five
    draws counts together."""
    draws = 300
    (prompt,) = prompts(served.vocabulary, [30], seed=8)
    asked = [
        generation(n, prompt, 1, temperature=1.0, top_p=0.9, seed=n)
        for n in range(draws)
    ]
    drawn = Counter(
        answer.token_ids[0] for answer in ask(served.engine, asked).values()
    )
    row = generation("top", prompt, 1, top_logprobs=served.vocabulary)
    (answer,) = ask(served.oracle, [row]).values()
    probabilities = np.exp(answer.top_logprobs[0])
    kept = int((probabilities.cumsum() - probabilities < 0.9).sum())
    nucleus = dict(
        zip(
            answer.top_ids[0][:kept],
            probabilities[:kept] / probabilities[:kept].sum(),
            strict=True,
        )
    )
    assert set(drawn) <= set(nucleus)
    common = [token for token, share in nucleus.items() if share * draws >= 5]
    seen = [
        *(drawn[token] for token in common),
        sum(drawn[token] for token in nucleus if token not in common),
    ]
    expected = [draws * nucleus[token] for token in common]
    expected.append(draws - sum(expected))
    if expected[-1] < 1e-9:  # nothing is rare
        seen, expected = seen[:-1], expected[:-1]
    assert len(seen) > 1
    assert chisquare(seen, expected).pvalue > 1e-3


def test_full_context_is_answered(served):
    (full,) = prompts(served.vocabulary, [396], seed=6)
    asked = [
        generation("full", full, 4),
        scoring("score", full, (9, 10, 11, 12)),
        generation("wide", (9,), 4, top_logprobs=1000),
    ]
    answers = ask(served.engine, asked)
    assert {k: v.status for k, v in answers.items()} == {
        "full": "ok",
        "score": "ok",
        "wide": "engine_error",
    }
    assert answers["full"].token_ids == greedy_tokens(served.model, full, 4)


def test_an_abandoned_stream_leaves_nothing_behind(served):
    asked = [
        generation(i, p, 20) for i, p in enumerate(prompts(served.vocabulary, [20] * 9))
    ]
    stream = served.engine.run(FixedSource(asked))
    next(stream)
    stream.close()
    assert ask(served.engine, asked[:1])["0"].token_ids == greedy_tokens(
        served.model, asked[0].prompt_ids, 20
    )


def test_ten_swaps_equal_oracle(served):
    """Ten swaps in a row leave what the oracle has."""
    contexts = prompts(served.vocabulary, fewer([20, 64, 70], 2), seed=7)
    asked = [
        *(scoring(f"s{i}", p, (9, 50, 33)) for i, p in enumerate(contexts)),
        *(generation(f"g{i}", p, 8) for i, p in enumerate(contexts)),
    ]
    oracle = oracle_of(served.other, CONFIG)
    expected = {
        served.checkpoint: ask(served.oracle, asked),
        served.other: ask(oracle, asked),
    }
    assert any(
        a.logprobs != b.logprobs
        for a, b in zip(*(each.values() for each in expected.values()), strict=True)
    )
    first = {}
    for checkpoint in 5 * (served.other, served.checkpoint):
        report = served.engine.load(checkpoint)
        # and every matrix was compared
        assert (report.swapped, report.notes) == (True, ())
        swapped = ask(served.engine, asked)
        for key, answer in expected[checkpoint].items():
            assert swapped[key].token_ids == answer.token_ids
            assert all(
                abs(a - b) <= 1
                for a, b in zip(swapped[key].ranks, answer.ranks, strict=True)
            )
            assert swapped[key].logprobs == pytest.approx(
                answer.logprobs, abs=TOLERANCE
            )
        for key, answer in first.setdefault(checkpoint, swapped).items():
            assert swapped[key].logprobs == pytest.approx(answer.logprobs, abs=1e-5)


def test_head_only_equals_named_embedding(tmp_path):
    """A tied matrix under the output head's name alone: built, and swapped in place."""
    named = [save_tiny_model(tmp_path / f"named{seed}", seed=seed) for seed in (0, 1)]
    for seed, checkpoint in enumerate(named):
        copy = shutil.copytree(checkpoint, tmp_path / f"head{seed}")
        held = load_file(copy / "model.safetensors")
        held["lm_head.weight"] = held.pop("model.embed_tokens.weight")
        save_file(held, copy / "model.safetensors", metadata={"format": "pt"})
    asked = [scoring("s", (5, 9, 2), (7, 4))]
    found: dict[str, list[Any]] = {}
    for kind in ("named", "head"):
        with contextlib.closing(VLLMEngine(CONFIG)) as engine:
            for seed in (0, 1):
                assert engine.load(tmp_path / f"{kind}{seed}").swapped is bool(seed)
                found.setdefault(kind, []).append(ask(engine, asked)["s"].logprobs)
    assert found["named"] == found["head"]
    assert found["named"][0] != found["named"][1]


def test_bfloat16_models_have_float32_logits(tmp_path):
    """Tokens that bfloat16 would round to one logit keep ranks of their own, also
    after a swap."""
    checkpoints = [
        save_tiny_model(tmp_path / str(seed), "qwen3", seed, dtype="bfloat16")
        for seed in (0, 1)
    ]
    config = CONFIG.model_copy(update={"dtype": "bfloat16"})
    draw = random.Random(4)
    asked = [
        scoring(n, (20 + n,) * 9, draw.sample(range(8, 384), 30)) for n in range(2)
    ]
    with contextlib.closing(VLLMEngine(config)) as engine:
        for checkpoint in (*checkpoints, checkpoints[0]):
            assert engine.load(checkpoint).setup["logits"] == "float32"
            answers, expected = (
                ask(engine, asked),
                ask(oracle_of(checkpoint, CONFIG), asked),
            )
            values = [value for answer in answers.values() for value in answer.logprobs]
            assert len(set(values)) == len(values)
            for name, answer in answers.items():
                assert answer.status == "ok"
                assert answer.logprobs == pytest.approx(
                    expected[name].logprobs, abs=0.25
                )


def test_counters_count(served):
    served.engine.load(served.checkpoint)
    (prompt,) = prompts(served.vocabulary, [70], seed=11)
    ask(served.engine, [scoring("a", prompt, (9, 10))])
    ask(served.engine, [scoring("a", prompt, (9, 10))])
    stats = served.engine.stats()
    assert stats.peak_memory > 100 * 2**20  # torch alone has more resident
    # The last token of a continuation is generated, the others are a part of the
    # prompt.
    assert (stats.requests, stats.generated_tokens) == (2, 2)
    # The cache has all of the context but its last token: two blocks, and a part of the
    # third.
    assert (stats.prompt_tokens, stats.cached_tokens) == (71 + 2, 69)


class Noting(Waiting):
    """Notes the streamed tokens, and cancels one request when it, or any, has so
    many."""

    def __init__(self, requests, cancelled=None, at=0):
        super().__init__(requests)
        self.tokens, self._cancelled, self._at = defaultdict(list), cancelled, at

    def receive(self, name, token):
        self.tokens[name].append(token)
        if (
            self._cancelled is not None
            and len(self.tokens[self._cancelled if self._at else name]) >= self._at
        ):
            self.requests.append(Cancel(request_id=self._cancelled))
            self._cancelled = None


def streams(stream, count=4):
    prompts = [tuple(range(5, 40 + n)) for n in range(count)]
    how = {"max_tokens": 12, "top_logprobs": 3}
    return [
        Generate(
            request_id=str(n), prompt_ids=ids, stream=[] if stream else None, **how
        )
        for n, ids in enumerate(prompts)
    ]


def test_streamed_pieces_equal_whole(served):
    """The pieces of a streamed answer are those of the whole."""
    whole = ask(served.engine, streams(stream=False))
    source = Noting(streams(stream=True))
    for response in served.engine.run(source):
        expected = whole.pop(response.request_id)
        assert (response.token_ids, response.logprobs) == (
            expected.token_ids,
            expected.logprobs,
        )
        # its stream has them
        assert (response.top_ids, response.top_logprobs) == ((), ())
        source.receive_tokens()
        found = source.tokens.pop(response.request_id)
        assert list(map(opened, found)) == list(map(opened, streamed_tokens(expected)))
    assert not whole
    assert not source.tokens


def test_cancelled_request_leaves_others_alone(served):
    """A cancelled request ends and the others are as without it."""
    alone = {
        name: r.token_ids
        for name, r in ask(served.engine, streams(stream=False)).items()
    }
    before = served.engine.stats()
    source = Noting(streams(stream=True), cancelled="2", at=3)
    finals = {
        name: response.token_ids
        for name, response in ask(served.engine, source).items()
    }
    assert finals == {name: ids for name, ids in alone.items() if name != "2"}
    assert len(source.tokens["2"]) == 3
    after = served.engine.stats()
    assert after.requests - before.requests == 4
    assert (
        after.generated_tokens - before.generated_tokens
        == sum(map(len, finals.values())) + 3
    )
    # One that is cancelled before its first step is not counted.
    # the engine computes 16 at once
    source = Noting(streams(stream=True, count=22), cancelled="21")
    before = served.engine.stats()
    assert ask(served.engine, source).keys() == {str(number) for number in range(21)}
    after = served.engine.stats()
    assert after.requests - before.requests == 21
    asked_for = sum(
        len(request.prompt_ids) for request in streams(stream=True, count=21)
    )
    computed = after.prompt_tokens - before.prompt_tokens
    assert computed + after.cached_tokens - before.cached_tokens == asked_for


def test_cancels_alone_end_no_run(served):
    requests = [Cancel(request_id="never asked"), *streams(stream=False, count=1)]
    assert [r.request_id for r in served.engine.run(FixedSource(requests))] == ["0"]
    source = Waiting(
        [
            *(Cancel(request_id=str(n)) for n in range(40)),
            *streams(stream=False, count=2),
        ]
    )
    assert {r.request_id for r in served.engine.run(source)} == {"0", "1"}
