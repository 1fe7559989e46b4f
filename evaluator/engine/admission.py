"""An engine decides here, before it computes: how many requests it takes, which it
refuses, and which share work."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from msgspec.structs import replace

from evaluator.core.records import TokenIds
from evaluator.engine.base import (
    TOO_LONG,
    Cancel,
    Request,
    RequestSource,
    Response,
    Score,
)
from evaluator.engine.distributions import unusable

# requests that wait in an engine for the places of those that end in a step
_QUEUED = 8
_REFUSED = 64  # requests at a time
# fields of a Response
_PER_TOKEN = ("token_ids", "logprobs", "ranks", "top_ids", "top_logprobs")
_BURST = 8  # a burst fills at least one row of so many


def room(rows: int, in_flight: int, *, bursts: bool) -> int:
    """How many requests an engine takes now that computes `rows` at a time and has
    `in_flight`.

    In bursts, it takes none until an eighth of its rows is free: the steps in
    between only generate. A burst always comes, as every request that ends frees a
    row."""
    if not bursts:
        return max(0, rows + _QUEUED - in_flight)
    free = rows - in_flight
    return free if free >= max(1, rows // _BURST) else 0


def refusal(request: Request, max_model_len: int, vocabulary: int) -> str | None:
    """Why a model cannot answer a request, which could end its engine; None if it
    can. Both numbers in tokens."""
    prompt: TokenIds = request.prompt_ids
    continuation: TokenIds = ()
    if isinstance(request, Score):
        continuation = request.continuation_ids
        generated, nothing = len(continuation), "nothing to score"
    else:
        generated, nothing = request.max_tokens, f"max_tokens is {request.max_tokens}"
    if not prompt:
        return "the prompt is empty"
    if generated < 1:
        return nothing
    if len(prompt) + generated > max_model_len:
        return (
            f"{len(prompt)} prompt tokens and {generated} more do not fit "
            f"the engine's {max_model_len} {TOO_LONG}"
        )
    if not (_are_below(vocabulary, prompt) and _are_below(vocabulary, continuation)):
        return f"a token id is outside the vocabulary of {vocabulary}"
    if isinstance(request, Score) and request.reference is not None:
        return unusable(request.reference, request.continuation_ids, vocabulary)
    return None


@lru_cache(maxsize=64)  # many requests of an item have its prompt
def _are_below(vocabulary: int, ids: TokenIds) -> bool:
    """Whether all tokens are ids of a vocabulary."""
    return not ids or (min(ids) >= 0 and max(ids) < vocabulary)


def refuse(request: Request, reason: str) -> Response:
    """The response to a request that is not computed."""
    return Response(request_id=request.request_id, status="engine_error", error=reason)


class SharedScores:
    """Answers a Score from a longer or equal continuation's after the same prompt,
    which contains it."""

    def __init__(self) -> None:
        self._riders: dict[str, list[Score]] = {}

    def admit(self, requests: Iterable[Request]) -> list[Request]:
        """The requests to compute, on which the others ride: first Generates and
        scores with a reference, in order."""
        admitted: list[Request] = []
        groups: dict[TokenIds, list[Score]] = {}
        for request in requests:
            if isinstance(request, Score) and request.reference is None:
                groups.setdefault(request.prompt_ids, []).append(request)
            else:
                admitted.append(request)
        for group in groups.values():
            leaders: list[Score] = []
            for score in sorted(group, key=lambda score: -len(score.continuation_ids)):
                ids = score.continuation_ids
                for leader in leaders:
                    if leader.continuation_ids[: len(ids)] == ids:
                        self._riders.setdefault(leader.request_id, []).append(score)
                        break
                else:
                    leaders.append(score)
            admitted.extend(leaders)
        return admitted

    def answer(self, response: Response) -> list[Response]:
        """The response itself and those of its riders."""
        responses = [response]
        for rider in self._riders.pop(response.request_id, ()):
            length = len(rider.continuation_ids)
            cut = {name: getattr(response, name)[:length] for name in _PER_TOKEN}
            responses.append(replace(response, request_id=rider.request_id, **cut))
        return responses


@dataclass(frozen=True, slots=True)
class RefusingEngine:
    """Takes an engine's place for items that kill it: every request fails with one
    reason."""

    name: str  # the engine's
    reason: str

    def run(self, source: RequestSource) -> Iterator[Response]:
        while given := source.take(_REFUSED):
            for request in given:
                if not isinstance(request, Cancel):
                    yield refuse(request, self.reason)
