"""The dialect of any server with `/v1/completions`: texts in, texts out.

The server tokenises by itself, so nothing can be scored. A prompt whose text makes
other tokens is refused, and so is one of which the server read another number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

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
    served_model,
    stated,
)

_MISSING = (404, 405, 501)  # statuses of an address that a server does not have
_STRICT = (400, 422)  # of a field that it does not know
_ENDS = ("stop", "eos", "eos_token", "end_turn")  # how servers spell an answer's end
_LENGTH = ("length", "max_tokens")
# a server's own samplers, switched off: no part of OpenAI's API
_EXTENDED = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "repeat_penalty": 1.0,
}


class OpenAI(Dialect):
    name = "openai"
    token_ids = scores = distributions = False
    most_top = 0
    # what was found out by the answers so far
    extended: bool | None = None  # it takes `_EXTENDED`
    starts = False  # it puts its own BOS before a text
    counts = False  # it states how many tokens it read
    answered = ""  # as which model; empty: it does not say

    @staticmethod
    async def describe(client: Client, model: str) -> Description | None:
        name, _ = await served_model(client, model)
        return Description(server="openai", model=name)

    async def generate(
        self, request: Generate, samplers: Mapping[str, float] = _EXTENDED
    ) -> Response:
        answer = await self._read(request, samplers)
        most, choice = request.max_tokens, only_choice(answer)
        # a text may be fewer tokens than were generated, or more
        ids = self._encode(_whole(member(choice, "text", str)))
        reason = member(choice, "finish_reason", str)
        generated = stated(answer.get("usage"), "completion_tokens") or len(ids)
        short = reason in _LENGTH and (generated < most or not ids)
        if short or reason not in (*_ENDS, *_LENGTH):
            raise Unusable(f"the server cut its answer off: {reason[:80]!r}")
        length = self.cut(ids, request.stop_ids)
        ids = ids[: length or len(ids)]
        # some state an end where they cut: there is no room for one
        ended = reason in _ENDS and generated < most
        if ended and self.eos_ids and not length:
            ids = (*ids, min(self.eos_ids))
        return answer_to(request, ids, ())

    async def _read(self, request: Generate, samplers: Mapping[str, float]) -> Any:
        """The answer to a prompt of which the server says that it read all tokens, or
        says nothing. A server that adds BOS gets the text without it. Raises Unusable
        if it read other tokens."""
        text = self.tokenizer.decode(request.prompt_ids)
        if self._encode(text) != request.prompt_ids:
            raise Unusable(f"the prompt's text makes other tokens {UNABLE}")
        texts = [text]
        start = self.tokenizer.bos_token or ""
        rest = text.removeprefix(start)
        if rest != text and tuple(self.tokenizer(rest)["input_ids"]) == (
            request.prompt_ids
        ):
            texts.insert(0 if self.starts else 1, rest)
        for sent in texts:
            body = completion(request) | {"prompt": sent}
            answer = await self._complete(body, samplers)
            read = stated(answer.get("usage"), "prompt_tokens")
            if read == len(request.prompt_ids):
                self.counts, self.starts = True, sent != text
                return answer
            if read is None:
                break
        if read is None and not self.counts and sent == text:
            return answer
        raise Unusable(
            f"usage.prompt_tokens: the server read {read} tokens of a prompt of"
            f" {len(request.prompt_ids)}: it adds to a text, or cuts it; serve the model"
            " without a chat template, with a longer context, or with `vllm serve`"
            f" {UNABLE}"
        )

    async def obeys(self, request: Generate, known: tuple[int, ...]) -> bool:
        """Whether a great penalty changes a known answer: then its absence counts."""
        penalties = dict.fromkeys(("repetition_penalty", "repeat_penalty"), 2.0)
        answer = await self.generate(request, _EXTENDED | penalties)
        return bool(self.extended) and answer.token_ids != known

    async def has_samplers(self, known: Mapping[Generate, tuple[int, ...]]) -> bool:
        for harsh in ({"top_k": 1}, {"min_p": 1}):
            other = 0
            for request, ids in known.items():
                hot = replace(request, temperature=2.0, seed=1)
                try:
                    answer = await self.generate(hot, _EXTENDED | harsh)
                except Unusable:
                    return False
                other += answer.token_ids != ids
                if other > 1 or not self.extended:
                    return False
        return True

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    async def _complete(
        self, body: Mapping[str, Any], samplers: Mapping[str, float]
    ) -> Any:
        """With `samplers` in place of the server's own, if it takes such fields."""
        if self.extended is not False:
            try:
                answer = await self._post({**body, **samplers})
            except Refused as error:
                if self.extended or error.status not in _STRICT:
                    raise
            else:
                self.extended = True
                return answer
        answer = await self._post(body)
        self.extended = False
        return answer

    async def _post(self, body: Mapping[str, Any]) -> Any:
        """Raises InputError for an API of chats alone."""
        model, most = self.described.model, body["max_tokens"]
        try:
            answer = await self.client.post(
                "/v1/completions", {"model": model, **body}, tokens=most
            )
        except Refused as error:
            if error.status not in _MISSING:
                raise
            raise InputError(
                f"endpoint of {model!r}: has no /v1/completions ({error}); an API of"
                " chats alone puts other words around each prompt; serve the model with"
                " `vllm serve` or `llama-server`"
            ) from error
        named = str(answer.get("model") or "") if isinstance(answer, dict) else ""
        self.answered = self.answered or named
        if named not in ("", self.answered):
            raise Unusable(
                f"the server answered as model {named!r}, before as {self.answered!r}"
            )
        return answer


def _whole(text: str) -> str:
    """Raises Unusable for half a character, which no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = error.start
        raise Unusable(f"the server's text has half a character at {where}") from None
    return text
