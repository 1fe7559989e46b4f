"""Long contexts (`context_tokens`): an item's own passage among other passages of its
language.

    others = in_order(pool, 2000)                         # once for a language
    long = lengthened(item, others, 2000, prompter)       # a text of at most 2,000
    tokens, and the passage's depth

All items of a language take the same passages in the same order. So their prompts share
a prefix, which the engine computes once, up to the item's own passage. An item skips
its own passage there, and those with one of its gold answers, as grading would find it,
also across the border of two passages.

The text has at most `context_tokens` tokens of the model's tokenizer: the last passage
is cut to fit. The item's own is never cut. Its depth is drawn from the item's id,
whatever the length and the other items.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from evaluator.asking.prompts import Prompter
from evaluator.core.errors import InputError
from evaluator.core.grading import gradable, holds
from evaluator.core.plain import in_clauses
from evaluator.core.records import Item

GAP = "\n\n"  # between passages
LEAST = 0.9  # of the wanted tokens; with fewer, the item is excluded
OWN_TOO_LONG = "its own passage has more than context_tokens tokens"
TOO_FEW_OTHERS = (
    "its language has too few other passages without its answers for context_tokens"
)
_BYTES = 64  # of text per token, generously: passages beyond are never needed
_ANSWERS = 500  # of a language, to order its passages by
_clauses = lru_cache(maxsize=65536)(in_clauses)  # every item meets all passages


def in_order(pool: Sequence[Item], tokens: int) -> tuple[str, ...]:
    """The passages of a language in the order that all items share: first those with
    few answers, which few skip."""
    language = pool[0].language if pool else ""
    answers: set[str] = set()
    for item in sorted(pool, key=lambda item: _drawn(item.item_id))[:_ANSWERS]:
        answers.update(gradable(item.answers, language))
    passages = {item.context: _clauses(item.context, language) for item in pool}

    def rank(text: str) -> tuple[int, float]:
        held = [holds(passages[text], (answer,), language) for answer in answers]
        return sum(held), _drawn(text)

    kept, size = [], 0
    for text in sorted(filter(passages.get, passages), key=rank):
        size += len(text.encode())
        if size <= _BYTES * (tokens + len(text)):
            kept.append(text)
    return tuple(kept)


def lengthened(
    item: Item, others: Sequence[str], tokens: int, prompter: Prompter
) -> tuple[str, float | None]:
    """The item's context with other passages, and the share of their characters
    before its own passage (None: none were added). Raises InputError with the reason
    why there is none of this length."""
    left, gap = tokens - prompter.count(item.context), prompter.count(GAP)
    if left < 0:
        raise InputError(OWN_TOO_LONG)
    answers, language = item.answers, item.language
    added: list[str] = []
    clauses = ""  # of those that are added
    for text in others:
        if left <= 0:
            break
        longer = f"{clauses}\n{_clauses(text, language)}"
        if text != item.context and not holds(longer, answers, language):
            added.append(text)
            clauses = longer
            left -= prompter.count(text) + gap
    while True:
        before = _passages_before(item, added)
        long = GAP.join([*added[:before], item.context, *added[before:]])
        ends = prompter.ends(long)
        over = len(ends) - tokens
        if over <= 0:
            break
        last = added.pop()
        ends = prompter.ends(last)
        # A character may be several tokens, which end together: at least one goes.
        cut = (
            last[: min(ends[-over - 1], len(last) - 1)].rstrip()
            if len(ends) > over
            else ""
        )
        clauses = "\n".join(_clauses(text, language) for text in [*added, cut])
        if cut and not holds(clauses, answers, language):
            added.append(cut)
    if len(ends) < LEAST * tokens:
        raise InputError(TOO_FEW_OTHERS)
    total = sum(map(len, added))
    depth = sum(map(len, added[:before])) / total if total else None
    return long, depth


def _passages_before(item: Item, added: Sequence[str]) -> int:
    """How many of the added passages stand before the item's own: the nearest to its
    drawn depth."""
    ends = [0, *accumulate(map(len, added))]
    wanted = _drawn(item.item_id) * ends[-1]
    return min(range(len(ends)), key=lambda place: abs(ends[place] - wanted))


def _drawn(text: str) -> float:
    """A number from 0 to 1 that is drawn from the text alone."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
