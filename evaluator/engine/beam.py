"""Beam search over any engine, by cached rollouts: exact, one item at a time, with no barrier between items.

A step of beam search needs, for each of the `width` live prefixes, the few most likely next tokens (its *expansion*).
Asking an engine for one token per prefix and step wastes most of its time on admitting requests. Instead we ask for a
greedy continuation of several tokens (a *rollout*) with its top log-probabilities: every position of it is the
expansion of one more prefix, and beam search mostly walks along such continuations. Expansions wait in a trie whose
root is dropped as the search moves on, so that memory stays bounded by what the live prefixes may still use.

The search itself is that of transformers 5.19, `GenerationMixin._beam_search`, with length_penalty = 1.0 and
early_stopping = False (so `num_return_sequences = num_beams = width`):

- every step ranks all one-token continuations of the live prefixes by their summed log-probability;
- of the best `width` of them, those that end in EOS are finished, with score = sum / generated length, EOS counted;
- the best `width` that do not end in EOS are the next live prefixes;
- the best `width` finished ones are kept, and the search stops when all of these places are taken and the best live
  prefix, scored at its present length, is not better than the worst of them;
- at `max_tokens` the best `width` continuations finish as they are.

transformers looks at (1 + number of EOS ids) * width candidates in each step; the selection above needs only the best
`width + number of EOS ids` of each prefix, which is what rollouts ask for. A width of 1 is greedy search, there and
here.

Exact means: the same hypotheses wherever no two candidates are closer than the float rounding of their sums (ours are
float64, transformers' float32). Ties go to the better prefix, then to the token that the engine lists first.

Usage::

    search = BeamSearch("item-7/beam", prompt_ids, width=5, max_tokens=32, eos_ids=frozenset({2}))
    requests = search.start()                       # or search.seed(greedy response)
    while requests: ... requests = search.receive(response)
    search.hypotheses()
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from evaluator.engine.base import Generate, Response

# What admitting one more request costs an engine, in tokens of an already running one: the part of the prompt's last
# cache block that is computed again (16 tokens on average with blocks of 32), and the bookkeeping.
REQUEST_COST = 8.0
# An item waits for the longest of its rollouts. Measured on the bundled model, 72 items of width 5: rollouts of at most
# 1, 4 and 32 tokens take 2507, 1072 and 1034 requests, but 38, 118 and 150 engine steps until the last item is done.
LONGEST_ROLLOUT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One finished beam."""

    token_ids: tuple[int, ...]  # generated ids, EOS included where it ended the beam
    logprob: float  # summed, nats
    score: float  # logprob / number of token_ids


class _Node:
    """A prefix: its expansion once known, and the longer prefixes that the same rollout brought."""

    __slots__ = ("asked", "children", "top_ids", "top_logprobs")

    def __init__(self) -> None:
        self.asked = False
        self.top_ids: tuple[int, ...] | None = None
        self.top_logprobs: tuple[float, ...] = ()
        self.children: dict[int, _Node] = {}


@dataclass(frozen=True, slots=True)
class _Beam:
    total: float  # summed log-probability, nats
    token_ids: tuple[int, ...]
    node: _Node


# (negated sum, index of the live beam, index in its expansion): tuples, because they are sorted a few dozen at a time.
_Candidate = tuple[float, int, int]


class BeamSearch:
    """The beam search of one prompt: give it responses, it gives requests until it is `done`."""

    def __init__(
        self,
        request_prefix: str,
        prompt_ids: tuple[int, ...],
        *,
        width: int,
        max_tokens: int,
        eos_ids: frozenset[int],
        request_cost: float = REQUEST_COST,
    ) -> None:
        if width < 1 or max_tokens < 1:
            raise ValueError(f"width and max_tokens must be at least 1: width={width}, max_tokens={max_tokens}")
        self._request_prefix = request_prefix
        self._prompt_ids = prompt_ids
        self._width = width
        self._max_tokens = max_tokens
        self._eos_ids = eos_ids
        self._request_cost = request_cost
        self._root = _Node()
        self._live = [_Beam(0.0, (), self._root)]
        self._finished: list[Hypothesis] = []  # best first, at most `width`
        self._in_flight: dict[str, _Node] = {}
        self._step = 0
        self._next_request = 0
        # How often the most likely continuation of the i-th live beam was itself live one step later: what says how
        # long a rollout pays. Starts from a prior of 0.8.
        self._followed = [1.6] * width
        self._steps_of = [2.0] * width
        self.done = False
        self.error: str | None = None  # why the engine could not answer; the search is then done without hypotheses

    @property
    def top_logprobs(self) -> int:
        """How many top log-probabilities a seed response must have been asked with, at least."""
        return self._width + len(self._eos_ids)

    def start(self) -> list[Generate]:
        """The first request: a greedy rollout of full length."""
        return [self._request(self._live[0], self._max_tokens)]

    def seed(self, response: Response) -> list[Generate]:
        """Start from the prompt's own greedy response instead of `start`.

        It must have been asked with max_tokens as here, temperature 0 and top_logprobs >= `self.top_logprobs`
        (2 * width is enough for up to `width` EOS ids). Raises ValueError if it has no top log-probabilities.
        """
        if response.status == "ok" and len(response.top_ids) != len(response.token_ids):
            raise ValueError(f"{response.request_id}: a seed of a beam search needs top_logprobs at every step")
        return self._accept(self._root, response)

    def receive(self, response: Response) -> list[Generate]:
        """Take the answer to one of our requests; returns those that follow from it (possibly none as yet).

        Responses that arrive after `done` are accepted and ignored.
        """
        return self._accept(self._in_flight.pop(response.request_id), response)

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The `width` best beams, best first; fewer only if fewer sequences exist, none after an engine error."""
        assert self.done, "hypotheses() before the search is done"
        return tuple(self._finished)

    def _accept(self, node: _Node, response: Response) -> list[Generate]:
        if self.done:
            return []
        if response.status != "ok":
            self.error = response.error or response.status
            self._finish([])
            return []
        for token, ids, logprobs in zip(response.token_ids, response.top_ids, response.top_logprobs, strict=True):
            node.top_ids, node.top_logprobs = ids, logprobs
            node = node.children.setdefault(token, _Node())
        return self._advance()

    def _advance(self) -> list[Generate]:
        """Take as many steps as the known expansions allow; returns requests for those that stand in the way."""
        while not self.done:
            candidates = self._candidates()
            missing = self._missing(candidates)
            if missing:
                return [
                    self._request(self._live[index], self._rollout_length(index))
                    for index in missing
                    if not self._live[index].node.asked
                ]
            self._take_step(candidates)
        return []

    def _candidates(self) -> list[_Candidate]:
        """Continuations of all expanded live beams, best first, ties to the better beam, then to the earlier token."""
        needed = self.top_logprobs
        candidates: list[_Candidate] = []
        for index, beam in enumerate(self._live):
            total = beam.total
            candidates += [(-(total + lp), index, k) for k, lp in enumerate(beam.node.top_logprobs[:needed])]
        candidates.sort()
        return candidates

    def _missing(self, candidates: list[_Candidate]) -> list[int]:
        """Live beams without an expansion whose continuations could still be selected in this step.

        No continuation is more likely than its prefix: with `width` known continuations that do not end and are
        strictly better than a prefix, that prefix cannot contribute, neither a live beam nor a finished one.
        """
        unknown = [index for index, beam in enumerate(self._live) if beam.node.top_ids is None]
        if not unknown:
            return unknown
        going_on = 0
        for negated, index, k in candidates:
            top_ids = self._live[index].node.top_ids
            assert top_ids is not None
            going_on += top_ids[k] not in self._eos_ids
            if going_on == self._width:
                return [index for index in unknown if -self._live[index].total <= negated]
        return unknown

    def _take_step(self, candidates: list[_Candidate]) -> None:
        width, eos_ids = self._width, self._eos_ids
        self._step += 1
        at_end = self._step == self._max_tokens
        live: list[_Beam] = []
        followed = [0] * len(self._live)
        for position, (negated, index, k) in enumerate(candidates):
            if position >= width and (at_end or len(live) == width):
                break
            beam = self._live[index]
            assert beam.node.top_ids is not None
            token = beam.node.top_ids[k]
            if not at_end and token not in eos_ids:
                if len(live) < width:
                    node = beam.node.children.pop(token, None) or _Node()
                    live.append(_Beam(-negated, (*beam.token_ids, token), node))
                    followed[index] |= k == 0
            elif position < width:
                score = -negated / self._step
                hypothesis = Hypothesis(token_ids=(*beam.token_ids, token), logprob=-negated, score=score)
                self._finished.append(hypothesis)
        for index, was_followed in enumerate(followed):
            self._followed[index] += was_followed
            self._steps_of[index] += 1.0
        self._finished.sort(key=lambda hypothesis: -hypothesis.score)  # stable: of equals the earlier stays first
        del self._finished[width:]
        self._live = live
        if at_end or not live or self._cannot_improve():
            self._finish(self._finished)

    def _cannot_improve(self) -> bool:
        """transformers' `_check_early_stop_heuristic` for early_stopping = False and length_penalty = 1."""
        if len(self._finished) < self._width:
            return False
        return self._width == 1 or self._live[0].total / self._step <= self._finished[-1].score

    def _finish(self, hypotheses: list[Hypothesis]) -> None:
        self.done = True
        self._finished = hypotheses
        self._live = []
        self._root = _Node()

    def _rollout_length(self, index: int) -> int:
        """How many tokens to ask for after the i-th live beam.

        If its continuation stays live with probability p per step, the n-th token of the rollout is used with
        probability p ** n; it costs 1, and fetching it later by another request costs `request_cost` + 1. It pays while
        p ** n * (1 + request_cost) >= 1.
        """
        survival = self._followed[index] / self._steps_of[index]
        longest = min(LONGEST_ROLLOUT, self._max_tokens - self._step)
        if survival >= 1.0:
            return longest
        return max(1, min(longest, 1 + int(-math.log(1.0 + self._request_cost) / math.log(survival))))

    def _request(self, beam: _Beam, max_tokens: int) -> Generate:
        request_id = f"{self._request_prefix}/{self._next_request}"
        self._next_request += 1
        beam.node.asked = True
        self._in_flight[request_id] = beam.node
        return Generate(
            request_id=request_id,
            prompt_ids=self._prompt_ids + beam.token_ids,
            max_tokens=max_tokens,
            top_logprobs=self.top_logprobs,
        )
