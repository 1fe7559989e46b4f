"""Requests in short."""

from collections.abc import Iterable
from typing import Any

from evaluator.engine.base import Generate, Score


def generation(
    name: object, prompt: Iterable[int], tokens: int, **more: Any
) -> Generate:
    return Generate(
        request_id=str(name), prompt_ids=tuple(prompt), max_tokens=tokens, **more
    )


def scoring(
    name: object, prompt: Iterable[int], continuation: Iterable[int], **more: Any
) -> Score:
    return Score(
        request_id=str(name),
        prompt_ids=tuple(prompt),
        continuation_ids=tuple(continuation),
        **more,
    )
