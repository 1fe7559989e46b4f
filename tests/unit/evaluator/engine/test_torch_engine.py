"""The oracle against transformers' own forward pass and generate."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.engine.base import FixedSource, Generate, Score
from evaluator.engine.config import EngineConfig
from evaluator.engine.torch_engine import TorchEngine
from tests.support.models import collapse, save_tiny_model
from tests.support.sweeps import refused
from tests.support.traps import lay_traps

PROMPT = (20, 30, 40, 50, 60)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "one", "qwen3", eos_ids=(0, 7))


@pytest.fixture(scope="module")
def engine(checkpoint):
    engine = TorchEngine(EngineConfig(kind="torch", max_model_len=64))
    engine.load(checkpoint)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def model(checkpoint):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32").eval()


def test_greedy_is_that_of_generate(engine, model):
    answer = engine.answer(Generate(request_id="g", prompt_ids=PROMPT, max_tokens=20))
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=20, do_sample=False)[0, len(PROMPT) :]
    assert list(answer.token_ids) == expected.tolist()
    assert len(answer.logprobs) == len(answer.token_ids)


def test_scores_and_ranks_are_those_of_one_forward_pass(engine, model):
    continuation = (33, 200, 7, 380)
    answer = engine.answer(Score(request_id="s", prompt_ids=PROMPT, continuation_ids=continuation))
    with torch.no_grad():
        rows = model(torch.tensor([PROMPT + continuation])).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    for step, token in enumerate(continuation):
        assert answer.logprobs[step] == pytest.approx(float(rows[step, token]), abs=1e-6)
        assert answer.ranks[step] == 1 + int((rows[step] > rows[step, token]).sum())
        assert answer.top_ids[step] == (int(rows[step].argmax()),)
        assert answer.top_logprobs[step][0] == pytest.approx(float(rows[step].max()), abs=1e-6)


def test_generation_stops_at_any_eos_and_returns_it(engine, tmp_path):
    asked = [Generate(request_id=str(n), prompt_ids=(n, *PROMPT), max_tokens=12) for n in (100, 200)]
    free = [engine.answer(request).token_ids for request in asked]
    ends = (free[0][4], free[1][6])
    stopping = TorchEngine(EngineConfig(kind="torch"))
    stopping.load(save_tiny_model(tmp_path / "stopping", "qwen3", eos_ids=ends))
    for request, ids in zip(asked, free, strict=True):
        length = 1 + min(ids.index(token) for token in ends if token in ids)
        assert length < 12
        assert stopping.answer(request).token_ids == ids[:length]


def test_samples_follow_their_seed_and_stay_in_the_nucleus(engine):
    top = engine.answer(Generate(request_id="t", prompt_ids=PROMPT, max_tokens=1, top_logprobs=384))
    mass, nucleus = 0.0, set()
    for token, logprob in zip(top.top_ids[0], top.top_logprobs[0], strict=True):
        if mass < 0.6:
            nucleus.add(token)
        mass += math.exp(logprob)

    def draw(seed):
        asked = Generate(request_id="x", prompt_ids=PROMPT, max_tokens=1, temperature=1.0, top_p=0.6, seed=seed)
        return engine.answer(asked).token_ids[0]

    drawn = [draw(seed) for seed in range(20)]
    assert set(drawn) <= nucleus
    assert len(set(drawn)) > 1
    assert drawn == [draw(seed) for seed in range(20)]


def test_a_request_that_does_not_fit_fails_alone(engine):
    prompts = {"long": PROMPT * 12, "fits": PROMPT}
    asked = [Generate(request_id=name, prompt_ids=prompt, max_tokens=5) for name, prompt in prompts.items()]
    before = engine.stats()
    assert {r.request_id: r.status for r in engine.run(FixedSource(asked))} == {"long": "engine_error", "fits": "ok"}
    after = engine.stats()
    assert (after.requests - before.requests, after.prompt_tokens - before.prompt_tokens) == (1, 5)


def test_log_probabilities_that_are_not_numbers_are_an_error(tmp_path):
    engine = TorchEngine(EngineConfig(kind="torch", max_model_len=64))
    engine.load(collapse(save_tiny_model(tmp_path / "broken", "qwen3", eos_ids=(0,))))
    greedy = Generate(request_id="greedy", prompt_ids=PROMPT, max_tokens=3)
    for asked in (Score(request_id="score", prompt_ids=PROMPT, continuation_ids=(5, 6)), greedy):
        (answer,) = engine.run(FixedSource([asked]))
        assert (answer.request_id, answer.status, answer.ranks) == (asked.request_id, "engine_error", ())
        assert "NaN" in answer.error


def test_code_that_a_checkpoint_of_a_known_architecture_brings_is_not_run(tmp_path):
    checkpoint, marker = save_tiny_model(tmp_path / "code", "qwen3"), tmp_path / "run"
    lay_traps(checkpoint, marker)
    inspect_checkpoint(checkpoint)
    load_tokenizer(checkpoint)
    TorchEngine(EngineConfig(kind="torch")).load(checkpoint)
    assert not marker.exists()


def lacks_a_tensor(checkpoint):
    tensors = load_file(checkpoint / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})


def has_pickled_weights(checkpoint):
    (checkpoint / "model.safetensors").rename(checkpoint / "weights.safetensors")  # what was inspected
    torch.save({}, checkpoint / "pytorch_model.bin")  # what transformers would take in its place


def has_an_adapter(checkpoint):
    (checkpoint / "adapter_config.json").write_text('{"base_model_name_or_path": "somebody/else"}')


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lacks_a_tensor, "missing keys: model.norm.weight"),
        (has_pickled_weights, "transformers cannot load it"),
        (has_an_adapter, "adapter_config.json: an adapter is not applied"),
    ],
)
def test_a_model_that_is_not_wholly_in_its_safetensors_is_refused(tmp_path, spoil, reason):
    checkpoint = save_tiny_model(tmp_path / "spoilt", "qwen3")
    spoil(checkpoint)
    assert reason in refused(TorchEngine(EngineConfig(kind="torch")).load, checkpoint)
