"""SmolLM2-135M-Instruct, rounded to float8: vLLM's kernels against transformers with
the same values and roundings. The comparison has to be with transformers' own spread.
An input between two float8 values goes to either, 6 % apart, for the last digit of a
sum in another order; 30 layers on, two right computations are as far apart as the
checkpoint is from its base. So transformers is asked twice, the second time with
embeddings changed by one part in ten million.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from evaluator.engine.config import EngineConfig
from tests.support.engines import answers
from tests.support.models import load_model
from tests.support.quantised import quantise, rounding_inputs
from tests.support.smollm2 import MARKS, MODEL, candidates, full_pass

pytestmark = MARKS
NUDGE = 1e-7  # relative; float32 keeps 6e-8
MORE = 2.0  # times transformers' own spread: two means of 42 tokens differ by chance
LEAST = 0.05  # nats in the mean: what makes the spread worth a test


@dataclass(frozen=True)
class Asked:
    ours: list[float]
    theirs: list[float]
    nudged: list[float]
    only_weights: list[list[float]]  # theirs and nudged, where inputs are not rounded


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    from transformers import AutoTokenizer

    from evaluator.engine.vllm.engine import VLLMEngine

    folder: Path = tmp_path_factory.mktemp("fp8")
    checkpoint = quantise(MODEL, folder / "quantised", "fp8", twin=folder / "twin")
    requests = candidates(AutoTokenizer.from_pretrained(MODEL))
    engine = VLLMEngine(
        EngineConfig(dtype="float32", max_model_len=640, max_num_seqs=16)
    )
    assert engine.load(checkpoint).notes == ()
    found = answers(engine, requests)
    engine.close()

    def nats(model: Any) -> list[float]:
        return [value for request in requests for value in full_pass(model, request)]

    return Asked(
        ours=[
            value
            for request in requests
            for value in found[request.request_id].logprobs
        ],
        theirs=nats(rounding_inputs(twin(folder), "fp8")),
        nudged=nats(rounding_inputs(twin(folder, NUDGE), "fp8")),
        only_weights=[nats(twin(folder)), nats(twin(folder, NUDGE))],
    )


def twin(folder: Path, nudge: float = 0.0) -> Any:
    model = load_model(folder / "twin")
    embedding = model.get_input_embeddings()
    head = model.get_output_embeddings()
    noise = torch.randn(
        embedding.weight.shape, generator=torch.Generator().manual_seed(1)
    )
    with torch.no_grad():
        # the output head stays as it is
        head.weight = torch.nn.Parameter(head.weight.clone())
        embedding.weight.mul_(1 + nudge * noise)
    return model


def apart(one: list[float], other: list[float]) -> float:
    return fmean(abs(a - b) for a, b in zip(one, other, strict=True))


def test_vllm_near_transformers(asked: Asked) -> None:
    """As near as transformers to itself."""
    spread = apart(asked.theirs, asked.nudged)
    print(
        f"{len(asked.ours)} tokens: {apart(asked.ours, asked.theirs):.3f} nats;"
        f" transformers' own {spread:.3f}"
    )
    assert spread > LEAST
    assert apart(asked.ours, asked.theirs) <= MORE * spread
    assert apart(asked.ours, asked.nudged) <= MORE * spread


def test_rounding_of_inputs_spreads(asked: Asked) -> None:
    assert apart(*asked.only_weights) < 1e-3
