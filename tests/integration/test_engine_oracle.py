"""VLLMEngine against transformers' own forward passes, in float32, on either model
runner: each feature on each kind of model, with one engine."""

import random
import shutil
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import chisquare

from evaluator.engine.base import Cancel, FixedSource, Reference
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from launch.sweep.models import BUNDLED_MODEL
from tests.support import engines
from tests.support.engines import (
    TOLERANCE,
    Waiting,
    answers,
    assert_all_right,
    both_runners,
    fewer,
    opened,
    rounded_rows,
    rows_of,
    runs_v2,
)
from tests.support.fake import streamed_tokens
from tests.support.models import load_model, save_tiny_model
from tests.support.requests import generation, scoring
from tests.support.traps import lay_traps

pytestmark = both_runners

CONFIG = EngineConfig(max_model_len=400, max_num_seqs=16)
BLOCK = 32
# of a distance, whose states round to the other neighbour in one of the programs
ROUNDED = 1e-3
MODELS: list[Any] = [
    pytest.param("qwen3", marks=pytest.mark.more),
    "qwen3_untied",
    pytest.param("window", marks=pytest.mark.more),
    pytest.param("phi3", marks=pytest.mark.more),
    pytest.param("bundled", marks=pytest.mark.more),
]


@dataclass
class Served:
    checkpoint: Path
    other: Path
    engine: VLLMEngine
    model: Any
    other_model: Any
    one_step: bool

    def tokens(self, draw, count):
        return engines.random_tokens(draw, count, int(self.model.config.vocab_size))

    def prompts(self, lengths, seed=0):
        draw = random.Random(seed)
        return [self.tokens(draw, length) for length in lengths]


@pytest.fixture(scope="module", params=fewer(MODELS, 2))
def served(request, tmp_path_factory):
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    if name == "bundled":
        pair = BUNDLED_MODEL, half_of(BUNDLED_MODEL, folder / "other")
    else:
        kind, changes = name, {}
        if name == "window":
            kind, changes = "mistral", {"sliding_window": 64}
        pair = tuple(
            save_tiny_model(folder / str(seed), kind, seed, eos_ids=(0, 7), **changes)
            for seed in (0, 1)
        )
    if name == "qwen3_untied":  # whose answers tell which weights were read
        for checkpoint in pair:
            lay_traps(checkpoint, folder / "run")
    models = map(load_model, pair)
    with engines.serving(pair[0], CONFIG) as engine:
        one_step = engine._started.dialect.one_step
        # a window's cached blocks end where the hit does, and cannot be cut short
        assert one_step == (name != "window")
        yield Served(*pair, engine, *models, one_step)
    assert not (folder / "run").exists()  # code that a checkpoint brought


def half_of(checkpoint, directory):
    shutil.copytree(checkpoint, directory)
    for file in directory.glob("*.safetensors"):
        file.chmod(0o644)
        tensors = load_file(file)
        for tensor in tensors.values():
            if tensor.dim() == 2:
                tensor[:, ::2] = 0
        save_file(tensors, file, metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize(
    "length", fewer([1, 15, 17, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 90, 128, 256])
)
def test_scores_equal_transformers_around_blocks(served, length):
    """Also where the cache holds more than the context: continuations that begin
    alike fill blocks."""
    draw = random.Random(length)
    context, beginning = served.tokens(draw, length), served.tokens(draw, 2 * BLOCK)
    options = [served.tokens(draw, count) for count in (1, 2, 5, 9, BLOCK)]
    # beginnings of another one, and two that occur twice
    options += [options[3][:4], options[3], options[0], beginning, beginning[:-1]]
    options += [beginning[: 2 * BLOCK - n] + served.tokens(draw, 9) for n in range(3)]
    asked = [scoring(n, context, option) for n, option in enumerate(options)]
    assert_all_right(served.engine, served.model, asked)
    warm = assert_all_right(served.engine, served.model, asked)
    if length > BLOCK:
        assert min(answer.cached_tokens or 0 for answer in warm.values()) >= BLOCK
    longer = scoring("longer", context + beginning, (9, 10))
    assert_all_right(served.engine, served.model, [longer])


def test_more_rows_than_head_takes(served):
    """More than 128 of them go through it at once, from several requests."""
    asked = [
        scoring(number, prompt[:3], prompt[3:])
        for number, prompt in enumerate(served.prompts([290] * 5, seed=1))
    ]
    assert_all_right(served.engine, served.model, asked)


def test_greedy_and_top_equal_transformers(served):
    asked = [
        generation(number, prompt, 24, top_logprobs=10 * (number % 2))
        for number, prompt in enumerate(served.prompts(fewer(range(1, 200, 13))))
    ]
    assert_all_right(served.engine, served.model, asked)


@pytest.mark.parametrize("max_tokens", [1, 12 if runs_v2() else 24])
def test_beams_among_scores_equal_transformers(served, max_tokens):
    prompts = served.prompts(fewer([5, 31, 32, 33, 64, 90, 120, 150]), seed=2)
    scores = [
        scoring(f"s{number}.{n}", prompt, (9, 50, 33)[n:])
        for number, prompt in enumerate(prompts)
        for n in range(3)
    ]
    found = engines.assert_beams_of_transformers(
        served.engine,
        served.model,
        prompts,
        width=5,
        max_tokens=max_tokens,
        pad=served.model.generation_config.pad_token_id,
        among=scores,
    )
    for request in scores:
        engines.assert_right(served.model, request, found[request.request_id])


def test_samples_ignore_cut_of_work(served):
    asked = [
        generation(f"{n}.{s}", prompt, 10, temperature=1.0, top_p=0.9, seed=9 * n + s)
        for n, prompt in enumerate(served.prompts(fewer([9, 40, 64, 100], 2), seed=3))
        for s in range(5)
    ]
    whole = answers(served.engine, asked)
    noise = [
        generation(f"noise{length}", prompt, 7, top_logprobs=3)
        for length, (prompt,) in ((n, served.prompts([n])) for n in (20, 50, 80))
    ]
    mixed = answers(served.engine, [*noise, *asked[::-1]])
    for number, request in enumerate(asked):
        name = request.request_id
        assert whole[name].logprobs == ()
        assert mixed[name].token_ids == whole[name].token_ids
        if number % 3 == 0:
            alone = answers(served.engine, [request])[name]
            assert alone.token_ids == whole[name].token_ids
    assert len({answer.token_ids for answer in whole.values()}) > len(asked) // 2


def test_samples_follow_nucleus_distribution(served):
    """Chi-square against transformers' own probabilities; what is rarer than five
    draws counts together."""
    draws = 300
    (prompt,) = served.prompts([30], seed=8)
    asked = [
        generation(n, prompt, 1, temperature=1.0, top_p=0.9, seed=n)
        for n in range(draws)
    ]
    found = answers(served.engine, asked).values()
    drawn = Counter(answer.token_ids[0] for answer in found)
    ordered = rows_of(served.model, prompt, (0,))[0].exp().sort(descending=True)
    probabilities = ordered.values.double().numpy()
    kept = int((probabilities.cumsum() - probabilities < 0.9).sum())
    shares = probabilities[:kept] / probabilities[:kept].sum()
    nucleus = dict(zip(ordered.indices[:kept].tolist(), shares, strict=True))
    assert set(drawn) <= set(nucleus)
    common = [token for token, share in nucleus.items() if share * draws >= 5]
    seen = [drawn[token] for token in common]
    expected = [draws * nucleus[token] for token in common]
    if len(common) < len(nucleus):
        seen.append(draws - sum(seen))
        expected.append(draws - sum(expected))
    assert len(seen) > 1
    assert chisquare(seen, expected).pvalue > 1e-3


def test_full_context_is_answered(served):
    (full,) = served.prompts([396], seed=6)
    fitting = [generation("full", full, 4), scoring("score", full, (9, 10, 11, 12))]
    wide = generation("wide", (9,), 4, top_logprobs=1000)
    found = answers(served.engine, [*fitting, wide])
    assert found["wide"].status == "engine_error"
    for request in fitting:
        engines.assert_right(served.model, request, found[request.request_id])


def divergences(served, asked):
    """Of the other checkpoint from the first, by their definitions."""
    for request in asked:
        ids = request.prompt_ids, request.continuation_ids
        own_TV = rows_of(served.model, *ids)
        p_TV = rounded_rows(served.model, *ids).double()
        q_TV = rows_of(served.other_model, *ids).double()  # of another head
        p, q = p_TV.exp(), q_TV.exp()
        own_T = own_TV[range(len(ids[1])), list(ids[1])]
        yield (
            request,
            zip(
                (p * (p_TV - q_TV)).sum(1).tolist(),
                (q * (q_TV - p_TV)).sum(1).tolist(),
                torch.minimum(p, q).sum(1).tolist(),
                own_T.tolist(),
                p.amax(1).tolist(),
                strict=True,
            ),
        )


def test_references_of_swapped_checkpoint(served, tmp_path):
    """A base against itself, and another checkpoint against it: with all tokens, and
    bounds with the likeliest."""
    draw = random.Random(1)
    base, shared = str(served.checkpoint), served.tokens(draw, 70)
    passages = [(served.tokens(draw, 40), served.tokens(draw, n)) for n in (1, 33, 64)]
    passages += [(shared, served.tokens(draw, n)) for n in (1, 5, 64)]

    def requests(top, *, keep):
        for number, (prompt, continuation) in enumerate(passages):
            path = str(tmp_path / f"{number}-{top}")
            yield scoring(
                f"{number}-{top}",
                prompt,
                continuation,
                reference=Reference(path=path, keep=keep, top=top, base=base),
            )

    others = [generation(f"g{n}", ids, 6) for n, (ids, _) in enumerate(passages)]
    others += [scoring(f"s{n}", *passage) for n, passage in enumerate(passages)]
    served.engine.load(served.checkpoint)
    for top in (0, 5):
        kept = [*requests(top, keep=True), *others]
        found = assert_all_right(served.engine, served.model, kept)
        assert all(answer.divergences == () for answer in found.values())
        same = [*requests(top, keep=False), *others]
        for answer in assert_all_right(served.engine, served.model, same).values():
            assert all(each.kld < 1e-6 for each in answer.divergences)
    report = served.engine.load(served.other)
    assert report.swapped
    asked = [*requests(0, keep=False), *requests(5, keep=False)]
    found = assert_all_right(served.engine, served.other_model, asked + others)
    for request, expected in divergences(served, asked):
        answer = found[request.request_id]
        for each, (kld, reverse, overlap, own, top) in zip(
            answer.divergences, expected, strict=True
        ):
            if request.reference.top:
                assert each.kld <= kld + TOLERANCE
                assert each.acceptance >= overlap - TOLERANCE
            else:
                assert (each.kld, each.kld_reverse, each.acceptance) == pytest.approx(
                    (kld, reverse, overlap), rel=ROUNDED, abs=2 * TOLERANCE
                )
            assert (each.reference_logprob, each.reference_top) == pytest.approx(
                (own, top), abs=2 * TOLERANCE
            )
    served.engine.load(served.checkpoint)


def test_ten_swaps_equal_transformers(served):
    contexts = served.prompts(fewer([20, 64, 70], 2), seed=7)
    asked = [scoring(f"s{n}", ids, (9, 50, 33)) for n, ids in enumerate(contexts)]
    asked += [generation(f"g{n}", ids, 8) for n, ids in enumerate(contexts)]
    for _ in range(5):
        for checkpoint, model in (
            (served.other, served.other_model),
            (served.checkpoint, served.model),
        ):
            report = served.engine.load(checkpoint)
            # and every matrix was compared
            assert (report.swapped, report.notes) == (True, ())
            assert_all_right(served.engine, model, asked)


def test_counters_count(served):
    """The last token of a continuation is generated, the others are a part of the
    prompt. The cache has all of the context but its last token: two blocks, and a part
    of the third."""
    if not served.one_step:
        pytest.skip("its cache cannot be cut")
    served.engine.load(served.checkpoint)
    (prompt,) = served.prompts([70], seed=11)
    for _ in range(2):
        answers(served.engine, [scoring("a", prompt, (9, 10))])
    stats = served.engine.stats()
    assert stats.peak_memory > 100 * 2**20  # torch alone has more resident
    assert (stats.requests, stats.generated_tokens) == (2, 2)
    assert (stats.prompt_tokens, stats.cached_tokens) == (71 + 2, 69)
    whole = answers(served.engine, [generation("g", prompt, 12)])["g"]
    before = served.engine.stats()
    branch = generation("b", (*prompt, *whole.token_ids[:6], 9), 3)
    assert_all_right(served.engine, served.model, [branch])
    assert served.engine.stats().since(before).prompt_tokens == 1


@pytest.mark.parametrize("length", [5, BLOCK - 1, BLOCK, BLOCK + 1, 90])
def test_shared_prompt_is_computed_once(served, length):
    """And then its last token only."""
    if not served.one_step or runs_v2():
        pytest.skip("it shares no parts of blocks, or as they come")
    served.engine.load(served.checkpoint)
    (prompt,) = served.prompts([length], seed=12)
    asked = [generation(n, prompt, 4, temperature=1.0, seed=n) for n in range(6)]
    assert len(answers(served.engine, asked)) == 6
    # the tokens before the last one that no whole block holds
    partial = (length - 1) % BLOCK
    again = 0 if partial >= 8 else partial  # too few to wait a step for
    assert served.engine.stats().prompt_tokens == length + 5 * (1 + again)


class Noting(Waiting):
    """Notes the streamed tokens, and cancels one request when it, or any, has so
    many."""

    def __init__(self, requests, cancelled=None, at=0):
        super().__init__(requests)
        self.tokens, self._cancelled, self._at = defaultdict(list), cancelled, at

    def receive(self, name, token):
        self.tokens[name].append(token)
        watched = self._cancelled if self._at else name
        if self._cancelled and len(self.tokens[watched]) >= self._at:
            self.requests.append(Cancel(request_id=self._cancelled))
            self._cancelled = None


def streams(stream, count=4):
    return [
        generation(
            number,
            range(8, 40 + number),
            12,
            top_logprobs=3,
            stream=[] if stream else None,
        )
        for number in range(count)
    ]


def test_streamed_pieces_equal_whole(served):
    whole = assert_all_right(served.engine, served.model, streams(stream=False))
    source = Noting(streams(stream=True))
    for response in served.engine.run(source):
        expected = whole.pop(response.request_id)
        assert response.token_ids == expected.token_ids
        assert response.logprobs == expected.logprobs
        # its stream has them
        assert (response.top_ids, response.top_logprobs) == ((), ())
        source.receive_tokens()
        found = source.tokens.pop(response.request_id)
        assert list(map(opened, found)) == list(map(opened, streamed_tokens(expected)))
    assert not whole
    assert not source.tokens


def test_cancelled_request_leaves_others_alone(served):
    alone = answers(served.engine, streams(stream=False))
    before = served.engine.stats()
    source = Noting(streams(stream=True), cancelled="2", at=3)
    finals = answers(served.engine, source)
    tokens = {name: answer.token_ids for name, answer in finals.items()}
    assert tokens == {name: alone[name].token_ids for name in ("0", "1", "3")}
    assert len(source.tokens["2"]) == 3
    counted = served.engine.stats().since(before)
    assert counted.requests == 4
    assert counted.generated_tokens == sum(map(len, tokens.values())) + 3


def test_cancel_before_first_step_is_not_counted(served):
    """The engine computes 16 at once."""
    before = served.engine.stats()
    source = Noting(streams(stream=True, count=22), cancelled="21")
    finals = answers(served.engine, source)
    assert finals.keys() == {str(number) for number in range(21)}
    counted = served.engine.stats().since(before)
    assert counted.requests == 21
    asked = sum(len(request.prompt_ids) for request in streams(stream=True, count=21))
    assert counted.prompt_tokens + counted.cached_tokens == asked


def test_cancels_alone_end_no_run(served):
    cancels = [Cancel(request_id=f"never asked {n}") for n in range(40)]
    source = Waiting([*cancels, *streams(stream=False, count=2)])
    assert answers(served.engine, source).keys() == {"0", "1"}


def test_abandoned_stream_leaves_nothing(served):
    asked = [generation(n, p, 20) for n, p in enumerate(served.prompts([20] * 9))]
    stream = served.engine.run(FixedSource(asked))
    next(stream)
    stream.close()
    assert_all_right(served.engine, served.model, asked[:1])
