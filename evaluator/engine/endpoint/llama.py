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

from evaluator.core.errors import EngineError, InputError
from evaluator.engine.base import Generate, Response, Score
from evaluator.engine.endpoint.client import Client, Unreachable
from evaluator.engine.endpoint.dialect import (
    ROUNDING,
    Description,
    Model,
    checked_count,
    checked_greedy,
    checked_score,
    checked_top,
    cut,
    logprob,
    member,
    ordered,
    stated,
    tokens,
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
_Top = dict[int, float]


class Llama:
    name = "llama"
    token_ids = scores = distributions = True
    most_top = 2**20

    async def describe(self, client: Client, model: str) -> Description | None:
        try:
            props = await client.get("/props")
        except Unreachable:
            raise
        except EngineError:
            return None
        if not isinstance(props, dict) or "default_generation_settings" not in props:
            return None
        listed = member(await client.get("/v1/models"), "data", list)
        names = [member(entry, "id", str) for entry in listed]
        if not names or (model and model not in names):
            raise InputError(f"model {model!r} is not served; {names} are")
        meta = listed[names.index(model) if model else 0].get("meta")
        settings = props["default_generation_settings"]
        context = stated(settings, "n_ctx")
        return Description(
            server=f"llama.cpp {props.get('build_info', '')}".strip(),
            model=model or names[0].rpartition("/")[2],
            # at its last token an answer counts as truncated
            context=context and context - 1,
            slots=stated(props, "total_slots"),
            vocabulary=stated(meta, "n_vocab"),
            file_type=str(props.get("model_ftype") or "") or None,
            parameters=stated(meta, "n_params"),
        )

    async def tokenised(self, client: Client, text: str) -> tuple[int, ...] | None:
        """The ids that the server's own tokenizer makes of a text; None: it does not
        tell."""
        body = {"content": text, "add_special": True, "parse_special": False}
        try:
            return tuple(member(await client.post("/tokenize", body), "tokens", list))
        except Unreachable:
            raise
        except EngineError:
            return None

    async def generate(
        self, client: Client, model: Model, request: Generate
    ) -> Response:
        wanted = max(request.top_logprobs, 1 if request.temperature == 0 else 0)
        ids: tuple[int, ...] = ()
        logprobs: list[float] = []
        tops: list[tuple[list[int], list[float]]] = []
        cached = None
        # The server also ends at tokens that do not end an answer of the base. Then
        # the answer goes on.
        while len(ids) < request.max_tokens and not cut(ids, model, request.stop_ids):
            prompt = request.prompt_ids + ids
            left = request.max_tokens - len(ids)
            body = {
                "n_predict": left,
                "temperature": request.temperature,
                "top_p": request.top_p,
                "n_probs": wanted,
                "cache_prompt": request.temperature > 0,
            }
            if request.seed is not None:
                body["seed"] = (request.seed + len(ids)) % _RANDOM
            search = request.stream is not None
            answer = await _complete(client, model, prompt, body, search=search)
            new = tokens(answer, "tokens", model, left)
            greedy = request.temperature == 0
            steps = await self._steps(
                client, model, prompt, new, answer, wanted, greedy=greedy
            )
            length = cut(new, model, request.stop_ids) or left
            for token, own, top in steps[:length]:
                checked_score(token, own, top)
                logprobs.append(own)
                tops.append(ordered(top, request.top_logprobs))
            cached = _cached(answer, prompt) if not ids else cached
            ids += new[:length]
        listed = tops if request.top_logprobs else []
        return Response(
            request_id=request.request_id,
            token_ids=ids,
            logprobs=tuple(logprobs),
            top_ids=tuple(tuple(best) for best, _ in listed),
            top_logprobs=tuple(tuple(values) for _, values in listed),
            cached_tokens=cached,
        )

    async def _steps(
        self,
        client: Client,
        model: Model,
        prompt: tuple[int, ...],
        new: tuple[int, ...],
        answer: Any,
        wanted: int,
        *,
        greedy: bool,
    ) -> list[tuple[int, float, _Top]]:
        """Each new token with its log-probability and the likeliest tokens."""
        if not wanted:
            return []
        placed = _placed(_reported(answer), new)
        steps = []
        # the last one first: the cache then has the tokens before it as they were read
        for place, token in reversed(list(enumerate(new))):
            if (step := placed.get(place)) is not None:
                top, slack = _top(step), ROUNDING
                checked_top(top, wanted, model)
                own = logprob(step.get("logprob"))
            else:
                before, slack = prompt + new[:place], _NOISE
                anew = place == 0 and not _cached(answer, prompt)
                top = await self._likeliest(client, model, before, wanted, anew=anew)
                if token not in top:
                    whole = await self.distribution(client, model, before)
                    top = dict(enumerate(whole))
                own = top[token]
            if greedy:
                checked_greedy(own, top, slack)
            steps.append((token, own, top))
        return steps[::-1]

    async def score(self, client: Client, model: Model, request: Score) -> Response:
        logprobs, top_ids, top_logprobs = [], [], []
        ranks: tuple[int, ...] = ()
        cached = None
        for place, token in enumerate(request.continuation_ids):
            prompt = request.prompt_ids + request.continuation_ids[:place]
            ranked = request.ranked and place == 0
            body = _forced(token, _FEW if ranked else 1)
            answer = await _complete(client, model, prompt, body)
            _check_sampled(answer, token)
            own, top = await self._scored(client, model, prompt, token, answer)
            checked_top(top, 1, model)
            if ranked and token not in top and own < min(top.values()):
                whole = await self.distribution(client, model, prompt)
                own, top = whole[token], dict(enumerate(whole))
            best, value = checked_score(token, own, top)
            logprobs.append(own)
            top_ids.append((best,))
            top_logprobs.append((value,))
            if place == 0:
                cached = _cached(answer, prompt)
            if ranked:
                ranks = (1 + sum(other > own for other in top.values()),)
        return Response(
            request_id=request.request_id,
            token_ids=request.continuation_ids,
            logprobs=tuple(logprobs),
            ranks=ranks,
            top_ids=tuple(top_ids),
            top_logprobs=tuple(top_logprobs),
            cached_tokens=cached,
        )

    async def _scored(
        self,
        client: Client,
        model: Model,
        prompt: tuple[int, ...],
        token: int,
        answer: Any,
    ) -> tuple[float, _Top]:
        """The log-probability of a forced token, and the likeliest tokens."""
        reported = _reported(answer)
        if reported:
            if member(reported[0], "id", int) != token:
                raise EngineError("the server reports on a token that was not forced")
            return logprob(reported[0].get("logprob")), _top(reported[0])
        top = await self._likeliest(client, model, prompt, _FEW)
        if token not in top:
            top = dict(enumerate(await self.distribution(client, model, prompt)))
        return top[token], top

    async def distribution(
        self, client: Client, model: Model, prompt_ids: tuple[int, ...]
    ) -> list[float]:
        top = await self._likeliest(client, model, prompt_ids, model.vocabulary)
        return [top[token] for token in range(model.vocabulary)]

    async def biased(
        self,
        client: Client,
        model: Model,
        prompt_ids: tuple[int, ...],
        token: int,
        bias: float,
    ) -> int:
        body = _forced(token, 0) | {"logit_bias": [[token, bias]]}
        answer = await _complete(client, model, prompt_ids, body)
        return tokens(answer, "tokens", model, 1)[0]

    async def _likeliest(
        self,
        client: Client,
        model: Model,
        prompt: tuple[int, ...],
        count: int,
        *,
        anew: bool = False,
    ) -> _Top:
        """The likeliest tokens after a prompt. An end of the text is forced, which has
        no part of a character."""
        end = min(model.eos_ids, default=0)
        body = _forced(end, count) | {"cache_prompt": not anew}
        answer = await _complete(client, model, prompt, body)
        _check_sampled(answer, end)
        reported = _reported(answer)
        if not reported:
            raise EngineError("the server reports no likeliest tokens")
        top = _top(reported[0])
        checked_top(top, count, model)
        return top


def _forced(token: int, top: int) -> dict[str, Any]:
    """What samples a token, and reports on the likeliest ones in its place."""
    return {
        "n_predict": 1,
        "temperature": 0.0,
        "n_probs": top,
        "logit_bias": [[token, _FORCE]],
    }


async def _complete(
    client: Client,
    model: Model,
    prompt: tuple[int, ...],
    body: Mapping[str, Any],
    *,
    search: bool = False,
) -> Any:
    """An answer to a prompt, of a beam `search` or not. Raises EngineError if the
    server has read another one, or is another model's."""
    if model.slots is None:
        answer = await _send(client, prompt, body)
    else:
        async with model.slots.place(prompt) as slot:
            anew = not body.get("cache_prompt", True)
            if search and len(prompt) > len(slot.read) and slot.has_begun(prompt):
                body = {**body, "cache_prompt": True}
            if slot.root and slot.read != slot.root and not anew:
                await _send(client, slot.root, _READ, slot)
            answer = await _send(client, prompt, body, slot)
    read = member(answer, "tokens_evaluated", int)
    if read != len(prompt) or answer.get("truncated"):
        raise EngineError(
            f"the server read {read} tokens of a prompt of {len(prompt)}, or cut its"
            " answer off"
        )
    checked_count(answer, "tokens", stated(answer, "tokens_predicted"))
    name = str(answer.get("model", model.name)).rpartition("/")[2]
    if name != model.name.rpartition("/")[2]:
        raise EngineError(f"the server answered as model {name!r}, not {model.name!r}")
    return answer


async def _send(
    client: Client, prompt: Ids, body: Mapping[str, Any], slot: Slot | None = None
) -> Any:
    request = {**_PLAIN, "prompt": prompt, **body}
    if slot is None:
        return await client.post("/completion", request, tokens=body["n_predict"])
    request["id_slot"] = slot.number
    read = slot.after(prompt, whole=not request["cache_prompt"])
    slot.read = ()  # if the request fails, nobody knows
    answer = await client.post("/completion", request, tokens=body["n_predict"])
    slot.read = read
    return answer


def _check_sampled(answer: Any, token: int) -> None:
    if (sampled := member(answer, "tokens", list)) != [token]:
        raise EngineError(
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
    A step that two places fit has none. Raises EngineError for other tokens."""
    ids = [member(step, "id", int) for step in reported]
    first = _places(ids, new)
    last = [len(new) - 1 - place for place in _places(ids[::-1], new[::-1])][::-1]
    if len(first) < len(ids):
        raise EngineError("the server reports on other tokens than those of its answer")
    places = zip(first, last, reported, strict=True)
    return {place: step for place, other, step in places if place == other}


def _places(ids: Ids, new: Ids) -> list[int]:
    """The first places of new tokens that have the ids in this order."""
    places: list[int] = []
    for place, token in enumerate(new):
        if len(places) < len(ids) and token == ids[len(places)]:
            places.append(place)
    return places


def _top(step: Any) -> _Top:
    """The reported tokens of a step, with their log-probabilities; at least one."""
    top = {
        member(entry, "id", int): logprob(entry.get("logprob"))
        for entry in member(step, "top_logprobs", list)
    }
    if not top:
        raise EngineError("the server reports no likeliest tokens")
    return top


def _cached(answer: Any, prompt: tuple[int, ...]) -> int | None:
    timings = answer.get("timings")
    number = timings.get("cache_n") if isinstance(timings, Mapping) else None
    return number if type(number) is int and 0 <= number <= len(prompt) else None
