"""Kinds of questions, by rule: what table `weak` sorts the items of a task by.

    language           as the task spells it
    answer type        of the first gold answer: date, number, name or other (`evaluator.tasks.answer_types`)
    answer length      of the first gold answer, in words; in characters where a language puts no space between words
    question word      `evaluator.metrics.question_words`
    context length     thirds of a language's contexts, by characters
    answer position    where in the context a gold answer first stands, both normalised as in grading

Rules are rough: they are the same for every checkpoint, so that a kind's drop is a drop on these very items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from evaluator.core.text import normalise, split_tokens, without_spaces
from evaluator.metrics.question_words import question_word
from evaluator.tasks.answer_types import answer_type

KINDS = ("language", "answer type", "answer length", "question word", "context length", "answer position")
_THIRDS = ("shortest third", "middle third", "longest third")
_PLACES = ("first third", "middle third", "last third")
_NOWHERE = "not in the context"


def kinds_of(items: pd.DataFrame) -> pd.DataFrame:
    """One row per item of a task (the columns of `evaluator.core.records.Item`): language, id, and a column per
    distinction in KINDS with the item's kind; None if it has none."""
    columns: dict[str, Sequence[str | None]] = {"language": items["language"].tolist()}
    answers = [str(each[0]) if len(each) else "" for each in items["answers"]]
    languages, questions, contexts = (items[name].tolist() for name in ("language", "question", "context"))
    columns["answer type"] = [answer_type(*each) if each[0] else None for each in zip(answers, languages, strict=True)]
    columns["answer length"] = [answer_length(*each) for each in zip(answers, languages, strict=True)]
    columns["question word"] = [question_word(*each) for each in zip(questions, languages, strict=True)]
    columns["context length"] = _context_lengths(contexts, languages)
    columns["answer position"] = [answer_position(*each) for each in zip(contexts, items["answers"], strict=True)]
    return pd.DataFrame(columns, index=items.index, dtype=object).assign(item_id=items["item_id"])


def answer_length(answer: str, language: str) -> str | None:
    """How long, in words, or in characters where there is no space between words; None for nothing but punctuation."""
    units = len(split_tokens(normalise(answer), language))
    if not units:
        return None
    if without_spaces(language):
        return _bucket(units, {3: "1 to 3 characters", 8: "4 to 8 characters"}, "9 or more characters")
    return _bucket(units, {1: "1 word", 3: "2 to 3 words"}, "4 or more words")


def answer_position(context: str, answers: Sequence[str]) -> str | None:
    """Where the first of the gold answers begins; None without a context."""
    whole = normalise(context)
    if not whole:
        return None
    found = [whole.find(answer) for answer in map(normalise, answers) if answer and answer in whole]
    return _PLACES[min(2, 3 * min(found) // len(whole))] if found else _NOWHERE


def _context_lengths(contexts: Sequence[str], languages: Sequence[str]) -> list[str | None]:
    lengths = np.array([len(context) for context in contexts], dtype=np.float64)
    spoken = np.asarray(languages, dtype=object)
    found: list[str | None] = [None] * len(contexts)
    for language in sorted(set(languages)):
        here = np.flatnonzero((spoken == language) & (lengths > 0))
        if not len(here) or lengths[here].min() == lengths[here].max():
            continue
        ends = np.quantile(lengths[here], [1 / 3, 2 / 3])
        for place in here:
            found[place] = _THIRDS[int(np.searchsorted(ends, lengths[place]))]
    return found


def _bucket(value: int, upper: Mapping[int, str], rest: str) -> str:
    return next((name for end, name in upper.items() if value <= end), rest)
