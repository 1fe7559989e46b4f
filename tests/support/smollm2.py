"""The real model of `make example`, and a few of the example's questions for it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from evaluator.asking.prompts import Prompter
from evaluator.core.records import Item
from evaluator.engine.base import Score
from tests.support.engines import needs_vllm

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "smollm2-135m-instruct"
CALIBRATION = ROOT / "examples" / "calibration.txt"
MARKS = [
    pytest.mark.real,
    *needs_vllm,
    pytest.mark.skipif(
        not (MODEL / "made_from.json").exists(),
        reason=f"{MODEL.relative_to(ROOT)} is absent; `make test-real` makes it",
    ),
]


def items() -> list[Item]:
    """The first question on each of three passages of the example."""
    passages = yaml.safe_load(
        (ROOT / "examples" / "passages.yaml").read_text(encoding="utf-8")
    )[:3]
    firsts = [
        (each["id"], each["text"], *next(iter(each["questions"].items())))
        for each in passages
    ]
    return [
        Item(task="own", language="english", item_id=name, context=text, question=question, answers=(answer,),
             cluster=name)
        for name, text, question, answer in firsts
    ]  # fmt: skip


def prompter(tokenizer: Any, *, chat: bool = False) -> Prompter:
    return Prompter(
        tokenizer, chat=chat, prompt_tokens=512, one_shot_prompt_tokens=1024
    )


def candidates(tokenizer: Any) -> list[Score]:
    """Every item's gold answer and the other items' answers after its open prompt."""
    asked = []
    ours = prompter(tokenizer)
    for item in items():
        prompt = ours.build(item, "open")
        for other in items():
            scored = ours.continuations(prompt, [other.answers[0]])[0]
            name, ids = f"{item.item_id}/{other.item_id}", scored.continuation_ids
            asked.append(
                Score(
                    request_id=name, prompt_ids=scored.prompt_ids, continuation_ids=ids
                )
            )
    return asked


def full_pass(model: Any, request: Score) -> list[float]:
    """The log-probability (nats) of each token of the continuation, by one forward
    pass of transformers' `model`."""
    ids = torch.tensor([request.prompt_ids + request.continuation_ids])
    with torch.no_grad():
        rows = (
            model(ids)
            .logits[0, len(request.prompt_ids) - 1 : -1]
            .float()
            .log_softmax(-1)
        )
    logprobs: list[float] = rows.gather(
        1, torch.tensor(request.continuation_ids)[:, None]
    )[:, 0].tolist()
    return logprobs
