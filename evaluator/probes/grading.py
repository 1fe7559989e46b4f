"""Grading: compares a text with the gold answers by containment, exact match and token F1. Pure.

    grade("<think>hm</think>\\n\\nThe Nile.", ("Nile", "the Nile"), "english")
    -> {"contains": True, "exact_match": True, "token_f1": 1.0}

Both sides are normalised first, and the best over the gold answers counts. Spans between `<think>` and `</think>` are
not part of an answer. They are removed here, so callers pass the decoded text unchanged."""

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from evaluator.core.text import normalise, split_tokens

LOOP = 8  # tokens of the n-grams that show a loop
# A span that is never closed runs to the end: the model ran out of tokens while it was still thinking.
_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


def thinking_spans(text: str) -> list[tuple[int, int]]:
    """Where the `<think>...</think>` spans of a text begin and end; one that is not closed runs to the end."""
    return [found.span() for found in _THINKING.finditer(text)] if "<think>" in text else []


def strip_thinking(text: str) -> str:
    """The text without its `<think>...</think>` spans; one that is not closed runs to the end."""
    return _THINKING.sub("", text) if "<think>" in text else text


def loops(thought: str, language: str) -> bool:
    """Whether a thought loops: at least half of its n-grams of `LOOP` tokens stand in it before.

    The tokens are those of token F1, of the normalised text. A thought of fewer than 2 `LOOP` tokens does not loop."""
    tokens = split_tokens(normalise(thought), language)
    grams = [tuple(tokens[start : start + LOOP]) for start in range(len(tokens) - LOOP + 1)]
    return len(tokens) >= 2 * LOOP and 2 * len(set(grams)) <= len(grams)


def gradable(answers: Iterable[str]) -> tuple[str, ...]:
    """Gold answers, normalised; without those that normalise to nothing, since every text contains the empty one."""
    return tuple(answer for answer in map(normalise, answers) if answer)


@lru_cache(maxsize=1024)  # an item's answers are compared with every beam and sample
def _wanted(answers: tuple[str, ...], language: str) -> list[tuple[str, list[tuple[str, int]], int]]:
    """Each gold answer, how often it has each of its tokens, and how many these are."""
    tokens = [(answer, split_tokens(answer, language)) for answer in gradable(answers)]
    return [(answer, list(Counter(found).items()), len(found)) for answer, found in tokens]


def grade(text: str, answers: tuple[str, ...], language: str) -> dict[str, Any]:
    """The columns of a record that grade a decoded text against those of the answers that are `gradable`.

    Token F1 is that of two multisets of tokens, in [0, 1], as in SQuAD (Rajpurkar et al., 2016)."""
    text = normalise(strip_thinking(text))
    produced = split_tokens(text, language)
    contains, exact_match, token_f1 = False, False, 0.0
    for answer, counts, total in _wanted(answers, language):
        contains = contains or answer in text
        exact_match = exact_match or answer == text
        if shared := sum([min(produced.count(token), count) for token, count in counts]):
            # 2PR / (P + R) with P = shared / produced and R = shared / wanted. It needs no special case for P = R = 0.
            token_f1 = max(token_f1, 2 * shared / (len(produced) + total))
    return {"contains": contains, "exact_match": exact_match, "token_f1": token_f1}
