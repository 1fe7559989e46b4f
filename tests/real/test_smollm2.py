"""SmolLM2-135M-Instruct, dense and pruned, in vLLM and in transformers: a real
pretrained model gives the same answers. `make test-real` makes the model first;
where it is absent, these tests are skipped."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evaluator.engine.base import Generate
from evaluator.engine.config import EngineConfig
from tests.support.engines import (
    answers,
    assert_beams_of_transformers,
    greedy_tokens,
    rank_bounds,
)
from tests.support.models import load_model
from tests.support.runs import resurface
from tests.support.smollm2 import (
    CALIBRATION,
    MARKS,
    MODEL,
    candidates,
    full_pass,
    items,
    prompter,
)

pytestmark = MARKS
SAMPLES, WINDOW = 8, 96  # of the pruning
TOLERANCE = 1e-4  # nats, in float32


@dataclass(frozen=True)
class Served:
    checkpoint: Path
    engine: Any
    model: Any
    swapped: bool


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pruned") / "wanda-0.5"
    done = resurface(
        *(
            "prune",
            MODEL,
            "--method",
            "wanda",
            "--sparsity",
            "0.5",
            "--calibration",
            f"text:{CALIBRATION}",
        ),
        *("--samples", str(SAMPLES), "--sequence-length", str(WINDOW), "--out", out),
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    from evaluator.engine.vllm.engine import VLLMEngine

    engine = VLLMEngine(
        EngineConfig(dtype="float32", max_model_len=640, max_num_seqs=16)
    )
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=["dense", "pruned"])
def served(request: pytest.FixtureRequest, engine: Any, pruned: Path) -> Served:
    checkpoint = MODEL if request.param == "dense" else pruned
    report = engine.load(checkpoint)
    return Served(checkpoint, engine, load_model(checkpoint), report.swapped)


@pytest.mark.parametrize("chat", [False, True], ids=["raw", "chat"])
def test_greedy_tokens_equal_transformers(served, tokenizer, chat):
    ours = prompter(tokenizer, chat=chat)
    asked = [
        Generate(
            request_id=item.item_id,
            prompt_ids=ours.build(item, "open").token_ids,
            max_tokens=24,
        )
        for item in items()
    ]
    found = answers(served.engine, asked)
    for request in asked:
        assert found[request.request_id].token_ids == greedy_tokens(
            served.model, request.prompt_ids, 24
        )


def test_the_pruned_model_was_swapped_in(served):
    assert served.swapped == (served.checkpoint != MODEL)


def test_scores_equal_full_forward_pass(served, tokenizer):
    asked = candidates(tokenizer)
    found = answers(served.engine, asked)
    for request in asked:
        answer = found[request.request_id]
        assert answer.logprobs == pytest.approx(
            full_pass(served.model, request), abs=TOLERANCE
        )
        lowest, highest = rank_bounds(served.model, request)
        assert all(
            low <= rank <= high
            for low, rank, high in zip(lowest, answer.ranks, highest, strict=True)
        )


def test_beams_equal_transformers(served, tokenizer):
    ours = prompter(tokenizer)
    asked = [ours.build(item, "open").token_ids for item in items()[:2]]
    (eos,) = ours.eos_ids
    assert_beams_of_transformers(
        served.engine, served.model, asked, width=5, max_tokens=12, pad=eos
    )


def test_chat_prompt_equals_template(tokenizer):
    (item, *_) = items()
    raw, chat = (
        prompter(tokenizer).build(item, "open"),
        prompter(tokenizer, chat=True).build(item, "open"),
    )
    expected = tokenizer.apply_chat_template(
        [{"role": "user", "content": raw.text}],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert chat.text == expected
    assert (
        list(chat.token_ids)
        == tokenizer(expected, add_special_tokens=False)["input_ids"]
    )
    # system, user, assistant
    assert tokenizer.decode(chat.token_ids).count("<|im_start|>") == 3


def test_wanda_equals_brute_force(pruned, tmp_path):
    """The first layer alone: what is pruned there does not depend on the layers
    above it."""
    from safetensors.torch import load_file, save_file

    from tests.support import brute_force

    shutil.copytree(MODEL, tmp_path / "first")
    config = json.loads((MODEL / "config.json").read_text()) | {"num_hidden_layers": 1}
    (tmp_path / "first" / "config.json").write_text(json.dumps(config))
    dense = {
        name: tensor
        for name, tensor in load_file(MODEL / "model.safetensors").items()
        if ".layers." not in name or ".layers.0." in name
    }
    save_file(dense, tmp_path / "first" / "model.safetensors", {"format": "pt"})
    texts = CALIBRATION.read_text(encoding="utf-8").splitlines()[:SAMPLES]
    expected = brute_force.prune(
        tmp_path / "first",
        brute_force.sequences_of(MODEL, texts, WINDOW),
        brute_force.square_sums,
        lambda weight, norm_sq: weight.masked_fill(
            brute_force.wanda_mask(weight, norm_sq, 0.5, None), 0
        ),
    )
    found = load_file(pruned / "model.safetensors")
    assert len(expected) == 7
    for name, weight in expected.items():
        assert (found[name] == 0).equal(weight == 0), name
        assert found[name].equal(weight.to(found[name].dtype)), name
