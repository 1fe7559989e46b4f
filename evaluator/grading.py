"""Grading: a generated text against the gold answers, by containment, exact match and token F1. Pure.

    grade("<think>hm</think>\\n\\nThe Nile.", ("Nile", "the Nile"), "english")
    -> Grade(contains=True, exact_match=True, token_f1=1.0)

Both sides are normalised first; the best over the references counts. Spans between `<think>` and `</think>` are no part
of an answer and are removed here, so that callers hand over the decoded text as it is.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

# A span that is never closed runs to the end: the model ran out of tokens while it was still thinking.
_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)

# Languages whose scripts put no space between words, under the names and codes that data sets use for them.
_WITHOUT_SPACES = frozenset(
    (
        *("thai", "th", "tha"),
        *("chinese", "zh", "zho", "chi", "cmn", "yue"),
        *("japanese", "ja", "jpn"),
        *("khmer", "km", "khm"),
        *("lao", "lo"),
        *("burmese", "my", "mya", "bur"),
    )
)


@dataclass(frozen=True, slots=True)
class Grade:
    """How well a text answers: each number is the best over the references."""

    contains: bool  # a normalised reference is a substring of the normalised text
    exact_match: bool
    token_f1: float  # in [0, 1]


def normalise(text: str) -> str:
    """NFC, lower-case, without Unicode punctuation (category P), white space collapsed to single spaces and trimmed."""
    lowered = unicodedata.normalize("NFC", text).lower()
    # By distinct character: on a long text many times faster than to look each one up.
    punctuation = {ord(char): None for char in set(lowered) if unicodedata.category(char).startswith("P")}
    return " ".join(lowered.translate(punctuation).split())


def strip_thinking(text: str) -> str:
    """The text without its `<think>...</think>` spans; one that is not closed takes everything up to the end."""
    return _THINKING.sub("", text)


def without_spaces(language: str) -> bool:
    """Whether the language is written without spaces between words; takes names and codes (`thai`, `th`, `zh-CN`)."""
    return re.split(r"[-_]", language.strip().lower())[0] in _WITHOUT_SPACES


def split_tokens(text: str, language: str) -> list[str]:
    """The units of token F1: words at white space, or every character that is not one where no space parts words."""
    return [char for char in text if not char.isspace()] if without_spaces(language) else text.split()


def token_f1(text: str, reference: str, language: str) -> float:
    """F1 over the multisets of tokens, as in SQuAD (Rajpurkar et al., 2016). Both texts are already normalised."""
    produced, wanted = Counter(split_tokens(text, language)), Counter(split_tokens(reference, language))
    shared = (produced & wanted).total()
    # 2PR / (P + R) with P = shared / produced and R = shared / wanted, in the form that needs no case for P = R = 0.
    return 2 * shared / (produced.total() + wanted.total()) if shared else 0.0


def grade(text: str, answers: Sequence[str], language: str) -> Grade:
    """Grade a decoded text. References that normalise to nothing are ignored: nothing is contained in everything."""
    produced = normalise(strip_thinking(text))
    references = [reference for reference in map(normalise, answers) if reference]
    return Grade(
        contains=any(reference in produced for reference in references),
        exact_match=produced in references,
        token_f1=max((token_f1(produced, reference, language) for reference in references), default=0.0),
    )
