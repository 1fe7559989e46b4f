"""Quantised checkpoints in a real engine: what it computes is what transformers
computes with the dequantised weights. Each layout is rehearsed first. Where the machine
cannot serve it, one line says so, and the test is skipped.
"""

import json
import random
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evaluator.engine.config import EngineConfig
from evaluator.engine.processor import instruction_sets
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.engine.vllm.verify.rehearsal import rehearse
from tests.support.engines import answers, both_runners
from tests.support.models import VOCABULARY, load_model, save_tiny_model
from tests.support.quantised import LAYOUTS, quantise, rounding_inputs
from tests.support.requests import scoring
from tests.support.smollm2 import full_pass

pytestmark = both_runners

# Nats per token, and in the mean over tokens. Products of float8 or int8 are exact in
# float32, and only an input that lies between two values may be rounded to either. In
# bfloat16 every layer's inputs are rounded once more before that; the model's logits
# are far apart (tests/support/models.py), so that it shows. One of int8's 255 values is
# a long way from the next: few tokens see such an input, and most of them nothing of
# it.
TOLERANCE = {"float32": 0.1, "bfloat16": 1.0}
MEAN_TOLERANCE = {"float32": 0.01, "bfloat16": 0.25}
MEDIAN_TOLERANCE = {"float32": 1e-5, "bfloat16": 0.25}
NO_ROUNDED_INPUTS = ("gptq", "awq")


@dataclass(frozen=True)
class Served:
    layout: str
    checkpoint: Path
    dtype: str
    engine: VLLMEngine
    model: Any


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return save_tiny_model(
        tmp_path_factory.mktemp("dense") / "m", "qwen3_untied", dtype="bfloat16"
    )


def _case(layout: str, dtype: str, *marks: pytest.MarkDecorator) -> Any:
    """Most machines without a GPU serve FP8; of the others, each costs a rehearsal
    to find out."""
    return pytest.param((layout, dtype), marks=marks, id=f"{layout}-{dtype}")


@pytest.fixture(
    scope="module",
    params=[
        _case("fp8", "bfloat16"),
        _case("fp8", "float32", pytest.mark.more),
        *[_case("w8a8", dtype, pytest.mark.long) for dtype in ("float32", "bfloat16")],
        *[
            _case(layout, "bfloat16", pytest.mark.long)
            for layout in ("w4a16", "w4a16-channel", "gptq", "awq")
        ],
    ],
)
def served(request, dense, tmp_path_factory):
    layout, dtype = request.param
    folder = tmp_path_factory.mktemp(layout)
    checkpoint = quantise(dense, folder / "quantised", layout, twin=folder / "twin")
    config = EngineConfig(max_model_len=256, max_num_seqs=8, dtype=dtype)
    found = rehearse(checkpoint, config)
    if found.reason is not None:
        assert "\n" not in found.reason
        pytest.skip(f"not served here: {found.reason}")
    assert found.kernels, "the layers that multiply quantised matrices are vLLM's own"
    model = load_model(folder / "twin")
    if layout not in NO_ROUNDED_INPUTS:
        rounding_inputs(model, layout)
    engine = VLLMEngine(config)
    # every matrix was compared with the files
    assert engine.load(checkpoint).notes == ()
    yield Served(layout, checkpoint, dtype, engine, model)
    engine.close()


def scores(count):
    draw = random.Random(1)

    def drawn(length):
        return tuple(draw.randrange(VOCABULARY) for _ in range(length))

    return [scoring(f"s{n}", drawn(10 + 7 * n), drawn(4)) for n in range(count)]


def logprobs(engine, asked):
    return {name: answer.logprobs for name, answer in answers(engine, asked).items()}


def test_scores_equal_dequantised_weights(served):
    asked, off = scores(6), []
    found = logprobs(served.engine, asked)
    for request in asked:
        expected = full_pass(served.model, request)
        off += [
            abs(ours - theirs)
            for ours, theirs in zip(found[request.request_id], expected, strict=True)
        ]
    print(
        served.layout,
        served.dtype,
        f"max {max(off):.2g} mean {sum(off) / len(off):.2g}",
    )
    assert len(off) == 24
    assert max(off) <= TOLERANCE[served.dtype]
    assert sum(off) / len(off) <= MEAN_TOLERANCE[served.dtype]
    assert statistics.median(off) <= MEDIAN_TOLERANCE[served.dtype]


def test_quantised_checkpoint_gets_own_engine(served, tmp_path):
    """Same scheme and shapes, other weights; and with a sparsity_config that vLLM
    itself refuses."""
    if (served.layout, served.dtype) != ("fp8", "bfloat16"):
        pytest.skip("once is enough")
    asked = scores(2)
    before = logprobs(served.engine, asked)
    other = save_tiny_model(tmp_path / "other", "qwen3_untied", 1, dtype="bfloat16")
    dense_zeros = {
        "sparsity_config": {
            "format": "dense",
            "targets": ["Linear"],
            "sparsity_structure": "2:4",
        }
    }
    assert not served.engine.load(
        quantise(other, tmp_path / "q", served.layout, config=dense_zeros)
    ).swapped
    assert logprobs(served.engine, asked) != before
    assert (
        "sparsity_config"
        in json.loads((tmp_path / "q" / "config.json").read_text())[
            "quantization_config"
        ]
    )
    assert not served.engine.load(served.checkpoint).swapped
    assert logprobs(served.engine, asked) == before


@pytest.mark.long
@pytest.mark.skipif(
    bool({"avx512_vnni", "avx_vnni", "amx_int8"} & set(instruction_sets())),
    reason="int8 products are exact here",
)
def test_int8_products_that_overflow_are_noticed(dense, tmp_path):
    found = rehearse(
        quantise(dense, tmp_path / "q", "w8a8"), EngineConfig(dtype="bfloat16")
    )
    assert found.reason is not None
    assert (
        "the product of model.layers.0.self_attn.qkv_proj in the engine is not that of"
        " the files" in found.reason
    )


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param("gptq", marks=pytest.mark.long),
        pytest.param("fp8-block", marks=pytest.mark.more),
    ],
)
def test_unserved_checkpoint_has_vllms_reason(dense, tmp_path, layout):
    """What cannot be served is said with vllms own reason."""
    config = {"desc_act": True} if layout == "gptq" else {"weight_block_size": [64, 64]}
    checkpoint = quantise(
        dense, tmp_path / "q", layout, config={**LAYOUTS[layout].config, **config}
    )
    found = rehearse(checkpoint, EngineConfig(dtype="bfloat16"))
    assert found.reason is not None
    assert "\n" not in found.reason
    print(found.reason)
    assert {"gptq": "desc_act", "fp8-block": "kernel"}[layout] in found.reason
