"""Beam search over any engine, by streamed rollouts: exact, one item at a time, with no
barrier between items.

A step of beam search needs, for each of the `width` live prefixes, the few most likely
next tokens (its *expansion*). Requesting one token per prefix and step would spend most
of an engine's time on admission. Instead we request the greedy continuation of a prefix
(a *rollout*) with its top log-probabilities, streamed token by token. Each of its
positions is the expansion of one more prefix, and beam search mostly walks along such
continuations. A branch gets a new rollout; a rollout without a live prefix is
cancelled. So an item takes about as many engine steps as it generates tokens, and about
as many token forwards as its beams hold tokens.

The search itself is that of transformers 5.19, `GenerationMixin._beam_search`, with
length_penalty = 1.0 and early_stopping = False (so `num_return_sequences = num_beams =
width`):

- every step ranks all one-token continuations of the live prefixes by their summed
  log-probability;
- those among the best `width` that end in EOS are finished, with score = sum /
  generated length, EOS counted;
- the best `width` that do not end in EOS are the next live prefixes;
- the best `width` finished ones are kept;
- the search stops when `width` are finished and the best live prefix, scored at its
  present length, is not better than the worst finished one;
- at `max_tokens` the best `width` continuations finish without EOS.

transformers looks at (1 + number of EOS ids) * width candidates in each step. The
selection above needs only the best `width + number of EOS ids` of each prefix, so
rollouts request only these. A width of 1 is greedy search, there and here.

Exact means: the same hypotheses where no two candidates are closer than the float
rounding of their sums (ours are float64, transformers' float32). Ties go to the better
prefix, then to the token that the engine lists first.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace
from itertools import islice
from math import inf

import msgspec

from evaluator.core.records import TokenIds
from evaluator.engine.base import (
    UNABLE,
    Cancel,
    Generate,
    Response,
    Streamed,
    TokenTable,
)


class Hypothesis(msgspec.Struct, frozen=True, kw_only=True):
    token_ids: TokenIds  # generated ids, EOS included where it ended the beam
    logprob: float  # summed, nats
    score: float  # logprob / number of token_ids


class _Rollout(msgspec.Struct, eq=False):
    """The greedy continuation of a prefix, as far as it has come."""

    # its tokens, each with the expansion that it was the best of; the engine appends
    # them
    rows: list[Streamed] = []
    is_open: bool = True  # more is to come


_NO_ROLLOUT = _Rollout(is_open=False)


# (negated sum, place of the live beam, place in its expansion's table): compared as
# tuples, in C.
_Candidate = tuple[float, int, int]


class _Beam(msgspec.Struct, eq=False):
    """A live prefix. It is on at most one rollout, `depth` tokens after the
    rollout's start."""

    negated: float  # its log-probability, summed and negated, nats
    token_ids: TokenIds
    place: int  # among the live ones
    rollout: _Rollout
    depth: int = 0
    # its expansion, and its rollout's next token; None: unknown as yet
    row: Streamed | None = None
    best: _Candidate | None = None  # of its expansion


class BeamSearch:
    """The beam search of one prompt: give it responses, it gives requests until it
    is `done`."""

    def __init__(
        self,
        request_prefix: str,
        prompt_ids: TokenIds,
        *,
        width: int,
        max_tokens: int,
        eos_ids: frozenset[int],
        first_request_id: str | None = None,
        first_stream: list[Streamed] | None = None,
    ) -> None:
        """The first request's name and stream, if a driver shares it; others are
        named `request_prefix`/number."""
        if width < 1 or max_tokens < 1:
            raise ValueError(
                f"width and max_tokens must be at least 1: width={width},"
                f" max_tokens={max_tokens}"
            )
        self._request_prefix = request_prefix
        self._first_request_id = first_request_id
        self._first_rollout = (
            _Rollout() if first_stream is None else _Rollout(first_stream)
        )
        self._prompt_ids = prompt_ids
        self._width = width
        self._max_tokens = max_tokens
        self._eos_ids = eos_ids
        # tokens of each prefix, or the whole vocabulary
        self._expansion = width + len(eos_ids)
        self._live = [_Beam(0.0, (), 0, _NO_ROLLOUT)]  # best first
        self._finished: list[Hypothesis] = []  # best first, at most `width`
        self._in_flight: dict[str, _Rollout] = {}
        # the live prefixes whose expansions are unknown, best first
        self._unknown = self._live
        self._step = 0
        self._next_request = 0
        self.done = False
        # why the engine could not answer; the search is then done without hypotheses
        self.error: str | None = None

    def start(self) -> list[Generate]:
        """The first request: the prompt's own greedy continuation."""
        return [self._request(self._live[0])]

    def advance(self, answers: Iterable[Response] = ()) -> list[Generate | Cancel]:
        """Take as many steps as the known expansions allow; returns requests for those
        that are missing.

        Answers to rollouts that were cancelled, or that arrive after `done`, are
        accepted and ignored.
        """
        for answer in answers:
            self._close(answer)
        if self.done:
            return []
        if self.error is not None:
            return self._finish([])
        # No continuation is more likely than its prefix. So the best waiting prefix
        # keeps blocking the step, whichever responses the other prefixes get.
        best = self._unknown[0]
        if best.rollout.is_open and best.depth == len(best.rollout.rows):
            return []
        before, waiting = self._step, self._unknown
        while True:
            unknown = []
            for beam in waiting:
                rows = beam.rollout.rows
                if beam.depth < len(rows):
                    beam.row = table, start = rows[beam.depth]
                    beam.best = beam.negated - table.logprobs[start], beam.place, start
                else:
                    unknown.append(beam)
            if not self._step and not unknown:
                self._expansion = min(self._expansion, table.width - 1)
            if unknown:
                to_request = [beam for beam in unknown if not beam.rollout.is_open]
                # Beams are sorted. A bar above both of these decides everything: the
                # step waits, and all are requested.
                enough = max(
                    unknown[0].negated, (to_request or unknown[:1])[-1].negated
                )
                candidates, bar = self._best_candidates(enough)
                if unknown[0].negated <= bar:
                    break
            else:
                candidates, _ = self._best_candidates(inf)
            self._take_step(candidates)
            waiting = self._live
            if (
                self._step == self._max_tokens
                or not self._live
                or self._cannot_improve()
            ):
                return self._finish(self._finished)
        self._unknown = unknown
        following = self._cancelled() if self._step > before else []
        following += [self._request(beam) for beam in to_request if beam.negated <= bar]
        return following

    def _close(self, answer: Response) -> None:
        """End a rollout, with those of its tokens that the engine did not stream."""
        rollout = self._in_flight.pop(answer.request_id, None)
        if rollout is None:
            return
        # perhaps early: the engine may know an EOS that the search does not
        rollout.is_open = False
        if answer.status != "ok":
            self.error = answer.error or answer.status
        elif answer.token_ids and not (rollout.rows or answer.top_ids):
            self.error = f"the server reports too few likeliest tokens {UNABLE}"
        columns = answer.token_ids, answer.top_ids, answer.logprobs, answer.top_logprobs
        for token, ids, own, logprobs in islice(
            zip(*columns, strict=False), len(rollout.rows), None
        ):
            rollout.rows.append(
                (TokenTable((token, *ids), (own, *logprobs), 1 + len(ids)), 1)
            )

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The `width` best beams, best first; fewer only if fewer sequences exist,
        none after an engine error."""
        assert self.done, "hypotheses() before the search is done"
        return tuple(self._finished)

    def _best_candidates(self, enough: float) -> tuple[list[_Candidate], float]:
        """Continuations of the expanded live beams, best first, up to the `width`-th
        that does not end, since no later one is selected. Ties go to the better
        beam, then to the earlier token. Also the negated sum of that last one,
        infinite if there are fewer: a prefix that is strictly worse contributes
        neither a live beam nor a finished one. The ranking stops early at a sum of
        `enough`."""
        live, eos_ids, width = self._live, self._eos_ids, self._width
        # An expansion has its likeliest token first, so that expansions are merged: few
        # of their tokens are looked at.
        heads = [beam.best for beam in live if beam.best is not None]
        heapify(heads)
        best: list[_Candidate] = []
        while heads:
            candidate = heads[0]
            negated, index, place = candidate
            if negated >= enough and enough < inf:
                return best, negated
            best.append(candidate)
            beam = live[index]
            table, start = beam.row  # type: ignore[misc]
            if table.ids[place] not in eos_ids:
                width -= 1
                if not width:
                    return best, negated
            place += 1
            if place < start + self._expansion:
                heapreplace(heads, (beam.negated - table.logprobs[place], index, place))
            else:
                heappop(heads)
        return best, inf

    def _take_step(self, candidates: list[_Candidate]) -> None:
        width, eos_ids = self._width, self._eos_ids
        self._step += 1
        at_end = self._step == self._max_tokens
        live: list[_Beam] = []
        finished = len(self._finished)
        for position, (negated, index, place) in enumerate(candidates):
            beam = self._live[index]
            table, start = beam.row  # type: ignore[misc]
            token = table.ids[place]
            if not at_end and token not in eos_ids:
                following = _Beam(
                    negated, (*beam.token_ids, token), len(live), _NO_ROLLOUT
                )
                if token == table.ids[start - 1]:
                    following.rollout, following.depth = beam.rollout, beam.depth + 1
                live.append(following)
            elif position < width:
                self._finished.append(
                    Hypothesis(
                        token_ids=(*beam.token_ids, token),
                        logprob=-negated,
                        score=-negated / self._step,
                    )
                )
        if len(self._finished) > finished:
            # stable: of equals the earlier stays first
            self._finished.sort(key=lambda hypothesis: -hypothesis.score)
            del self._finished[width:]
        self._live = live

    def _cannot_improve(self) -> bool:
        """transformers' `_check_early_stop_heuristic` for early_stopping = False and
        length_penalty = 1."""
        if len(self._finished) < self._width:
            return False
        return (
            self._width == 1
            or -self._live[0].negated / self._step <= self._finished[-1].score
        )

    def _finish(self, hypotheses: list[Hypothesis]) -> list[Generate | Cancel]:
        """End the search; returns what ends its rollouts."""
        self.done = True
        self._finished = hypotheses
        self._live = []
        return self._cancelled()

    def _cancelled(self) -> list[Generate | Cancel]:
        """What ends the rollouts without a live prefix."""
        alive = {beam.rollout for beam in self._live}
        cancels: list[Generate | Cancel] = []
        for request_id, rollout in list(self._in_flight.items()):
            if rollout not in alive:
                del self._in_flight[request_id]
                cancels.append(Cancel(request_id=request_id))
        return cancels

    def _request(self, beam: _Beam) -> Generate:
        """Request the rollout that begins with a live prefix."""
        beam.rollout = _Rollout() if self._next_request else self._first_rollout
        beam.depth = 0
        first = self._next_request == 0 and self._first_request_id
        request_id = first or f"{self._request_prefix}/{self._next_request}"
        self._next_request += 1
        self._in_flight[request_id] = beam.rollout
        return Generate(
            request_id=request_id,
            prompt_ids=self._prompt_ids + beam.token_ids,
            max_tokens=self._max_tokens - self._step,
            top_logprobs=self._expansion,
            stream=beam.rollout.rows,
        )
