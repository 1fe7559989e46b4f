"""The engine seam: requests go in, responses come out in any order, and callers know
nothing else about an engine.

The driver owns a `RequestSource`, and the engine pulls from it whenever it has room.
So requests that follow from responses (the next step of a beam search) join the
running batch without a barrier::

    for response in engine.run(source):      # the engine pauses while the driver handles the response
        source.handle(response)              # may make new requests available to the engine's next `take`

An engine that can stream appends the tokens of a request to its `stream` as they are
computed. `run` returns when the source has nothing to give and nothing is in flight."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from evaluator.core.records import EngineStats, TokenIds


class TokenTable(msgspec.Struct):
    """The tokens of a step, of all requests. Readers look at few of the numbers, so
    none has an object of its own.

    Rows of `width` follow one another. A row has the token itself first. Then come
    the likeliest tokens in its place, as in Response: at least as many as its
    request wants, or the whole vocabulary."""

    ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()  # nats
    width: int = 0


# A token of a streamed request: its table, and the place of the likeliest token in its
# row. Before it is the token.
Streamed = tuple[TokenTable, int]


class Generate(msgspec.Struct, frozen=True, kw_only=True):
    """Generate up to `max_tokens` tokens; EOS or a stop id ends it earlier, and is
    then the last id of the response."""

    request_id: str
    prompt_ids: TokenIds
    max_tokens: int
    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0
    seed: int | None = None
    top_logprobs: int = 0  # how many of the most likely tokens to report at every step
    # Where the engine appends its tokens as they are computed, if it can, and before it
    # answers. A token whose log-probability is NaN is left out, and so are all that
    # follow it.
    stream: list[Streamed] | None = None
    stop_ids: TokenIds = ()  # ids that end it as EOS does


@dataclass(frozen=True, kw_only=True)
class Reference:
    """How an engine treats the whole distributions at the positions of a Score:
    `distributions.py` has the file."""

    path: str
    keep: bool  # True: write them there; False: compare them with those that are there
    # compare the likeliest so many tokens, and the rest as one; 0: the whole vocabulary
    top: int = 0
    base: str = (
        ""  # the directory of the base's checkpoint, whose head kept states need
    )


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """The log-likelihood and vocabulary rank of each token of `continuation_ids` (at
    least one) after `prompt_ids`. With a `reference`, the engine itself stores the
    base's distributions or compares with them, so it never returns a row as long as the
    vocabulary. An engine without references must not get one (`EngineKind.references`).
    """

    request_id: str
    prompt_ids: TokenIds
    continuation_ids: TokenIds
    reference: Reference | None = None
    ranked: bool = False  # the first token's rank is needed; an engine may give all


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """The rest of a request is needed no more. It has no response; earlier tokens
    may still arrive."""

    request_id: str


Request = Generate | Score

# ends the reason of a refusal: the model or its cache has no room for the request
TOO_LONG = "(max_model_len)"
# ends the reason of a refusal: the server can never answer such a request
UNABLE = "(not possible with this server)"
NOT_NUMBERS = "the model's log-probabilities are not numbers (NaN)"


class Divergence(NamedTuple):
    """The distance of a distribution Q from the stored P of the same position, in
    nats unless stated otherwise."""

    kld: float  # sum P (ln P - ln Q)
    kld_reverse: float  # sum Q (ln Q - ln P)
    acceptance: float  # sum min(P, Q), from 0 to 1
    same_top: bool  # whether the likeliest token is the same
    # the share of the first ranks (distributions.RANKS) with the same token in both
    agreement: float
    reference_logprob: float  # ln P of the continuation's token
    reference_top: float  # the highest P, from 0 to 1


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The response to one request. Log-probabilities are the raw model's
    (temperature 1, no nucleus), in nats."""

    request_id: str
    status: Literal["ok", "engine_error"] = "ok"
    error: str | None = None
    token_ids: TokenIds = ()  # generated ids, or the continuation of a Score
    # one per token id; empty for a sampled Generate without top_logprobs
    logprobs: tuple[float, ...] = ()
    # 1 + number of vocabulary tokens that are more likely: one per token id of a Score,
    # or of its first token only
    ranks: tuple[int, ...] = ()
    # [step][k], most likely first, ties to the lower id. A Generate: k = its
    # top_logprobs; empty where its stream has them. A Score: k = 1, so that the margin
    # logprobs[0] - top_logprobs[0][0] is at hand.
    top_ids: tuple[TokenIds, ...] = ()
    top_logprobs: tuple[tuple[float, ...], ...] = ()
    cached_tokens: int | None = None  # prompt tokens that the prefix cache answered
    # one per token id of a Score that compares
    divergences: tuple[Divergence, ...] = ()

    def or_error(self, vocabulary: int) -> "Response":
        """This response, or an error if a log-probability is NaN (collapsed model) or a
        rank is outside the vocabulary. Every engine returns responses through this
        method: no token is more likely than NaN, so each would rank first.
        """
        if not self.logprobs and not self.ranks:
            return self
        error = None
        complete = len(self.logprobs) == len(self.token_ids) and len(self.ranks) in (
            1,
            len(self.token_ids),
        )
        outside = [rank for rank in self.ranks if not 1 <= rank <= vocabulary]
        klds = [divergence.kld for divergence in self.divergences]
        if math.isnan(sum(self.logprobs) + sum(klds)):
            error = NOT_NUMBERS
        elif self.ranks and not complete:
            error = f"scores of {len(self.logprobs)} of {len(self.token_ids)} tokens"
        elif outside:
            error = f"a rank of {outside[0]} in a vocabulary of {vocabulary}"
        if error is None:
            return self
        return Response(request_id=self.request_id, status="engine_error", error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    checkpoint: Path
    # True: into the running engine, in place; False: a fresh engine was built
    swapped: bool
    tensors: int  # how many the checkpoint brought and the engine loaded
    seconds: float
    # how continuations are scored: as configured (EngineConfig.scoring), or its
    # fallback
    scoring: str = "forced"
    # remarks for the user about how it is served, one line each
    notes: tuple[str, ...] = ()
    # the settings that the engine's numbers depend on
    setup: Mapping[str, str] = field(default_factory=dict)
    # what a server was found able to do
    abilities: Mapping[str, Any] = field(default_factory=dict)
    # The scales of a quantised cache: "from the checkpoint", "calculated" at each
    # write, "none" (1); None: no such one
    kv_scales: str | None = None


class RequestSource(Protocol):
    def take(self, limit: int) -> Sequence[Request | Cancel]:
        """At most `limit` requests that are ready now; none if only a response can
        bring more. Every Cancel that is ready comes before them, however small the
        limit: it makes room, and names a request that was given.
        """


class Engine(Protocol):
    """One model server, holding one checkpoint at a time."""

    name: str
    version: str
    dtype: str  # of its computations: "float32", "bfloat16", ...

    def load(self, checkpoint: Path) -> LoadReport:
        """Serve `checkpoint` from now on. Raises InputError if its shapes or
        architecture differ from those of the engine's first one, EngineError if the
        loaded weights differ from the files."""

    def run(self, source: RequestSource) -> Iterator[Response]:
        """Answer everything that the source gives, in any order, until it gives
        nothing and nothing is in flight."""

    def confirm(self) -> None:
        """Raises InputError if another model has taken the place of the loaded
        checkpoint: records since the last call are not its own."""

    def stats(self) -> EngineStats: ...

    def close(self) -> None: ...


class FixedSource(RequestSource):
    """A source of requests that are all known beforehand."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._next = 0

    def take(self, limit: int) -> Sequence[Request]:
        taken = self._requests[self._next : self._next + limit]
        self._next += len(taken)
        return taken
