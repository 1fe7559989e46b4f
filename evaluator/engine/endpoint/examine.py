"""What a server can do, found out by questions with a known answer.

A server may ignore an option in silence, and then scores are wrong without an error. So
nothing is believed:

- the score of a greedy answer must equal the answer's own log-probabilities,
- the same score must come again after another one,
- a higher temperature must not change the log-probabilities,
- their differences must be the model's own: a bias somewhat smaller than the difference
  of two tokens leaves the likelier one first, and a somewhat larger one does not,
- so must they themselves be: samples are among the likeliest tokens as often as the
  reported probabilities say.

A server that fails one of these scores nothing (`Abilities.why`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from evaluator.checkpoints.served import Abilities
from evaluator.engine.base import Generate, Response, Score
from evaluator.engine.endpoint.client import Unusable
from evaluator.engine.endpoint.dialect import Dialect

PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "One, two, three, four,",
    "The opposite of hot is",
    "In the year 1969, people",
    "La capital de España es",
)
_TOKENS = 12  # of an answer in the fingerprint
_SCORED = 3  # tokens of a planted answer
_CHECKED = 3  # prompts whose scores are checked, or that are drawn from
# nats: what another history of the cache changes on llama.cpp, and no wrong score
_NOISE = 0.5
_TOPS = (64, 20, 5, 1)  # likeliest tokens that are requested, until one is accepted
_PLACE = 4  # of the likeliest token whose rank is checked
_SPREADS = 5  # standard deviations that samples may miss their probability by
_TRIES = 3  # for an answer that rounding may change
Prompts = Sequence[tuple[int, ...]]
Answers = Sequence[tuple[int, ...]]


async def fingerprint(server: Dialect, prompts: Prompts) -> tuple[tuple[int, ...], ...]:
    """The greedy answers to fixed prompts. Raises Unusable, also for texts that
    follow the order of the requests."""
    answers = []
    for prompt in prompts:
        answer = await server.generate(_greedy(prompt, _TOKENS))
        answers.append(answer.token_ids)
    if not server.token_ids and not await is_same(server, prompts, answers):
        raise Unusable("the same prompts in another order have other answers")
    return tuple(answers)


def check_echo(tokenizer: Any, prompts: Prompts, answers: Answers) -> None:
    """Raises Unusable if each answer begins with its prompt, or is a part of it."""
    for prompt, answer in zip(prompts, answers, strict=True):
        asked = tokenizer.decode(prompt, skip_special_tokens=True)
        said = tokenizer.decode(answer, skip_special_tokens=True)
        said = said.rstrip("\N{REPLACEMENT CHARACTER}")  # it may end in a character
        if not said or said[: len(asked)] != asked[: len(said)]:
            return
    raise Unusable("the server repeats the prompt before its answer")


async def is_same(
    server: Dialect, prompts: Prompts, known: Answers, *, tries: int = _TRIES
) -> bool:
    """Whether the model behind a server still answers as `known`. Rounding may turn a
    tie, so a different answer gets two more tries. The last prompt comes first: an answer that belongs to the
    request before is another one than in `fingerprint`."""
    for prompt, expected in reversed(list(zip(prompts, known, strict=True))):
        for _ in range(tries):
            answer = await server.generate(_greedy(prompt, _TOKENS))
            if answer.token_ids == expected:
                break
        else:
            return False
    return True


async def scores_alike(
    server: Dialect,
    prompts: Prompts,
    known: Answers,
    planted: Sequence[tuple[float, ...]],
) -> bool:
    """Whether it still scores its answers as `planted`, if it scores at all."""
    for prompt, expected, before in zip(prompts, known, planted, strict=False):
        if not _alike(await _planted(server, prompt, expected), before):
            return False
    return True


async def planted_scores(
    server: Dialect, prompts: Prompts, answers: Answers
) -> tuple[tuple[float, ...], ...]:
    """A score after each prompt. Raises Unusable."""
    scores = []
    for prompt, answer in zip(prompts, answers, strict=True):
        scores.append(await _planted(server, prompt, answer))
    return tuple(scores)


async def _planted(
    server: Dialect, prompt: tuple[int, ...], answer: tuple[int, ...]
) -> tuple[float, ...]:
    """Of an answer's last token, where the first one belongs: few are as likely."""
    return await _scores(server, prompt, answer[-1:])


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(abs(mine - its) <= _NOISE for mine, its in zip(one, other, strict=True))


async def abilities_of(server: Dialect, prompts: Prompts) -> Abilities:
    """Raises Unreachable, or EngineError if it answers no plain request."""
    answers = await _answers(server, prompts)
    first = answers[0]
    top = len(first.top_ids[0]) if first.top_ids else 0
    again = await server.generate(_greedy(prompts[0], _SCORED, top))
    known = {
        _greedy(prompt, _SCORED): answer.token_ids
        for prompt, answer in zip(prompts[:_CHECKED], answers, strict=False)
    }
    ranks = distributions = False
    drawn = prompts[:_CHECKED]
    try:
        why = await _why_no_scores(server, prompts, answers)
        if not why:
            samples = [
                each
                for seed in (1, 2)
                for each in await _draw(server, drawn, seed, top)
            ]
            why = _why_unlikely(samples)
    except Unusable as error:
        why = str(error)
    if not why:
        ranks = await _has_ranks(server, prompts[0], first)
        distributions = await _has_distributions(server, prompts[0], first)
    return Abilities(
        token_ids=server.token_ids,
        scores=not why,
        why=why,
        ranks=ranks,
        distributions=distributions,
        top=0 if why else min(len(step) for each in answers for step in each.top_ids),
        seeds=await _has_seeds(server, drawn),
        samplers=await server.has_samplers(known),
        repeats=(again.token_ids, again.logprobs) == (first.token_ids, first.logprobs),
        cache=again.cached_tokens is not None,
    )


async def _answers(server: Dialect, prompts: Prompts) -> list[Response]:
    """A greedy answer to each prompt, with as many likeliest tokens as the server
    reports."""
    for top in (*_TOPS, 0):
        if top > server.most_top:
            continue
        requests = [_greedy(prompt, _SCORED, top) for prompt in prompts]
        try:
            return [await server.generate(each) for each in requests]
        except Unusable:
            if not top:
                raise
    raise AssertionError("0 is never too many")


async def _why_no_scores(
    server: Dialect, prompts: Prompts, answers: Sequence[Response]
) -> str:
    """What is wrong with the server's scores; empty: nothing was found."""
    if not server.scores:
        return f"a server of the dialect {server.name} scores no tokens"
    if not all(answer.logprobs and answer.top_ids for answer in answers):
        return "it reports no likeliest tokens"
    firsts = [answer.token_ids[0] for answer in answers]
    checked = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        others = [token for token in firsts if token != answer.token_ids[0]]
        if others and checked < _CHECKED:
            checked += 1
            why = await _why_wrong(server, prompt, answer, others[0])
            if why:
                return why
    return "" if checked else "its answers to different questions begin alike"


async def _why_wrong(
    server: Dialect, prompt: tuple[int, ...], answer: Response, other: int
) -> str:
    """What is wrong with the scores after one prompt; `other`: a less likely token."""
    own = await _scores(server, prompt, answer.token_ids)
    if not _alike(own, answer.logprobs):
        return (
            f"it scores its own greedy answer {sum(own):.3f}, and reported"
            f" {sum(answer.logprobs):.3f} with it"
        )
    first = answer.token_ids[0]
    (less,) = await _scores(server, prompt, (other,))
    (again,) = await _scores(server, prompt, (first,))
    if abs(again - own[0]) > _NOISE:
        return f"it scores the same answer {own[0]:.3f} and {again:.3f}"
    for change, expected in ((-_NOISE, first), (_NOISE, other)):
        bias = own[0] - less + change
        chosen = await server.biased(prompt, other, bias)
        if chosen != expected:
            return (
                f"its log-probabilities of two tokens differ by {own[0] - less:.3f},"
                f" which a bias of {bias:.3f} disproves"
            )
    warm = Generate(
        request_id="warm",
        prompt_ids=prompt,
        max_tokens=1,
        temperature=2.0,
        seed=1,
        top_logprobs=1,
    )
    raised = await server.generate(warm)
    change = abs(raised.top_logprobs[0][0] - answer.top_logprobs[0][0])
    if change > _NOISE / 2:
        return f"a temperature of 2 changes its log-probabilities by {change:.3f}"
    return ""


async def _has_ranks(
    server: Dialect, prompt: tuple[int, ...], answer: Response
) -> bool:
    """Whether a token's rank is its place among the likeliest tokens, up to rounding."""
    listed = answer.top_ids[0]
    if len(listed) <= _PLACE:
        return False
    ranks: list[int] = []
    for token in (listed[0], listed[_PLACE]):
        request = Score(
            request_id="examined",
            prompt_ids=prompt,
            continuation_ids=(token,),
            ranked=True,
        )
        try:
            ranks += (await server.score(request)).ranks[:1]
        except Unusable:
            return False
    return len(ranks) == 2 and ranks[0] <= 2 and abs(ranks[1] - 1 - _PLACE) <= 2


async def _has_distributions(
    server: Dialect, prompt: tuple[int, ...], answer: Response
) -> bool:
    """Whether the whole distribution has the greedy answer's log-probability."""
    if not server.distributions:
        return False
    try:
        row = await server.distribution(prompt)
    except Unusable:
        return False
    return abs(row[answer.token_ids[0]] - answer.logprobs[0]) <= _NOISE


async def _has_seeds(server: Dialect, prompts: Prompts) -> bool:
    """Whether equal seeds draw equal samples, and different ones do not."""
    first, again, other = [
        [answer.token_ids for answer in await _draw(server, prompts, seed)]
        for seed in (1, 1, 2)
    ]
    return first == again and first != other


async def _draw(
    server: Dialect, prompts: Prompts, seed: int, top: int = 0
) -> list[Response]:
    """A sample after each prompt."""
    drawn = []
    for prompt in prompts:
        request = Generate(
            request_id="draw",
            prompt_ids=prompt,
            max_tokens=_TOKENS,
            temperature=1.0,
            seed=seed,
            top_logprobs=top,
        )
        drawn.append(await server.generate(request))
    return drawn


def _why_unlikely(samples: Sequence[Response]) -> str:
    """Whether samples are among the likeliest tokens otherwise than as often as
    these say; empty: they are not."""
    inside, shares = 0, []
    for answer in samples:
        steps = zip(answer.token_ids, answer.top_ids, answer.top_logprobs, strict=True)
        for token, ids, logprobs in steps:
            inside += token in ids
            shares.append(min(1.0, math.fsum(map(math.exp, logprobs))))
    expected = math.fsum(shares)
    spread = math.sqrt(math.fsum(share * (1 - share) for share in shares))
    if abs(inside - expected) <= _SPREADS * spread + 1:
        return ""
    return (
        f"of {len(shares)} tokens of samples {inside} are among the likeliest, and its"
        f" log-probabilities give {expected:.1f}"
    )


def _greedy(prompt: tuple[int, ...], tokens: int, top: int = 0) -> Generate:
    return Generate(
        request_id="examined", prompt_ids=prompt, max_tokens=tokens, top_logprobs=top
    )


async def _scores(
    server: Dialect, prompt: tuple[int, ...], ids: tuple[int, ...]
) -> tuple[float, ...]:
    request = Score(request_id="examined", prompt_ids=prompt, continuation_ids=ids)
    return (await server.score(request)).logprobs
