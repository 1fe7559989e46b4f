"""The dialect of vLLM's own server (`vllm serve`).

It scores a prompt with its continuation in one request, by `prompt_logprobs`, with the
rank of each token. It counts a rank's ties before the token, where the engine `vllm`
counts only likelier tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.core.errors import EngineError, InputError
from evaluator.engine.base import UNABLE, Generate, Response, Score
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

_TOKEN = "token_id:"  # before an id, in place of the token's text  # noqa: S105
# every sampler but nucleus and temperature, whatever the server's defaults are
_PLAIN = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "skip_special_tokens": False,
    # `stop_token_ids` has the base's
    "ignore_eos": True,
}


class VLLMServer:
    name = "vllm"
    token_ids = scores = True
    distributions = False
    most_top = 20  # its --max-logprobs by default

    async def describe(self, client: Client, model: str) -> Description | None:
        try:
            version = await client.get("/version")
            listed = member(await client.get("/v1/models"), "data", list)
        except Unreachable:
            raise
        except EngineError:
            return None
        if not isinstance(version, dict) or "version" not in version:
            return None
        served = {member(entry, "id", str): entry for entry in listed}
        if not served or (model and model not in served):
            raise InputError(f"model {model!r} is not served; {list(served)} are")
        name = model or next(iter(served))
        return Description(
            server=f"vllm {version['version']}",
            model=name,
            context=stated(served[name], "max_model_len"),
        )

    async def generate(
        self, client: Client, model: Model, request: Generate
    ) -> Response:
        wanted = max(request.top_logprobs, 1 if request.temperature == 0 else 0)
        body: dict[str, Any] = {
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "stop_token_ids": [*model.eos_ids, *request.stop_ids],
        }
        if wanted:
            body["logprobs"] = wanted
        if request.seed is not None:
            body["seed"] = request.seed
        choice = await _complete(client, model, request.prompt_ids, body)
        ids = tokens(choice, "token_ids", model, request.max_tokens)
        length = cut(ids, model, request.stop_ids)
        if not length and len(ids) < request.max_tokens:
            raise EngineError(
                f"the server ended its answer after {len(ids)} tokens:"
                f" {choice.get('finish_reason')!r}"
            )
        ids = ids[: length or len(ids)]
        if not wanted:
            return Response(request_id=request.request_id, token_ids=ids)
        logprobs, tops = _reported(choice, model, ids, wanted)
        if request.temperature == 0:
            for own, top in zip(logprobs, tops, strict=True):
                checked_greedy(own, top, ROUNDING)
        listed = [ordered(top, request.top_logprobs) for top in tops]
        if not request.top_logprobs:
            listed = []
        return Response(
            request_id=request.request_id,
            token_ids=ids,
            logprobs=logprobs,
            top_ids=tuple(tuple(best) for best, _ in listed),
            top_logprobs=tuple(tuple(values) for _, values in listed),
        )

    async def score(self, client: Client, model: Model, request: Score) -> Response:
        prompt = request.prompt_ids + request.continuation_ids
        body = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 1}
        choice = await _complete(client, model, prompt, body)
        positions = member(choice, "prompt_logprobs", list)
        if len(positions) != len(prompt):
            raise EngineError(
                f"the server scored {len(positions)} of {len(prompt)} tokens"
            )
        for token, position in zip(prompt[1:], positions[1:], strict=True):
            member(position, str(token), dict)  # else it is another place's
        logprobs, ranks, top_ids, top_logprobs = [], [], [], []
        for token, position in zip(
            request.continuation_ids, positions[len(request.prompt_ids) :], strict=True
        ):
            scored = member(position, str(token), dict)
            top = {
                _id(name): logprob(member(entry, "logprob", (int, float)))
                for name, entry in position.items()
            }
            checked_top(top, 1, model)
            best, value = checked_score(token, top[token], top)
            logprobs.append(top[token])
            ranks.append(member(scored, "rank", int))
            top_ids.append((best,))
            top_logprobs.append((value,))
        return Response(
            request_id=request.request_id,
            token_ids=request.continuation_ids,
            logprobs=tuple(logprobs),
            ranks=tuple(ranks),
            top_ids=tuple(top_ids),
            top_logprobs=tuple(top_logprobs),
        )

    async def distribution(
        self, client: Client, model: Model, prompt_ids: tuple[int, ...]
    ) -> list[float]:
        raise EngineError(f"a vLLM server gives no whole distributions {UNABLE}")

    async def biased(
        self,
        client: Client,
        model: Model,
        prompt_ids: tuple[int, ...],
        token: int,
        bias: float,
    ) -> int:
        body = {"max_tokens": 1, "temperature": 0.0, "logit_bias": {str(token): bias}}
        choice = await _complete(client, model, prompt_ids, body)
        return tokens(choice, "token_ids", model, 1)[0]


async def _complete(
    client: Client, model: Model, prompt: tuple[int, ...], body: Mapping[str, Any]
) -> Any:
    """The only choice. Raises EngineError for another model's, or of another
    prompt."""
    answer = await client.post(
        "/v1/completions",
        {**_PLAIN, "model": model.name, "prompt": prompt, **body},
        tokens=body["max_tokens"],
    )
    name = member(answer, "model", str)
    if name != model.name:
        raise EngineError(f"the server answered as model {name!r}, not {model.name!r}")
    usage = member(answer, "usage", dict)
    read = member(usage, "prompt_tokens", int)
    if read != len(prompt):
        raise EngineError(f"the server read {read} tokens of a prompt of {len(prompt)}")
    choices = member(answer, "choices", list)
    if len(choices) != 1:
        raise EngineError(f"the server gave {len(choices)} answers to one request")
    if member(choices[0], "prompt_token_ids", list) != list(prompt):
        raise EngineError("the server read another prompt")
    checked_count(choices[0], "token_ids", stated(usage, "completion_tokens"))
    return choices[0]


def _reported(
    choice: Any, model: Model, ids: tuple[int, ...], wanted: int
) -> tuple[tuple[float, ...], list[dict[int, float]]]:
    """The log-probability of each token, and the likeliest ones in its place."""
    reported = member(choice, "logprobs", dict)
    logprobs = [logprob(value) for value in member(reported, "token_logprobs", list)]
    steps = member(reported, "top_logprobs", list)
    named = [_id(name) for name in member(reported, "tokens", list)]
    if named[: len(ids)] != list(ids):
        raise EngineError("the server reports log-probabilities of other tokens")
    if not len(logprobs) == len(steps) >= len(ids):
        raise EngineError(
            f"the server reports {len(logprobs)} log-probabilities of {len(ids)} tokens"
        )
    tops = []
    for token, own, step in zip(ids, logprobs, steps, strict=False):
        if not isinstance(step, Mapping) or not step:
            raise EngineError("the server reports no likeliest tokens")
        top = {_id(name): logprob(value) for name, value in step.items()}
        checked_top(top, wanted, model)
        checked_score(token, own, top)
        tops.append(top)
    return tuple(logprobs[: len(ids)]), tops


def _id(name: Any) -> int:
    """The id of a token in an answer. Raises EngineError for another name."""
    number = str(name).removeprefix(_TOKEN)
    if not (number.isascii() and number.isdecimal() and len(number) < 20):
        raise EngineError(f"the server names a token {number[:80]!r}, not its id")
    return int(number)
