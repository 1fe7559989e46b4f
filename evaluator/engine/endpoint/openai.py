"""The dialect of any server with `/v1/completions`: texts in, texts out.

The server tokenises by itself, so nothing can be scored. A prompt whose text makes
other tokens is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.core.errors import EngineError, InputError
from evaluator.engine.base import UNABLE, Generate, Response, Score
from evaluator.engine.endpoint.client import Client, Refused
from evaluator.engine.endpoint.dialect import Description, Model, cut, member, stated

_MISSING = (404, 405, 501)  # statuses of an address that a server does not have


class OpenAI:
    name = "openai"
    token_ids = scores = distributions = False
    most_top = 0

    async def describe(self, client: Client, model: str) -> Description | None:
        listed = member(await client.get("/v1/models"), "data", list)
        names = [member(entry, "id", str) for entry in listed]
        if model not in names and (model or len(names) != 1):
            raise InputError(f"model {model!r} is not served; {names[:20]} are")
        return Description(server="openai", model=model or names[0])

    async def generate(
        self, client: Client, model: Model, request: Generate
    ) -> Response:
        assert model.decode is not None
        assert model.encode is not None
        text = model.decode(request.prompt_ids)
        if model.encode(text) != request.prompt_ids:
            raise EngineError(f"the prompt's text makes other tokens {UNABLE}")
        body: dict[str, Any] = {
            "model": model.name,
            "prompt": text,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
        }
        if request.seed is not None:
            body["seed"] = request.seed
        answer = await _complete(client, body)
        most, choices = request.max_tokens, member(answer, "choices", list)
        if len(choices) != 1:
            raise EngineError(f"the server gave {len(choices)} answers to one request")
        ids = model.encode(member(choices[0], "text", str))[:most]
        reason = member(choices[0], "finish_reason", str)
        generated = stated(answer.get("usage"), "completion_tokens") or most
        if reason not in ("stop", "length") or (
            reason == "length" and generated < most
        ):
            raise EngineError(f"the server cut its answer off: {reason[:80]!r}")
        if reason == "stop" and model.eos_ids and len(ids) < most:
            ids = (*ids, min(model.eos_ids))
        length = cut(ids, model, request.stop_ids) or len(ids)
        return Response(request_id=request.request_id, token_ids=ids[:length])

    async def score(self, client: Client, model: Model, request: Score) -> Response:
        raise EngineError(f"a server of texts scores no tokens {UNABLE}")

    async def distribution(
        self, client: Client, model: Model, prompt_ids: tuple[int, ...]
    ) -> list[float]:
        raise EngineError(f"a server of texts gives no distributions {UNABLE}")

    async def biased(
        self,
        client: Client,
        model: Model,
        prompt_ids: tuple[int, ...],
        token: int,
        bias: float,
    ) -> int:
        raise EngineError(f"a server of texts has no tokens {UNABLE}")


async def _complete(client: Client, body: Mapping[str, Any]) -> Any:
    """Raises InputError for an API of chats alone."""
    try:
        return await client.post("/v1/completions", body, tokens=body["max_tokens"])
    except Refused as error:
        if error.status not in _MISSING:
            raise
        raise InputError(
            f"endpoint of {body['model']!r}: has no /v1/completions ({error}); an API"
            " of chats alone puts other words around each prompt; serve the model with"
            " `vllm serve` or `llama-server`"
        ) from error
