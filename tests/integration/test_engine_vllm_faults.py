"""VLLMEngine and checkpoints that it must not serve, ties, and steps that fail."""

import pytest
from safetensors.torch import load_file, save_file

from evaluator.core.errors import EngineError, InputError
from evaluator.engine.base import FixedSource
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support.engines import answers, needs_vllm, oracle_of
from tests.support.models import save_tiny_model
from tests.support.requests import generation, scoring

pytestmark = needs_vllm

CONFIG = EngineConfig(max_model_len=128, max_num_seqs=8)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("one") / "model", "qwen3_untied")


@pytest.fixture(scope="module")
def running(checkpoint):
    engine = VLLMEngine(CONFIG)
    engine.load(checkpoint)
    yield engine
    engine.close()


@pytest.fixture
def engine(running, checkpoint):
    running.load(checkpoint)
    return running


def test_ranks_of_ties_are_strict(engine, tmp_path):
    """Ranks of exact ties are those of the strictly better."""
    tied = save_tiny_model(tmp_path / "tied", "qwen3_untied", 3)
    tensors = load_file(tied / "model.safetensors")
    tensors["lm_head.weight"][100:200] = tensors["lm_head.weight"][50]
    save_file(tensors, tied / "model.safetensors", metadata={"format": "pt"})
    engine.load(tied)
    asked = [scoring(token, (20, 21, 22), (token,)) for token in range(40, 220, 5)]
    ours = {name: answer.ranks for name, answer in answers(engine, asked).items()}
    theirs = {
        name: answer.ranks
        for name, answer in answers(oracle_of(tied, CONFIG), asked).items()
    }
    assert ours == theirs
    assert len({ours[str(token)] for token in range(100, 200, 5)}) == 1
    listed = generation("g", (20, 21, 22), 1, top_logprobs=60)
    (answer,) = engine.run(FixedSource([listed]))
    pairs = list(zip(answer.top_logprobs[0], answer.top_ids[0], strict=True))
    assert pairs == sorted(pairs, key=lambda pair: (-pair[0], pair[1]))


def test_other_architecture_is_refused(engine, tmp_path):
    """Another architecture is refused and the engine goes on."""
    other = save_tiny_model(tmp_path / "mistral", "mistral")
    with pytest.raises(
        InputError,
        match=r"cannot be swapped into an engine built for .*: config.json: ",
    ):
        engine.load(other)
    (answer,) = engine.run(FixedSource([generation("g", (20, 21), 3)]))
    assert answer.status == "ok"


def test_missing_weights_are_noticed(engine, checkpoint, tmp_path, monkeypatch):
    from evaluator.engine.vllm import worker as worker_module

    other = save_tiny_model(tmp_path / "other", "qwen3_untied", 5)
    old = list(load_file(checkpoint / "model.safetensors").items())
    monkeypatch.setattr(worker_module, "_read", lambda files: old)
    with pytest.raises(
        EngineError,
        match=r"after loading, model.* in the engine is not that of the files",
    ):
        engine.load(other)
    with pytest.raises(
        EngineError, match="before a checkpoint was loaded, or after it failed"
    ):
        list(engine.run(FixedSource([])))
    monkeypatch.undo()
    assert not engine.load(checkpoint).swapped


def test_failing_step_ends_engine(engine, checkpoint, monkeypatch):
    """A step that fails ends the engine with one line."""

    def broken():
        raise RuntimeError("the device is gone\nwith details")

    monkeypatch.setattr(engine._started.llm.engine_core, "get_output", broken)
    with pytest.raises(
        EngineError, match=r"vLLM died in a step: RuntimeError: the device is gone$"
    ):
        list(engine.run(FixedSource([generation("g", (20,), 3)])))
    monkeypatch.undo()
    assert not engine.load(checkpoint).swapped
    (answer,) = engine.run(FixedSource([generation("g", (20,), 3)]))
    assert answer.status == "ok"
