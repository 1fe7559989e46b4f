"""What differs between servers: one class for each.

A dialect sends token ids and reads token ids. It never sends a text that the server
would tokenise in its own way (but for `openai`, which has no other way and therefore
scores nothing), and never forces a text by a grammar: both would measure other tokens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from evaluator.checkpoints.tokenizer import eos_ids_of
from evaluator.core.errors import InputError
from evaluator.engine.base import UNABLE, Generate, Request, Response, Score
from evaluator.engine.endpoint.client import Client, Unusable
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
    template: str = ""  # of chats; empty: it does not tell


Top = dict[int, float]  # the likeliest tokens with their log-probabilities
Step = tuple[float, Top]  # a token's log-probability, and the likeliest in its place


class Dialect:
    """A served model, asked in the dialect of its server. A request raises Refused, or
    Unusable for nonsense."""

    name: ClassVar[str]
    token_ids: ClassVar[bool]  # prompts are token ids
    scores: ClassVar[bool]  # it can report log-probabilities of given tokens
    distributions: ClassVar[bool]
    most_top: ClassVar[int]  # likeliest tokens of a step, at most

    def __init__(
        self, client: Client, described: Description, tokenizer: Any, vocabulary: int
    ) -> None:
        """`vocabulary`: of a server that does not tell its own."""
        self.client = client
        self.described = described
        self.vocabulary = described.vocabulary or vocabulary
        self.tokenizer = tokenizer
        self.eos_ids = eos_ids_of(tokenizer)
        self.slots: Slots | None = None

    def each(self) -> list[Self]:
        """The model on each server that lives."""
        servers = []
        for client in self.client.each():
            server = copy.copy(self)
            server.client = client
            servers.append(server)
        return servers

    @staticmethod
    async def describe(client: Client, model: str) -> Description | None:
        """What the server says of `model` (empty: its only one); None: it is another
        kind of server. Raises Refused or InputError for an unknown model."""
        raise Unusable(UNABLE)

    async def generate(self, request: Generate) -> Response:
        """The answer to a Generate."""
        raise Unusable(UNABLE)

    async def score(self, request: Score) -> Response:
        """The answer to a Score without a reference."""
        raise Unusable(UNABLE)

    async def distribution(self, prompt_ids: tuple[int, ...]) -> list[float]:
        """The log-probability of each token after a prompt, by id."""
        raise Unusable(UNABLE)

    async def biased(self, prompt_ids: tuple[int, ...], token: int, bias: float) -> int:
        """The likeliest token after a prompt, where `bias` is added to the logit of
        `token`."""
        raise Unusable(UNABLE)

    async def has_samplers(self, known: Mapping[Generate, tuple[int, ...]]) -> bool:
        """Whether a request's top_k and min_p count in place of the server's own:
        strict ones give its known greedy answer at any temperature."""
        return True

    def tokens(self, answer: Any, name: str, most: int) -> tuple[int, ...]:
        """The token ids in a field of an answer: from one to `most`."""
        ids = member(answer, name, list)
        for token in ids:
            if type(token) is not int or not 0 <= token < self.vocabulary:
                raise Unusable(
                    f"the server generated {str(token)[:80]!r}, no token of a"
                    f" vocabulary of {self.vocabulary}"
                )
        if not 1 <= len(ids) <= most:
            raise Unusable(f"the server generated {len(ids)} tokens of {most}")
        return tuple(ids)

    def cut(self, ids: tuple[int, ...], stop_ids: tuple[int, ...]) -> int:
        """How many ids there are up to the first that ends an answer; 0: none does."""
        for place, token in enumerate(ids):
            if token in self.eos_ids or token in stop_ids:
                return place + 1
        return 0

    def check_top(self, top: Top, wanted: int) -> None:
        """Raises Unusable if there are fewer likeliest tokens than requested, or if
        their probabilities are no part of a distribution."""
        if len(top) < min(wanted, self.vocabulary):
            raise Unusable(
                f"the server reports {len(top)} likeliest tokens of {wanted} {UNABLE}"
            )
        if not 0 <= min(top) <= max(top) < self.vocabulary:
            raise Unusable("the server reports tokens outside its vocabulary")
        best = sorted(top.values(), reverse=True)[:wanted]
        likely = math.fsum(map(math.exp, best))
        # no distribution gives its likeliest tokens less than a flat one
        flat = len(best) / self.vocabulary
        if not flat * (1 - _SUM) <= likely <= 1 + _SUM:
            raise Unusable(
                f"the server reports a probability of {likely:.3g} for the likeliest"
                f" {len(best)} tokens"
            )


def member(value: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    """A field of an answer. Raises Unusable if it is missing or of another kind."""
    found = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(found, bool) or not isinstance(found, kind):
        raise Unusable(
            f"the server's answer has no proper field {name!r}: {str(found)[:80]!r}"
        )
    return found


# Servers write less for what they do not tell: vLLM -9999, llama.cpp the lowest float.
_LEAST = -9999.0
ROUNDING = 1e-3
_SUM = 0.02  # that the probabilities of all tokens may miss 1 by


def logprob(value: Any) -> float:
    """A log-probability of an answer. Raises Unusable for what is none."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not _LEAST < value < ROUNDING
    ):
        raise Unusable(f"the server reports a log-probability of {str(value)[:80]}")
    return float(value)


async def served_model(client: Client, model: str) -> tuple[str, Any]:
    """A model's name (empty: of the only one), and what the server says of it. Raises
    InputError if it is not served, or if several are and none is named."""
    listed = member(await client.get("/v1/models"), "data", list)
    served = {member(entry, "id", str): entry for entry in listed}
    if model not in served and (model or len(served) != 1):
        what = f"model {model!r} is not served" if model else "model: name one"
        raise InputError(f"{client.address}: {what}; {list(served)[:20]} are")
    name = model or next(iter(served))
    return name, served[name]


def completion(request: Generate) -> dict[str, Any]:
    """A request in the words of OpenAI's API."""
    body: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    if request.seed is not None:
        body["seed"] = request.seed
    return body


def only_choice(answer: Any) -> Any:
    """The answer itself, in the words of OpenAI's API."""
    choices = member(answer, "choices", list)
    if len(choices) != 1:
        raise Unusable(f"the server gave {len(choices)} answers to one request")
    return choices[0]


def checked_count(answer: Any, name: str, count: int | None) -> None:
    """Raises Unusable unless a field has all the tokens that a server counts; None:
    it does not count."""
    if count not in (None, listed := len(member(answer, name, list))):
        raise Unusable(f"the server lists {listed} of {count} generated tokens")


def checked_greedy(own: float, top: Top, slack: float) -> None:
    """Raises Unusable if a token of a greedy answer is not the likeliest."""
    if own < (best := max(top.values())) - slack:
        raise Unusable(
            f"the server's greedy token has a log-probability of {own:.3f}, another"
            f" {best:.3f}"
        )


def stated(value: Any, name: str) -> int | None:
    """A number that a server may state of itself."""
    number = value.get(name) if isinstance(value, Mapping) else None
    return number if type(number) is int and number > 0 else None


def answer_to(
    request: Request,
    ids: tuple[int, ...],
    steps: Sequence[Step],
    *,
    ranks: Sequence[int] = (),
    cached: int | None = None,
) -> Response:
    """The tokens of an answer with what was reported of them; `steps` are empty if it
    was not requested. Raises Unusable if a token's log-probability is higher than the
    likeliest one's, has two values, or is missing among them."""
    count = 1 if isinstance(request, Score) else request.top_logprobs
    top_ids, top_logprobs = [], []
    for token, (own, top) in zip(ids, steps, strict=bool(steps)):
        missing = token not in top and own > min(top.values()) + ROUNDING
        higher = own > max(top.values()) + ROUNDING
        if missing or higher or abs(top.get(token, own) - own) > ROUNDING:
            raise Unusable(
                f"the server reports a log-probability of {own:.3f}, and others with it"
            )
        if count:
            # ties to the lower id
            best = sorted(top.items(), key=lambda pair: (-pair[1], pair[0]))[:count]
            top_ids.append(tuple(each for each, _ in best))
            top_logprobs.append(tuple(value for _, value in best))
    return Response(
        request_id=request.request_id,
        token_ids=ids,
        logprobs=tuple(own for own, _ in steps),
        ranks=tuple(ranks),
        top_ids=tuple(top_ids),
        top_logprobs=tuple(top_logprobs),
        cached_tokens=cached,
    )
