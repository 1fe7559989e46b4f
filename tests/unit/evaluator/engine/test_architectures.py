"""The torch engine with each causal architecture of transformers, against full
forward passes."""

import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.engine.base import Reference
from evaluator.engine.config import EngineConfig, check_served
from evaluator.engine.torch_engine import TorchEngine
from tests.support.architectures import VOCABULARY, causal_kinds, tiny_model
from tests.support.models import byte_level_tokenizer
from tests.support.requests import generation, scoring
from tests.support.sweeps import refused

PROMPT = tuple(
    torch.randint(
        3, VOCABULARY, (21,), generator=torch.Generator().manual_seed(5)
    ).tolist()
)
CONTINUATION = (33, 200, 7, 380, 41)
TOLERANCE = 1e-4  # nats
# Chunked sums of float32, or one layer again and again: a pass and its parts differ by
# rounding, multiplied.
ROUGH = {"hrm_text": 5e-3}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_level_tokenizer(
        ["a text"], vocabulary=300, eos="<e>", pad="<p>"
    ).save_pretrained(folder)
    return folder


def saved(model, folder, tokenizer_files):
    model.save_pretrained(folder)
    for file in tokenizer_files.iterdir():
        shutil.copy(file, folder)
    return folder


def loaded(folder, **settings):
    engine = TorchEngine(EngineConfig(kind="torch", max_model_len=128, **settings))
    engine.load(folder)
    return engine


def full(model, ids):
    """The log-probabilities [T, V] of one pass."""
    with torch.inference_mode():
        return model(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)


def is_causal(model):
    """Whether a pass gives the same numbers again, and also without its last tokens."""
    rows = full(model, PROMPT)
    shorter = max(
        float((full(model, PROMPT[:count]) - rows[:count]).abs().max())
        for count in (4, 20)
    )
    return shorter < 1e-2 and torch.equal(rows, full(model, PROMPT))


def assert_no_distance(engine, folder):
    """From itself, whether it keeps states or logits."""
    kept = Reference(path=str(folder / "kept"), keep=True, base=str(folder))
    engine.answer(scoring("k", PROMPT, CONTINUATION, reference=kept))
    compare = replace(kept, keep=False)
    answer = engine.answer(scoring("c", PROMPT, CONTINUATION, reference=compare))
    for each in answer.divergences:
        assert each[:5] == (0, 0, pytest.approx(1), True, 1)
    return set(load_file(kept.path)) - {"own"}


def check(engine, model, folder, tolerance=TOLERANCE):
    score = engine.answer(scoring("s", PROMPT, CONTINUATION))
    assert score.status == "ok", score.error
    rows = full(model, PROMPT + CONTINUATION)[len(PROMPT) - 1 : -1]
    chosen = rows.gather(1, torch.tensor([CONTINUATION]).T)
    assert score.logprobs == pytest.approx(chosen[:, 0].tolist(), abs=tolerance)
    assert list(score.ranks) == (1 + (rows > chosen).sum(-1)).tolist()
    assert score.top_ids == tuple((token,) for token in rows.argmax(-1).tolist())
    answer = engine.answer(generation("g", PROMPT, 8, top_logprobs=3))
    ids = list(PROMPT)
    for token, logprob, top in zip(
        answer.token_ids, answer.logprobs, answer.top_ids, strict=True
    ):
        row = full(model, ids)[-1]
        assert (token, list(top)) == (int(row.argmax()), row.topk(3).indices.tolist())
        assert logprob == pytest.approx(float(row[token]), abs=tolerance)
        ids.append(token)
    assert_no_distance(engine, folder)
    # As a beam's next steps ask: the text so far is the prompt.
    for known in (1, len(answer.token_ids) // 2):
        if answer.token_ids[known - 1] == 0:  # the end
            continue
        step = generation("b", (*PROMPT, *answer.token_ids[:known]), 8 - known)
        assert engine.answer(step).token_ids == answer.token_ids[known:]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.more if number % 4 else ())
        for number, kind in enumerate(causal_kinds())
    ],
)
def test_each_architecture_is_right_or_refused(kind, tmp_path, tokenizer_files):
    """Refused if and only if its full passes contradict each other."""
    model = tiny_model(kind)
    folder = saved(model, tmp_path / kind, tokenizer_files)
    if kind in ("emu3", "mllama"):  # the text model alone cannot be loaded again
        assert (
            f"architecture '{kind}_text_model': transformers has no causal language"
            in refused(loaded, folder)
        )
        return
    if not is_causal(model):
        message = refused(loaded, folder)
        assert f"checkpoint {folder}: {type(model).__name__}" in message
        assert "draws at random, or lets a token see those after it" in message
        return
    check(loaded(folder), model, folder, ROUGH.get(kind, TOLERANCE))


def served(folder, kv_cache="auto"):
    info = inspect_checkpoint(folder, "m").with_cache("m", kv_cache)
    return check_served(EngineConfig(kind="torch"), info, here=True)


def test_preflight_loads_each_architecture(tmp_path, tokenizer_files):
    """A note where the cache of keys and values cannot hold all; a refusal before
    the first engine starts."""
    folder = saved(tiny_model("lfm2"), tmp_path / "lfm2", tokenizer_files)
    assert served(folder) == (
        "m: engine torch computes each token from the whole text, without a cache",
    )
    assert "kv_cache 'fp8' cannot round it; use auto" in refused(served, folder, "fp8")
    folder = saved(tiny_model("bert"), tmp_path / "bert", tokenizer_files)
    assert "BertLMHeadModel draws at random, or lets a token see" in refused(
        served, folder
    )
    folder = saved(
        tiny_model("bert", is_decoder=True), tmp_path / "decoder", tokenizer_files
    )
    check(loaded(folder), tiny_model("bert", is_decoder=True), folder)
    folder = saved(tiny_model("llama"), tmp_path / "llama", tokenizer_files)
    assert served(folder) == served(folder, "fp8") == ()


def test_longrope_turns_within_an_answer(tmp_path, tokenizer_files):
    """Beyond the original length every token is rotated in another way, also those
    that a cache would hold."""
    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 25,
        "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
    }  # fmt: skip
    model = tiny_model(
        "phi3", rope_parameters=rope, original_max_position_embeddings=25
    )
    engine = loaded(saved(model, tmp_path / "phi3", tokenizer_files))
    assert not engine.cached
    answer = engine.answer(generation("g", PROMPT, 8))
    score = engine.answer(scoring("s", PROMPT, answer.token_ids))
    ids = list(PROMPT)
    for token, written, scored in zip(
        answer.token_ids, answer.logprobs, score.logprobs, strict=True
    ):
        row = full(model, ids)[-1]
        assert token == int(row.argmax())
        assert (written, scored) == pytest.approx(
            (float(row[token]),) * 2, abs=TOLERANCE
        )
        ids.append(token)
