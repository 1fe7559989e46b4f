"""The dialect of llama.cpp's server (`llama-server`, xllamacpp).

It reports log-probabilities of the raw distribution, before samplers and biases. A bias
of 1000 samples a given token, so one request of one token scores it. The cache has the
prompt by then. The server has no ranks: of the 64 likeliest tokens they are counted, of
others in the whole distribution (half a second for 50,000 tokens).

Its numbers depend on how the cache was filled (slots.py). So a greedy answer reads its
prompt anew, as a fresh server would, and the engine holds a slot for each request. Only
the later answers of a beam search use whatever the cache has, as there are many.

It leaves out the log-probabilities of a token that ends inside a character. Such a
position is requested again, with the end of the text as the forced token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.engine.base import Generate, Response, Score
from evaluator.engine.endpoint.client import Client, Unusable
from evaluator.engine.endpoint.dialect import (
    ROUNDING,
    Description,
    Dialect,
    Step,
    Top,
    answer_to,
    checked_count,
    checked_greedy,
    logprob,
    member,
    served_model,
    stated,
)
from evaluator.engine.endpoint.slots import Ids, Slot

_FORCE = 1000.0
_NOISE = 0.25  # nats: the cache changed 600 log-probabilities by up to 0.065
_FEW = 64  # likeliest tokens, among which a rank is sought first
# every sampler but nucleus and temperature, switched off
_PLAIN = {
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "dynatemp_range": 0.0,
    # the temperature first, as everywhere else
    "samplers": ["temperature", "top_p"],
    "return_tokens": True,
    "cache_prompt": True,
}
# reads a prompt, whatever the cache has
_READ = {"n_predict": 1, "temperature": 0.0, "n_probs": 0, "cache_prompt": False}
_RANDOM = 2**32 - 1  # as a seed: another one each time


class Llama(Dialect):
    name = "llama"
    token_ids = scores = distributions = True
    most_top = 2**20

    @staticmethod
    async def describe(client: Client, model: str) -> Description | None:
        try:
            props = await client.get("/props")
            settings = member(props, "default_generation_settings", dict)
        except Unusable:
            return None
        name, entry = await served_model(client, model)
        meta = entry.get("meta")
        context = stated(settings, "n_ctx")
        return Description(
            server=f"llama.cpp {props.get('build_info', '')}".strip(),
            model=model or name.rpartition("/")[2],
            # at its last token an answer counts as truncated
            context=context and context - 1,
            slots=stated(props, "total_slots"),
            vocabulary=stated(meta, "n_vocab"),
            file_type=str(props.get("model_ftype") or "") or None,
            parameters=stated(meta, "n_params"),
            template=str(props.get("chat_template") or ""),
        )

    async def generate(self, request: Generate) -> Response:
        greedy = request.temperature == 0
        wanted = max(request.top_logprobs, 1 if greedy else 0)
        search = request.stream is not None
        ids: tuple[int, ...] = ()
        steps: list[Step] = []
        cached = None
        # The server also ends at tokens that do not end an answer of the base. Then
        # the answer goes on.
        while len(ids) < request.max_tokens and not self.cut(ids, request.stop_ids):
            prompt = request.prompt_ids + ids
            left = request.max_tokens - len(ids)
            body = {
                "n_predict": left,
                "temperature": request.temperature,
                "top_p": request.top_p,
                "n_probs": wanted,
                "cache_prompt": not greedy,
            }
            if request.seed is not None:
                body["seed"] = (request.seed + len(ids)) % _RANDOM
            answer = await self._complete(prompt, body, search=search)
            new = self.tokens(answer, "tokens", left)
            length = self.cut(new, request.stop_ids) or left
            if wanted:
                own = await self._steps(prompt, new, answer, wanted, greedy=greedy)
                steps += own[:length]
            cached = cached if ids else _cached(answer, prompt)
            ids += new[:length]
        return answer_to(request, ids, steps, cached=cached)

    async def _steps(
        self, prompt: Ids, new: Ids, answer: Any, wanted: int, *, greedy: bool
    ) -> list[Step]:
        placed = _placed(_reported(answer), new)
        steps = []
        # the last one first: the cache then has the tokens before it as they were read
        for place, token in reversed(list(enumerate(new))):
            if (reported := placed.get(place)) is not None:
                top, slack = _top(reported), ROUNDING
                self.check_top(top, wanted)
                own = logprob(reported.get("logprob"))
            else:
                anew = place == 0 and not _cached(answer, prompt)
                before, slack = (*prompt, *new[:place]), _NOISE
                own, top = await self._step(before, token, wanted, anew=anew)
            if greedy:
                checked_greedy(own, top, slack)
            steps.append((own, top))
        return steps[::-1]

    async def score(self, request: Score) -> Response:
        steps: list[Step] = []
        ranks: tuple[int, ...] = ()
        cached = None
        for place, token in enumerate(request.continuation_ids):
            prompt = request.prompt_ids + request.continuation_ids[:place]
            ranked = request.ranked and place == 0
            body = _forced(token, _FEW if ranked else 1)
            answer = await self._complete(prompt, body)
            _check_sampled(answer, token)
            reported = _reported(answer)
            if not reported:
                own, top = await self._step(prompt, token, _FEW)
            elif member(reported[0], "id", int) != token:
                raise Unusable("the server reports on a token that was not forced")
            else:
                own, top = logprob(reported[0].get("logprob")), _top(reported[0])
            self.check_top(top, 1)
            if ranked and token not in top and own < min(top.values()):
                top = await self._likeliest(prompt, self.vocabulary)
                own = top[token]
            steps.append((own, top))
            if place == 0:
                cached = _cached(answer, prompt)
            if ranked:
                ranks = (1 + sum(other > own for other in top.values()),)
        ids = request.continuation_ids
        return answer_to(request, ids, steps, ranks=ranks, cached=cached)

    async def distribution(self, prompt_ids: tuple[int, ...]) -> list[float]:
        top = await self._likeliest(prompt_ids, self.vocabulary)
        return [top[token] for token in range(self.vocabulary)]

    async def biased(self, prompt_ids: tuple[int, ...], token: int, bias: float) -> int:
        body = _forced(token, 0) | {"logit_bias": [[token, bias]]}
        answer = await self._complete(prompt_ids, body)
        return self.tokens(answer, "tokens", 1)[0]

    async def _step(
        self, prompt: Ids, token: int, count: int, *, anew: bool = False
    ) -> Step:
        """A token's log-probability, requested apart, and the likeliest tokens."""
        top = await self._likeliest(prompt, count, anew=anew)
        if token not in top:
            top = await self._likeliest(prompt, self.vocabulary)
        return top[token], top

    async def _likeliest(self, prompt: Ids, count: int, *, anew: bool = False) -> Top:
        """The likeliest tokens after a prompt. An end of the text is forced, which has
        no part of a character."""
        end = min(self.eos_ids, default=0)
        body = _forced(end, count) | {"cache_prompt": not anew}
        answer = await self._complete(prompt, body)
        _check_sampled(answer, end)
        reported = _reported(answer)
        if not reported:
            raise Unusable("the server reports no likeliest tokens")
        top = _top(reported[0])
        self.check_top(top, count)
        return top

    async def _complete(
        self, prompt: Ids, body: Mapping[str, Any], *, search: bool = False
    ) -> Any:
        """An answer to a prompt, of a beam `search` or not. Raises Unusable if the
        server has read another one, or is another model's."""
        if self.slots is None:
            answer = await self._send(prompt, body)
        else:
            async with self.slots.place(prompt) as slot:
                anew = not body.get("cache_prompt", True)
                if search and len(prompt) > len(slot.read) and slot.has_begun(prompt):
                    body = {**body, "cache_prompt": True}
                if slot.root and slot.read != slot.root and not anew:
                    await self._send(slot.root, _READ, slot)
                answer = await self._send(prompt, body, slot)
        read = member(answer, "tokens_evaluated", int)
        if read != len(prompt) or answer.get("truncated"):
            raise Unusable(
                f"the server read {read} tokens of a prompt of {len(prompt)}, or cut"
                " its answer off"
            )
        checked_count(answer, "tokens", stated(answer, "tokens_predicted"))
        model = self.described.model
        name = str(answer.get("model", model)).rpartition("/")[2]
        if name != model.rpartition("/")[2]:
            raise Unusable(f"the server answered as model {name!r}, not {model!r}")
        return answer

    async def _send(
        self, prompt: Ids, body: Mapping[str, Any], slot: Slot | None = None
    ) -> Any:
        request = {**_PLAIN, "prompt": prompt, **body}
        read: Ids = ()
        if slot is not None:
            request["id_slot"] = slot.number
            read = slot.after(prompt, whole=not request["cache_prompt"])
            slot.read = ()  # if the request fails, nobody knows
        most = body["n_predict"]
        answer = await self.client.post("/completion", request, tokens=most)
        if slot is not None:
            slot.read = read
        return answer


async def tokenised(client: Client, text: str) -> tuple[int, ...] | None:
    """The ids that a server's own tokenizer makes of a text; None: it does not tell."""
    body = {"content": text, "add_special": True, "parse_special": False}
    try:
        return tuple(member(await client.post("/tokenize", body), "tokens", list))
    except Unusable:
        return None


def _forced(token: int, top: int) -> dict[str, Any]:
    """What samples a token, and reports on the likeliest ones in its place."""
    return {
        "n_predict": 1,
        "temperature": 0.0,
        "n_probs": top,
        "logit_bias": [[token, _FORCE]],
    }


def _check_sampled(answer: Any, token: int) -> None:
    if (sampled := member(answer, "tokens", list)) != [token]:
        raise Unusable(
            f"the server sampled the tokens {sampled[:3]}, not the forced {token}"
        )


def _reported(answer: Any) -> list[Any]:
    """What an answer reports of its tokens. The field is missing where it is empty."""
    if "completion_probabilities" not in answer:
        return []
    steps: list[Any] = member(answer, "completion_probabilities", list)
    return steps


def _placed(reported: list[Any], new: Ids) -> dict[int, Any]:
    """The reported steps by their places among new tokens, of which some are missing.
    A step that two places fit has none. Raises Unusable for other tokens."""
    ids = [member(step, "id", int) for step in reported]
    first = _places(ids, new)
    last = [len(new) - 1 - place for place in _places(ids[::-1], new[::-1])][::-1]
    if len(first) < len(ids):
        raise Unusable("the server reports on other tokens than those of its answer")
    places = zip(first, last, reported, strict=True)
    return {place: step for place, other, step in places if place == other}


def _places(ids: Ids, new: Ids) -> list[int]:
    """The first places of new tokens that have the ids in this order."""
    places: list[int] = []
    for place, token in enumerate(new):
        if len(places) < len(ids) and token == ids[len(places)]:
            places.append(place)
    return places


def _top(step: Any) -> Top:
    """The reported tokens of a step, with their log-probabilities; at least one."""
    top = {
        member(entry, "id", int): logprob(entry.get("logprob"))
        for entry in member(step, "top_logprobs", list)
    }
    if not top:
        raise Unusable("the server reports no likeliest tokens")
    return top


def _cached(answer: Any, prompt: Ids) -> int | None:
    timings = answer.get("timings")
    number = timings.get("cache_n") if isinstance(timings, Mapping) else None
    return number if type(number) is int and 0 <= number <= len(prompt) else None
