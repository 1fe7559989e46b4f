"""What differs between servers: one object for each.

A dialect sends token ids and reads token ids. It never sends a text that the server
would tokenise in its own way (but for `openai`, which has no other way and therefore
scores nothing), and never forces a text by a grammar: both would measure other tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from evaluator.checkpoints.tokenizer import eos_ids_of
from evaluator.core.errors import EngineError
from evaluator.engine.base import UNABLE, Generate, Response, Score
from evaluator.engine.endpoint.client import Client
from evaluator.engine.endpoint.slots import Slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a server says of itself."""

    server: str  # "vllm 0.32.0"
    model: str
    context: int | None = None  # tokens of a request
    slots: int | None = None  # requests that it computes at a time
    vocabulary: int | None = None
    file_type: str | None = None
    parameters: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The served model, as its requests need it."""

    name: str
    vocabulary: int
    eos_ids: frozenset[int]
    # For `openai` alone: text of ids, and ids of text.
    decode: Callable[[tuple[int, ...]], str] | None = None
    encode: Callable[[str], tuple[int, ...]] | None = None
    slots: Slots | None = None


def model_of(
    described: Description, tokenizer: Any, vocabulary: int, slots: Slots | None = None
) -> Model:
    """`vocabulary`: of a server that does not tell its own."""
    return Model(
        name=described.model,
        vocabulary=described.vocabulary or vocabulary,
        eos_ids=eos_ids_of(tokenizer),
        slots=slots,
        decode=tokenizer.decode,
        encode=lambda text: tuple(tokenizer.encode(text, add_special_tokens=False)),
    )


class Dialect(Protocol):
    name: str
    token_ids: bool  # prompts are token ids
    scores: bool  # it can report log-probabilities of given tokens
    distributions: bool
    most_top: int  # likeliest tokens of a step, at most

    async def describe(self, client: Client, model: str) -> Description | None:
        """What the server says of `model` (empty: its only one); None: it is another
        kind of server. Raises Refused or InputError for an unknown model."""

    async def generate(
        self, client: Client, model: Model, request: Generate
    ) -> Response:
        """The answer to a Generate. Raises Refused, or EngineError for nonsense."""

    async def score(self, client: Client, model: Model, request: Score) -> Response:
        """The answer to a Score without a reference. The same errors."""

    async def distribution(
        self, client: Client, model: Model, prompt_ids: tuple[int, ...]
    ) -> list[float]:
        """The log-probability of each token after a prompt, by id."""

    async def biased(
        self,
        client: Client,
        model: Model,
        prompt_ids: tuple[int, ...],
        token: int,
        bias: float,
    ) -> int:
        """The likeliest token after a prompt, where `bias` is added to the logit of
        `token`."""


def member(value: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    """A field of an answer. Raises EngineError if it is missing or of another kind."""
    found = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(found, bool) or not isinstance(found, kind):
        raise EngineError(
            f"the server's answer has no proper field {name!r}: {str(found)[:80]!r}"
        )
    return found


# Servers write less for what they do not tell: vLLM -9999, llama.cpp the lowest float.
_LEAST = -9999.0
ROUNDING = 1e-3
_SUM = 0.02  # that the probabilities of all tokens may miss 1 by


def logprob(value: Any) -> float:
    """A log-probability of an answer. Raises EngineError for what is none."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not _LEAST < value < ROUNDING
    ):
        raise EngineError(f"the server reports a log-probability of {str(value)[:80]}")
    return float(value)


def tokens(answer: Any, name: str, model: Model, most: int) -> tuple[int, ...]:
    """The token ids in a field of an answer: from one to `most`. Raises EngineError."""
    ids = member(answer, name, list)
    for token in ids:
        if type(token) is not int or not 0 <= token < model.vocabulary:
            raise EngineError(
                f"the server generated {str(token)[:80]!r}, no token of a vocabulary of"
                f" {model.vocabulary}"
            )
    if not 1 <= len(ids) <= most:
        raise EngineError(f"the server generated {len(ids)} tokens of {most}")
    return tuple(ids)


def checked_count(answer: Any, name: str, count: int | None) -> None:
    """Raises EngineError unless a field has all the tokens that a server counts; None:
    it does not count."""
    if count not in (None, listed := len(member(answer, name, list))):
        raise EngineError(f"the server lists {listed} of {count} generated tokens")


def checked_top(top: Mapping[int, float], wanted: int, model: Model) -> None:
    """Raises EngineError if there are fewer likeliest tokens than requested, or if
    their probabilities are no part of a distribution."""
    if len(top) < min(wanted, model.vocabulary):
        raise EngineError(
            f"the server reports {len(top)} likeliest tokens of {wanted} {UNABLE}"
        )
    if not 0 <= min(top) <= max(top) < model.vocabulary:
        raise EngineError("the server reports tokens outside its vocabulary")
    best = ordered(top, wanted)[1]
    likely = math.fsum(map(math.exp, best))
    # no distribution gives its likeliest tokens less than a flat one
    flat = len(best) / model.vocabulary
    if not flat * (1 - _SUM) <= likely <= 1 + _SUM:
        raise EngineError(
            f"the server reports a probability of {likely:.3g} for the likeliest"
            f" {len(best)} tokens"
        )


def checked_score(
    token: int, own: float, top: Mapping[int, float]
) -> tuple[int, float]:
    """The likeliest token, and its log-probability. Raises EngineError if that of the
    scored token is higher, has two values, or is missing among them."""
    ids, values = ordered(top, 1)
    missing = token not in top and own > min(top.values()) + ROUNDING
    higher = own > values[0] + ROUNDING
    if missing or higher or abs(top.get(token, own) - own) > ROUNDING:
        raise EngineError(
            f"the server reports a log-probability of {own:.3f}, and others with it"
        )
    return ids[0], values[0]


def checked_greedy(own: float, top: Mapping[int, float], slack: float) -> None:
    """Raises EngineError if a token of a greedy answer is not the likeliest."""
    if own < (best := max(top.values())) - slack:
        raise EngineError(
            f"the server's greedy token has a log-probability of {own:.3f}, another"
            f" {best:.3f}"
        )


def stated(value: Any, name: str) -> int | None:
    """A number that a server may state of itself."""
    number = value.get(name) if isinstance(value, Mapping) else None
    return number if type(number) is int and number > 0 else None


def cut(ids: tuple[int, ...], model: Model, stop_ids: tuple[int, ...]) -> int:
    """How many ids there are up to the first that ends an answer; 0: none does."""
    for place, token in enumerate(ids):
        if token in model.eos_ids or token in stop_ids:
            return place + 1
    return 0


def ordered(top: Mapping[int, float], count: int) -> tuple[list[int], list[float]]:
    """The `count` likeliest tokens, ties to the lower id."""
    best = sorted(top.items(), key=lambda pair: (-pair[1], pair[0]))[:count]
    return [token for token, _ in best], [logprob for _, logprob in best]
