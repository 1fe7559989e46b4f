"""vLLM serves what pruning leaves as transformers computes it: sparse weights,
experts, smaller models."""

import random

import pytest
import torch

from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.engine.vllm.start import on_workers
from pruning.run import prune
from pruning.verify import examine
from tests.support import pruning as tiny
from tests.support.engines import (
    answers,
    assert_alike,
    needs_vllm,
    oracle_of,
    random_tokens,
)
from tests.support.requests import generation, scoring

pytestmark = needs_vllm
both = pytest.mark.runners
long = pytest.mark.long

CONFIG = EngineConfig(max_model_len=200, max_num_seqs=16)
DECORATE = "_decorate_cls_for_torch_compile"
# of a size that vLLM's kernels have
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
CHANGES: dict[str, dict[str, object]] = {
    "gemma4_text": {"global_head_dim": 64},
    "olmoe": {"clip_qkv": None},
}
OWN_HEAD_SIZE = {"phi3": {"hidden_size": 128}}
# Of what is pruned: qwen3 is served in test_engine_vllm; vLLM's code of qwen3_5_text
# needs torchvision; gemma2 differs.
MIXTURES = ("mixtral", "olmoe")  # each gets an engine of its own
SWAPPED = (
    "llama",
    "qwen2",
    "mistral",
    "phi3",
    "gemma3_text",
    "olmo2",
    "olmo3",
    "smollm3",
    "granite",
    "glm",
    "glm4",
)


@pytest.fixture(autouse=True)
def transformers_as_it_was(monkeypatch):
    """vLLM makes classes of transformers its own that it has no code for; the tests
    after these need them."""
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


def pruned_by(method, dense, target):
    passages = target.with_suffix(".txt")
    passages.write_text("\n".join(tiny.lines(12)) + "\n", encoding="utf-8")
    prune(tiny.job(dense, passages, method), target)
    return target


def build(name, folder):
    tiny.build(name, folder / "dense", torch.float32, **HEADS, **CHANGES.get(name, {}))
    return folder / "dense", pruned_by("wanda", folder / "dense", folder / "pruned")


def questions():
    draw = random.Random(0)
    asked = []
    for number, length in enumerate((1, 5, 17, 33, 64, 90)):
        prompt, *options = (
            random_tokens(draw, n, tiny.VOCABULARY) for n in (length, 1, 2, 4)
        )
        asked.append(generation(f"greedy {number}", prompt, 12))
        asked += [scoring(f"{number} {o}", prompt, o) for o in options]
    return asked


def by_transformers(checkpoint):
    """Asked before vLLM starts: it makes classes of transformers its own that it has
    no code for."""
    return answers(oracle_of(checkpoint, CONFIG), questions())


@both
def test_pruned_mixture_is_served(tmp_path):
    """A pruned mixture is served and is not what a swap would leave."""
    dense, pruned = build("qwen3_moe", tmp_path)
    expected = by_transformers(pruned)
    engine = VLLMEngine(CONFIG)
    assert engine.load(pruned).notes == ()  # every matrix was compared
    assert_alike(answers(engine, questions()), expected)
    started, experts = (
        engine._started,
        [f"the experts of model.layers.{n}.mlp.experts.routed_experts" for n in (0, 2)],
    )

    def differing(checkpoint):
        ((_, found, passed_over),) = on_workers(
            started.llm, "compare_weights", [str(checkpoint / "model.safetensors")]
        )
        assert passed_over == []
        return [name for name in found if "experts" in name]

    assert differing(pruned) == []
    assert differing(dense) == experts
    # Why `load` builds another engine for it: vLLM does not pack experts again.
    engine._swap(started, dense, [str(dense / "model.safetensors")])
    assert differing(dense) == experts
    engine.close()


@both
@long
@pytest.mark.parametrize("name", [*SWAPPED, "gemma4_text", *MIXTURES])
def test_pruned_checkpoint_is_served(name, tmp_path):
    """A pruned checkpoint is swapped in or gets an engine."""
    dense, pruned = build(name, tmp_path)
    expected = {
        checkpoint: by_transformers(checkpoint) for checkpoint in (dense, pruned)
    }
    engine = VLLMEngine(CONFIG)
    engine.load(dense)
    assert_alike(answers(engine, questions()), expected[dense])
    report = engine.load(pruned)
    assert report.swapped == (name not in MIXTURES)
    # keys that are values too: one matrix cannot be compared
    assert bool(report.notes) == (name == "gemma4_text")
    assert_alike(answers(engine, questions()), expected[pruned])
    engine.close()


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("qwen3", ["layers", "heads", "channels"]),
        pytest.param("gemma3_text", ["layers", "heads", "channels"], marks=long),
        pytest.param("phi3", ["heads", "channels"], marks=long),
        pytest.param("llama", ["heads"], marks=long),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_smaller_model_is_served(name, methods, tmp_path):
    """A model without some of its layers heads and channels is served."""
    tiny.build(
        name,
        tmp_path / "dense",
        torch.float32,
        **OWN_HEAD_SIZE.get(name, {"head_dim": 32}),
    )
    checkpoint = tmp_path / "dense"
    for method in methods:
        checkpoint = pruned_by(method, checkpoint, tmp_path / method)
        assert examine(checkpoint).problems == []
    expected = by_transformers(checkpoint)
    engine = VLLMEngine(CONFIG)
    # every matrix was compared with the smaller checkpoint's
    assert engine.load(checkpoint).notes == ()
    assert_alike(answers(engine, questions()), expected)
    engine.close()
