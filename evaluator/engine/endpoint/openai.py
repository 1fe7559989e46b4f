"""The dialect of any server with `/v1/completions`: texts in, texts out.

The server tokenises by itself, so nothing can be scored. A prompt whose text makes
other tokens is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.core.errors import InputError
from evaluator.engine.base import UNABLE, Generate, Response
from evaluator.engine.endpoint.client import Client, Refused, Unusable
from evaluator.engine.endpoint.dialect import (
    Description,
    Dialect,
    answer_to,
    completion,
    member,
    only_choice,
    served_models,
    stated,
)

_MISSING = (404, 405, 501)  # statuses of an address that a server does not have


class OpenAI(Dialect):
    name = "openai"
    token_ids = scores = distributions = False
    most_top = 0

    @staticmethod
    async def describe(client: Client, model: str) -> Description | None:
        served = list(await served_models(client, model))
        if not model and len(served) > 1:
            raise InputError(f"model {model!r} is not served; {served[:20]} are")
        return Description(server="openai", model=model or served[0])

    async def generate(self, request: Generate) -> Response:
        text = self.tokenizer.decode(request.prompt_ids)
        if self._encode(text) != request.prompt_ids:
            raise Unusable(f"the prompt's text makes other tokens {UNABLE}")
        named = {"model": self.described.model, "prompt": text}
        answer = await self._complete(named | completion(request))
        most, choice = request.max_tokens, only_choice(answer)
        ids = self._encode(_whole(member(choice, "text", str)))[:most]
        reason = member(choice, "finish_reason", str)
        # a text may be fewer tokens than were generated
        generated = stated(answer.get("usage"), "completion_tokens") or len(ids)
        if reason not in ("stop", "length") or (
            reason == "length" and (generated < most or not ids)
        ):
            raise Unusable(f"the server cut its answer off: {reason[:80]!r}")
        if reason == "stop" and self.eos_ids and len(ids) < most:
            ids = (*ids, min(self.eos_ids))
        length = self.cut(ids, request.stop_ids) or len(ids)
        return answer_to(request, ids[:length], ())

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    async def _complete(self, body: Mapping[str, Any]) -> Any:
        """Raises InputError for an API of chats alone."""
        most = body["max_tokens"]
        try:
            return await self.client.post("/v1/completions", body, tokens=most)
        except Refused as error:
            if error.status not in _MISSING:
                raise
            raise InputError(
                f"endpoint of {body['model']!r}: has no /v1/completions ({error}); an"
                " API of chats alone puts other words around each prompt; serve the"
                " model with `vllm serve` or `llama-server`"
            ) from error


def _whole(text: str) -> str:
    """Raises Unusable for half a character, which no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = error.start
        raise Unusable(f"the server's text has half a character at {where}") from None
    return text
