"""No text that a checkpoint will be asked about may decide what is pruned from it.

The caller says which texts are held out, as digests. Calibration passages are compared with them when they are read,
and those of a checkpoint that is there already by the digests in its manifest. Texts that differ only in case,
punctuation and white space are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from evaluator.core.errors import InputError
from evaluator.core.text import normalise


def text_digest(text: str) -> str:
    """sha256, hexadecimal, of the normalised text; empty for a text of which nothing is left."""
    words = normalise(text)
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
