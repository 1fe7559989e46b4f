"""No text that a checkpoint will be asked about may decide what is pruned from it.

The caller says which texts are held out, as digests; calibration passages are held against them, when they are read
and, of a checkpoint that is there already, by the digests in its manifest. Texts are equal that differ in case,
punctuation and white space only.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping

from evaluator.errors import InputError


def text_digest(text: str) -> str:
    """sha256, hexadecimal, of the text in NFC, lower-case, without punctuation, white space as single spaces.

    Empty for a text of which nothing is left.
    """
    lowered = unicodedata.normalize("NFC", text).lower()
    punctuation = {ord(one): None for one in set(lowered) if unicodedata.category(one).startswith("P")}
    words = " ".join(lowered.translate(punctuation).split())
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest() if words else ""


def check_disjoint(passages: Iterable[tuple[str, int, str]], held_out: Mapping[str, str]) -> None:
    """Raises InputError for the first passage whose digest is held out.

    `passages`: (origin, row, digest); `held_out`: what has that digest, in words, by `text_digest`.
    """
    for origin, row, digest in passages:
        if digest and digest in held_out:
            raise InputError(
                f"calibration.source: passage {row} of {origin} is also {held_out[digest]}; leave one of the two out"
            )
