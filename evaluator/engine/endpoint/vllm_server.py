"""The dialect of vLLM's own server (`vllm serve`).

It scores a prompt with its continuation in one request, by `prompt_logprobs`, with the
rank of each token. It counts a rank's ties before the token, where the engine `vllm`
counts only likelier tokens."""

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
    answer_to,
    checked_count,
    checked_greedy,
    completion,
    logprob,
    member,
    only_choice,
    served_model,
    stated,
)

_TOKEN = "token_id:"  # before an id, in place of the token's text  # noqa: S105
# every sampler but nucleus and temperature, whatever the server's defaults are
_PLAIN = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "skip_special_tokens": False,
    # `stop_token_ids` has the base's
    "ignore_eos": True,
}


class VLLMServer(Dialect):
    name = "vllm"
    token_ids = scores = True
    distributions = False
    most_top = 20  # its --max-logprobs by default

    @staticmethod
    async def describe(client: Client, model: str) -> Description | None:
        try:
            version = member(await client.get("/version"), "version", str)
            name, entry = await served_model(client, model)
        except Unusable:
            return None
        return Description(
            server=f"vllm {version}", model=name, context=stated(entry, "max_model_len")
        )

    async def generate(self, request: Generate) -> Response:
        greedy = request.temperature == 0
        wanted = max(request.top_logprobs, 1 if greedy else 0)
        body = completion(request)
        body["stop_token_ids"] = [*self.eos_ids, *request.stop_ids]
        if wanted:
            body["logprobs"] = wanted
        choice = await self._complete(request.prompt_ids, body)
        ids = self.tokens(choice, "token_ids", request.max_tokens)
        length = self.cut(ids, request.stop_ids)
        if not length and len(ids) < request.max_tokens:
            raise Unusable(
                f"the server ended its answer after {len(ids)} tokens:"
                f" {choice.get('finish_reason')!r}"
            )
        ids = ids[: length or len(ids)]
        steps = self._steps(choice, ids, wanted) if wanted else []
        if greedy:
            for own, top in steps:
                checked_greedy(own, top, ROUNDING)
        return answer_to(request, ids, steps)

    def _steps(self, choice: Any, ids: tuple[int, ...], wanted: int) -> list[Step]:
        reported = member(choice, "logprobs", dict)
        logprobs = [
            logprob(value) for value in member(reported, "token_logprobs", list)
        ]
        tops = member(reported, "top_logprobs", list)
        named = [_id(name) for name in member(reported, "tokens", list)]
        if named[: len(ids)] != list(ids):
            raise Unusable("the server reports log-probabilities of other tokens")
        if not len(logprobs) == len(tops) >= len(ids):
            raise Unusable(
                f"the server reports {len(logprobs)} log-probabilities of {len(ids)}"
                " tokens"
            )
        steps = []
        for own, named_top in zip(logprobs[: len(ids)], tops, strict=False):
            if not isinstance(named_top, Mapping) or not named_top:
                raise Unusable("the server reports no likeliest tokens")
            top = {_id(name): logprob(value) for name, value in named_top.items()}
            self.check_top(top, wanted)
            steps.append((own, top))
        return steps

    async def score(self, request: Score) -> Response:
        prompt = request.prompt_ids + request.continuation_ids
        body = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 1}
        choice = await self._complete(prompt, body)
        positions = member(choice, "prompt_logprobs", list)
        if len(positions) != len(prompt):
            raise Unusable(
                f"the server scored {len(positions)} of {len(prompt)} tokens"
            )
        steps, ranks = [], []
        # a token that is not there is another place's
        for place, token in enumerate(prompt[1:], start=1):
            scored = member(positions[place], str(token), dict)
            if place < len(request.prompt_ids):
                continue
            top = {
                _id(name): logprob(member(entry, "logprob", (int, float)))
                for name, entry in positions[place].items()
            }
            self.check_top(top, 1)
            steps.append((top[token], top))
            ranks.append(member(scored, "rank", int))
        return answer_to(request, request.continuation_ids, steps, ranks=ranks)

    async def biased(self, prompt_ids: tuple[int, ...], token: int, bias: float) -> int:
        body = {"max_tokens": 1, "temperature": 0.0, "logit_bias": {str(token): bias}}
        choice = await self._complete(prompt_ids, body)
        return self.tokens(choice, "token_ids", 1)[0]

    async def _complete(self, prompt: tuple[int, ...], body: Mapping[str, Any]) -> Any:
        """The only choice. Raises Unusable for another model's, or of another
        prompt."""
        model = self.described.model
        answer = await self.client.post(
            "/v1/completions",
            {**_PLAIN, "model": model, "prompt": prompt, **body},
            tokens=body["max_tokens"],
        )
        name = member(answer, "model", str)
        if name != model:
            raise Unusable(f"the server answered as model {name!r}, not {model!r}")
        usage = member(answer, "usage", dict)
        read = member(usage, "prompt_tokens", int)
        if read != len(prompt):
            raise Unusable(
                f"the server read {read} tokens of a prompt of {len(prompt)}"
            )
        choice = only_choice(answer)
        if member(choice, "prompt_token_ids", list) != list(prompt):
            raise Unusable("the server read another prompt")
        checked_count(choice, "token_ids", stated(usage, "completion_tokens"))
        return choice


def _id(name: Any) -> int:
    """The id of a token in an answer. Raises Unusable for another name."""
    number = str(name).removeprefix(_TOKEN)
    if not (number.isascii() and number.isdecimal() and len(number) < 20):
        raise Unusable(f"the server names a token {number[:80]!r}, not its id")
    return int(number)
