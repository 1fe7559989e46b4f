"""What an API does with a text before its model reads it, by planted questions.

One word and the same word many times have the same next token: attention over equal
values is that value. With anything before the words it depends on their number. An
answer whose beginning is in its prompt goes on as before, if nothing stands behind it.
So a second BOS and a template are found, of a server that counts no tokens.
"""

from __future__ import annotations

import random
from typing import Any

from evaluator.engine.base import Generate
from evaluator.engine.endpoint.client import Refused, Unusable
from evaluator.engine.endpoint.examine import PROMPTS
from evaluator.engine.endpoint.openai import OpenAI

_WORDS = 16
_PENALISED = 8  # words, of which the penalties are asked
_TIMES = (1, 2, 5)  # that a word stands in a text
_SOUGHT = 5000  # tokens, among which words are sought
_LOOP = 16  # times a word, and tokens of an answer to it
_BEGUN = 4  # tokens of an answer whose first half is given
_LONGEST = 4096  # tokens of a prompt whose beginning is asked for
_BEGINNINGS = 4
_UNCOUNTED = "usage.prompt_tokens: the server states none"
_ADVICE = "serve the model with `vllm serve` or `llama-server`"


async def check_texts(server: OpenAI, longest: int) -> int | None:
    """How long a prompt may be of which the server is known to read the beginning;
    None: it counts the tokens of each. Raises Unusable for a server that adds to
    texts, cuts them, or discourages tokens that were there."""
    words = _words(server.tokenizer)
    await _check_penalties(server, words)
    if server.counts:
        return None
    await _check_start(server, words)
    await _check_end(server)
    return await _check_beginning(server, words, min(longest, _LONGEST))


def _words(tokenizer: Any) -> list[int]:
    """Tokens of which any number is a text of these tokens."""
    found: list[int] = []
    for token in range(min(len(tokenizer), _SOUGHT)):
        text = tokenizer.decode((token,))
        plain = text.isascii() and text.strip().isalpha()
        # two of them do not grow together
        plain = plain and " " in tokenizer.decode((token, token)).strip()
        if plain and all(
            tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) == ids
            for ids in ([token] * times for times in (*_TIMES, _LOOP))
        ):
            found.append(token)
    return random.Random(0).sample(found, min(len(found), _WORDS))


async def _check_penalties(server: OpenAI, words: list[int]) -> None:
    """A server that obeys the field repetition_penalty was told to have none. Of
    another one, answers to a word many times must repeat tokens, or end."""
    asked = words[:_PENALISED]
    fresh = 0
    for word in asked:
        text = server.tokenizer.decode((word,) * _LOOP)
        prompt = _asked(tuple(server.tokenizer(text)["input_ids"]), _LOOP)
        answer = await server.generate(prompt)
        if await server.obeys(prompt, answer.token_ids):
            return
        ids = (word, *answer.token_ids)
        fresh += len({*ids} - server.eos_ids) == len(ids)
    if fresh > len(asked) / 2:
        raise Unusable(
            f"{fresh} of its {len(asked)} answers to one word"
            f" {_LOOP} times repeat nothing: it has a repetition penalty, which the"
            " field repetition_penalty does not switch off; start it without one"
        )


async def _check_start(server: OpenAI, words: list[int]) -> None:
    differing = asked = 0
    for word in words:
        answers = set()
        try:
            for times in _TIMES:
                answer = await server.generate(_asked((word,) * times, 1))
                answers.add(answer.token_ids)
        except Unusable:  # a token without a text
            continue
        asked += 1
        differing += len(answers) > 1
    if asked < _WORDS / 2 or differing > 1:
        raise Unusable(
            f"{_UNCOUNTED}: of {asked} words {differing} have another next token if"
            f" they are repeated: something stands before a text; {_ADVICE}"
        )


async def _check_end(server: OpenAI) -> None:
    differing = asked = 0
    prompts = [tuple(server.tokenizer(text)["input_ids"]) for text in PROMPTS]
    for prompt in prompts:
        answer = (await server.generate(_asked(prompt, _BEGUN))).token_ids
        begun = answer[: _BEGUN // 2]
        try:
            rest = await server.generate(_asked(prompt + begun, _BEGUN // 2))
        except Unusable:  # the text makes other tokens
            continue
        asked += 1
        differing += (begun + rest.token_ids)[: len(answer)] != answer
    if differing > asked / 2:  # a text may be other tokens than were generated
        raise Unusable(
            f"{_UNCOUNTED}: {differing} of {asked} answers go on otherwise if"
            f" the prompt has their beginning: something stands behind a text;"
            f" {_ADVICE}"
        )


async def _check_beginning(server: OpenAI, words: list[int], longest: int) -> int:
    """The greatest length of a prompt that the server reads as a whole: half of one
    whose first half changes the answer."""
    half = longest // 2 - _LOOP
    while half > _LOOP:
        draw = random.Random(1)
        rest = draw.choices(words, k=half)
        answers = set()
        try:
            for _ in range(_BEGINNINGS):
                # which a model that has read it repeats
                beginning = draw.choices(words, k=half)
                text = server.tokenizer.decode([*beginning, *rest, *rest[:1]])
                prompt = tuple(server.tokenizer(text)["input_ids"])
                answer = await server.generate(_asked(prompt, _LOOP))
                answers.add(answer.token_ids)
        except Refused:
            half //= 2
            continue
        if len(answers) > 1:
            return half
        raise Unusable(
            f"{_UNCOUNTED}: {_BEGINNINGS} prompts of {2 * half} tokens with other"
            " beginnings have one answer: it cuts them off; serve the model with a"
            " longer context"
        )
    raise Unusable(f"it refuses prompts of {4 * _LOOP} tokens")


def _asked(prompt: tuple[int, ...], tokens: int) -> Generate:
    return Generate(request_id="planted", prompt_ids=prompt, max_tokens=tokens)
