"""vLLM serves pruned checkpoints of what else is pruned as transformers computes them: experts, and other decoders."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from evaluator.engine.base import FixedSource, Generate, Request, Response, Score
from evaluator.engine.config import EngineConfig
from evaluator.engine.torch_engine import TorchEngine
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.engine.vllm.start import on_workers
from pruning.config import CalibrationConfig, PruneConfig
from pruning.run import prune
from tests.support import pruning as tiny
from tests.support.engines import both_runners

pytestmark = both_runners
long = pytest.mark.long

CONFIG = EngineConfig(max_model_len=200, max_num_seqs=16)
TOLERANCE = 1e-4  # nats
DECORATE = "_decorate_cls_for_torch_compile"
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}  # of a size that vLLM's kernels have
CHANGES: dict[str, dict[str, object]] = {"gemma4_text": {"global_head_dim": 64}, "olmoe": {"clip_qkv": None}}
# Of what is pruned: qwen3 is served in test_engine_vllm; vLLM's code of qwen3_5_text needs torchvision; gemma2 differs.
SWAPPED = ("llama", "qwen2", "mistral", "phi3", "gemma3_text", "olmo2", "olmo3", "smollm3", "granite", "glm", "glm4")


@pytest.fixture(autouse=True)
def transformers_as_it_was(monkeypatch):
    """vLLM makes classes of transformers its own that it has no code for; the tests after these need them."""
    from vllm.model_executor.models.transformers import base

    decorate, kept = getattr(base.Base, DECORATE, None), {}

    def remembering(self, cls, *arguments, **named):
        kept.setdefault(cls, (cls.__bases__, dict(vars(cls))))
        decorate(self, cls, *arguments, **named)

    if decorate is not None:
        monkeypatch.setattr(base.Base, DECORATE, remembering)
    yield
    for cls, (bases, own) in kept.items():
        cls.__bases__ = bases
        for name in vars(cls).keys() - own.keys():
            delattr(cls, name)
        for name, value in own.items():
            if vars(cls)[name] is not value:
                setattr(cls, name, value)


def build(name: str, folder: Path) -> tuple[Path, Path]:
    """A random checkpoint and the same pruned by half."""
    import torch

    dense, pruned, passages = folder / "dense", folder / "pruned", folder / "passages.txt"
    tiny.build(name, dense, torch.float32, **HEADS, **CHANGES.get(name, {}))
    passages.write_text("\n".join(tiny.lines(12)) + "\n", encoding="utf-8")
    calibration = CalibrationConfig(source=f"text:{passages}", samples=12, sequence_length=32)
    prune(PruneConfig(source=dense, method="wanda", sparsity=0.5, calibration=calibration, device="cpu"), pruned)
    return dense, pruned


def questions() -> list[Request]:
    draw = random.Random(0)
    asked: list[Request] = []
    for number, length in enumerate((1, 5, 17, 33, 64, 90)):
        prompt, *options = (tuple(draw.randrange(8, tiny.VOCABULARY) for _ in range(n)) for n in (length, 1, 2, 4))
        asked.append(Generate(request_id=f"greedy {number}", prompt_ids=prompt, max_tokens=12))
        asked += [Score(request_id=f"{number} {o}", prompt_ids=prompt, continuation_ids=o) for o in options]
    return asked


def answers(engine: VLLMEngine | TorchEngine) -> dict[str, Response]:
    return {response.request_id: response for response in engine.run(FixedSource(questions()))}


def by_transformers(checkpoint: Path) -> dict[str, Response]:
    """Asked before vLLM starts: it makes classes of transformers its own that it has no code for."""
    oracle = TorchEngine(CONFIG)
    oracle.load(checkpoint)
    return answers(oracle)


def assert_served(engine: VLLMEngine, expected: dict[str, Response]) -> None:
    """Greedy answers and the log-probabilities of candidates are transformers' own."""
    ours = answers(engine)
    assert ours.keys() == expected.keys()
    for name, theirs in expected.items():
        assert ours[name].status == "ok", ours[name]
        assert ours[name].token_ids == theirs.token_ids, name
        assert ours[name].logprobs == pytest.approx(theirs.logprobs, abs=TOLERANCE), name


def test_a_pruned_mixture_is_served_and_is_not_what_a_swap_would_leave(tmp_path):
    dense, pruned = build("qwen3_moe", tmp_path)
    expected = by_transformers(pruned)
    engine = VLLMEngine(CONFIG)
    assert engine.load(pruned).notes == ()  # every matrix was compared
    assert_served(engine, expected)
    started, experts = engine._started, [f"the experts of model.layers.{n}.mlp.experts.routed_experts" for n in (0, 2)]
    assert started is not None

    def differing(checkpoint: Path) -> list[str]:
        ((_, found, passed_over),) = on_workers(started.llm, "compare_weights", [str(checkpoint / "model.safetensors")])
        assert passed_over == []
        return [name for name in found if "experts" in name]

    assert differing(pruned) == []
    assert differing(dense) == experts
    # Why `load` builds another engine for it: vLLM does not pack experts again.
    engine._swap(started, dense, [str(dense / "model.safetensors")])
    assert differing(dense) == experts
    engine.close()


@long
@pytest.mark.parametrize("name", ["mixtral", "olmoe"])
def test_other_mixtures_are_served(name, tmp_path):
    _, pruned = build(name, tmp_path)
    expected = by_transformers(pruned)
    engine = VLLMEngine(CONFIG)
    assert engine.load(pruned).notes == ()
    assert_served(engine, expected)
    engine.close()


@long
@pytest.mark.parametrize("name", [*SWAPPED, "gemma4_text"])
def test_a_pruned_checkpoint_is_swapped_in(name, tmp_path):
    dense, pruned = build(name, tmp_path)
    expected = {checkpoint: by_transformers(checkpoint) for checkpoint in (dense, pruned)}
    engine = VLLMEngine(CONFIG)
    engine.load(dense)
    assert_served(engine, expected[dense])
    report = engine.load(pruned)
    assert report.swapped
    assert bool(report.notes) == (name == "gemma4_text")  # keys that are values too: one matrix cannot be compared
    assert_served(engine, expected[pruned])
    engine.close()
