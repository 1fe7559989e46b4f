"""The oracle against transformers."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.engine.base import FixedSource, Reference
from evaluator.engine.config import EngineConfig
from evaluator.engine.torch_engine import TorchEngine
from tests.support.engines import rounded_rows, rows_of
from tests.support.models import collapse, load_model, save_tiny_model
from tests.support.requests import generation, scoring
from tests.support.sweeps import refused
from tests.support.traps import lay_traps

PROMPT = (20, 30, 40, 50, 60)
CONTINUATION = (33, 200, 7, 380, 12)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return save_tiny_model(folder / "one", "qwen3", eos_ids=(0, 7))


def loaded(checkpoint):
    engine = TorchEngine(EngineConfig(kind="torch", max_model_len=64))
    engine.load(checkpoint)
    return engine


@pytest.fixture(scope="module")
def engine(checkpoint):
    engine = loaded(checkpoint)
    yield engine
    engine.close()


def with_layers_of(checkpoint, layers, folder):
    """A checkpoint with the head of one and the layers of another."""
    weights = load_file(checkpoint / "model.safetensors")
    for name, tensor in load_file(layers / "model.safetensors").items():
        if ".layers." in name:
            weights[name] = tensor
    shutil.copytree(checkpoint, folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_distances_from_states(engine, checkpoint, tmp_path):
    """With the base's head both states are rounded, with another only the base's. So
    close are the distances to those of all logits."""
    reference = Reference(path=str(tmp_path / "kept"), keep=True, base=str(checkpoint))
    asked = scoring("s", PROMPT, CONTINUATION, reference=reference)
    assert engine.answer(asked).status == "ok"
    asked = msgspec.structs.replace(asked, reference=replace(reference, keep=False))
    other = save_tiny_model(tmp_path / "other", "qwen3", 1)
    same_head = with_layers_of(checkpoint, other, tmp_path / "same head")
    for folder, rows in ((same_head, rounded_rows), (other, rows_of)):
        p_TV = rounded_rows(load_model(checkpoint), PROMPT, CONTINUATION).double()
        q_TV = rows(load_model(folder), PROMPT, CONTINUATION).double()
        exact_TV = rows_of(load_model(checkpoint), PROMPT, CONTINUATION).double()
        own_TV = rows_of(load_model(folder), PROMPT, CONTINUATION).double()
        found = [each.kld for each in loaded(folder).answer(asked).divergences]
        expected = (p_TV.exp() * (p_TV - q_TV)).sum(1).tolist()
        exact = (exact_TV.exp() * (exact_TV - own_TV)).sum(1).tolist()
        assert found == pytest.approx(expected, rel=1e-4)
        assert found == pytest.approx(exact, rel=0.02)


def test_states_without_their_head(engine, checkpoint, tmp_path):
    base = Path(shutil.copytree(checkpoint, tmp_path / "base"))
    path = tmp_path / "kept"
    reference = Reference(path=str(path), keep=True, base=str(base))
    asked = scoring("s", PROMPT, CONTINUATION, reference=reference)
    engine.answer(asked)
    asked = msgspec.structs.replace(asked, reference=replace(reference, keep=False))
    assert engine.answer(asked).status == "ok"
    kept = path.read_bytes()
    path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    assert "damaged, or of an older version" in engine.answer(asked).error
    path.write_bytes(kept)
    save_tiny_model(base, "qwen3", 1)
    assert f"{base} has another one" in engine.answer(asked).error
    shutil.rmtree(base)
    assert f"{base}: the base's head is not there" in engine.answer(asked).error


def test_generation_stops_at_any_eos(engine, tmp_path):
    asked = [generation(n, (n, *PROMPT), 12) for n in (100, 200)]
    free = [engine.answer(request).token_ids for request in asked]
    ends = (free[0][4], free[1][6])
    stopping = loaded(save_tiny_model(tmp_path / "stopping", "qwen3", eos_ids=ends))
    for request, ids in zip(asked, free, strict=True):
        length = 1 + min(ids.index(token) for token in ends if token in ids)
        assert length < 12
        assert stopping.answer(request).token_ids == ids[:length]


def test_samples_follow_seed_within_nucleus(engine):
    top = engine.answer(generation("t", PROMPT, 1, top_logprobs=384))
    mass, nucleus = 0.0, set()
    for token, logprob in zip(top.top_ids[0], top.top_logprobs[0], strict=True):
        if mass < 0.6:
            nucleus.add(token)
        mass += math.exp(logprob)

    def draw(seed):
        asked = generation("x", PROMPT, 1, temperature=1.0, top_p=0.6, seed=seed)
        return engine.answer(asked).token_ids[0]

    drawn = [draw(seed) for seed in range(20)]
    assert set(drawn) <= nucleus
    assert len(set(drawn)) > 1
    assert drawn == [draw(seed) for seed in range(20)]


def test_nan_is_an_error(tmp_path):
    engine = loaded(collapse(save_tiny_model(tmp_path / "broken", "qwen3")))
    asked = [scoring("score", PROMPT, (5, 6)), generation("greedy", PROMPT, 3)]
    for answer in engine.run(FixedSource(asked)):
        assert (answer.status, answer.ranks) == ("engine_error", ())
        assert "NaN" in answer.error


def test_checkpoint_code_is_not_run(tmp_path):
    checkpoint, marker = save_tiny_model(tmp_path / "code", "qwen3"), tmp_path / "run"
    lay_traps(checkpoint, marker)
    inspect_checkpoint(checkpoint)
    load_tokenizer(checkpoint)
    loaded(checkpoint)
    assert not marker.exists()


def lacks_a_tensor(checkpoint):
    tensors = load_file(checkpoint / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})


def has_pickled_weights(checkpoint):
    # what was inspected
    (checkpoint / "model.safetensors").rename(checkpoint / "weights.safetensors")
    # what transformers would take in its place
    torch.save({}, checkpoint / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lacks_a_tensor, "missing keys: model.norm.weight"),
        (has_pickled_weights, "transformers cannot load it"),
    ],
)
def test_incomplete_safetensors_are_refused(tmp_path, spoil, reason):
    checkpoint = save_tiny_model(tmp_path / "spoilt", "qwen3")
    spoil(checkpoint)
    assert reason in refused(loaded, checkpoint)
