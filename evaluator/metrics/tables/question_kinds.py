"""Table `weak`: which kinds of questions does a checkpoint lose most, compared with its
base?

EvalTree (Zeng et al., arXiv 2503.08893) finds such kinds with a model; ours are rules.
Every kind has, on its items that both checkpoints measured:

    drop       the base's accuracy minus the checkpoint's
    excess     that drop minus the drop on all other kinds of the same sort: above 0,
               the kind is hit harder
    mcnemar_p  whether the drop may be chance, exact; holm_p corrects it over all kinds
               of the checkpoint and probe

Intervals are over contexts. A kind with fewer than 20 items has none of these numbers,
and a reason. If every kind is that small, there is no table. Sorts that all items share
(one language, no contexts) are left out. The sorts:

    language           as the task spells it
    answer type        of the first gold answer: date, number, name or other
                       (`evaluator.tasks.answer_types`)
    answer length      of the first gold answer, in words; in characters if the language
                       has no space between words
    question word      the first in the question; of two at one place the longer ("how
                       many" is not "how")
    context length     thirds of a language's contexts, by characters
    answer position    where a gold answer first occurs in the context, both normalised
                       as in grading

`question_words.json` has the question words with their inflections, by language code; a
language that is not listed has no kinds of question word. Greek has the same word for
"who" and "which": it is under "which".
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files

import numpy as np
import pandas as pd

from evaluator.core.text import main_code, normalise, split_tokens, without_spaces
from evaluator.metrics.columns import (
    COUNTED,
    FEW,
    MCNEMAR,
    PERCENTAGE,
    POINTS,
    SUBJECT,
    TEXT,
    Row,
)
from evaluator.metrics.exclusions import all_measured, left_out_of
from evaluator.metrics.fates import CORRECT, sides_of
from evaluator.metrics.inputs import ALL, Comparison, Inputs, statuses_of
from evaluator.metrics.measures import apart, mean_of, paired_difference
from evaluator.metrics.table import Dots, Holm, Table, of_probes
from evaluator.tasks.answer_types import answer_type

_SHOWN = 5  # kinds of a checkpoint and probe, on the page


def _rows(inputs: Inputs) -> Iterator[Row]:
    """By checkpoint, probe and sort; within a sort, the largest drop first, and
    kinds with too few items last."""
    kinds: dict[str, pd.DataFrame] = {}
    for comparison in inputs.comparisons().values():
        task = comparison.subject.task
        if comparison.reason:
            continue
        items = comparison.outcomes
        if inputs.items is not None and (inputs.items["task"] == task).any():
            if task not in kinds:
                kinds[task] = kinds_of(inputs.items[inputs.items["task"] == task])
            items = items.merge(kinds[task], on=["language", "item_id"], how="left")
        for probe in CORRECT:
            for sort in KINDS if comparison.tells_of(probe) else ():
                if sort in items and items[sort].nunique() > 1:
                    rows = _of_sort(comparison, probe, items, sort)
                    yield from sorted(rows, key=lambda row: -row.get("drop", -np.inf))


def _rows_of_some(inputs: Inputs) -> list[Row]:
    """No rows, if every kind has too few items."""
    rows = list(_rows(inputs))
    return rows if any("drop" in row for row in rows) else []


def _of_sort(
    comparison: Comparison, probe: str, items: pd.DataFrame, sort: str
) -> Iterator[Row]:
    """The rows of one sort: a probe of a checkpoint and its base, on the items
    evaluated on both."""
    statuses = statuses_of(probe)
    measured = all_measured(items, *statuses)
    done = measured[measured[sort].notna()]
    for kind, here in items.groupby(sort) if len(measured) else ():
        mine = done[sort] == kind
        row: Row = {**comparison.subject.row, "probe": probe, "by": sort, "kind": kind}
        row |= left_out_of(here, *statuses) | {"n": int(mine.sum())}
        if row["n"] < FEW:
            few = f"too few items: {row['n']} of the {FEW} that a kind needs"
            yield row | {"reason": few}
        else:
            yield row | _drop(done[mine], done[~mine], probe)


def _drop(items: pd.DataFrame, others: pd.DataFrame, probe: str) -> Row:
    sides = sides_of(items, CORRECT[probe])
    row: Row = {
        "base_accuracy": float(sides[0].mean()),
        "accuracy": float(sides[1].mean()),
        **paired_difference("drop", sides, items),
    }
    if len(others):
        dense, pruned = sides_of(others, CORRECT[probe])
        lost = mean_of(sides[0] - sides[1], items, low=-1.0)
        row |= apart("excess", lost, mean_of(dense - pruned, others, low=-1.0))
    return row


def _weakest(frame: pd.DataFrame) -> pd.DataFrame:
    """The kinds with the largest drops, of each checkpoint and probe."""
    dropped = frame[frame["drop"] > 0]
    groups = dropped.groupby(["task", "checkpoint", "probe"], sort=False)
    largest = [group.nlargest(_SHOWN, "drop") for _, group in groups]
    return pd.concat([dropped.head(0), *largest], ignore_index=True)


def _largest(frame: pd.DataFrame) -> pd.DataFrame:
    """The largest drops, in rows with the names of their kinds."""
    rows = frame.dropna(subset="drop").nlargest(_DRAWN, "drop")
    names = rows["checkpoint"] + ": " + rows["by"] + ", " + rows["kind"]
    return rows.assign(checkpoint=names, language=ALL)


_DRAWN = 16  # kinds

TABLE = Table(
    name="weak",
    title="Which kinds of questions does it lose?",
    reading=(
        "Items by rule: language, type and length of the answer, question word, length"
        " of the context, and position of the answer in it. Drop is the base's accuracy"
        " minus the checkpoint's on the items of a kind. Excess is this drop minus the"
        " drop on the other kinds of the same sort; it shows where the checkpoint has"
        " become weak. The p values test whether a kind dropped at all. The page shows"
        " the largest drops of each checkpoint; the CSV has all kinds, and names those"
        " with too few items."
    ),
    needs="the probe greedy or choice on a checkpoint and its base",
    columns=(
        *SUBJECT,
        *TEXT("probe", "by", "kind"),
        *COUNTED,
        *PERCENTAGE("base_accuracy", "accuracy"),
        *POINTS.estimates("drop", "excess"),
        *MCNEMAR,
    ),
    compute=_rows_of_some,
    figure=(
        Dots("Drop from the base", of_probes("drop"), "points"),
        Dots("More than the other kinds", of_probes("excess"), "points"),
    ),
    plotted=_largest,
    corrections=(Holm(("task", "checkpoint", "probe")),),
    silent=True,
    page=_weakest,
)

KINDS = (
    "language",
    "answer type",
    "answer length",
    "question word",
    "context length",
    "answer position",
)
_THIRDS = ("shortest third", "middle third", "longest third")
_PLACES = ("first third", "middle third", "last third")
_NOWHERE = "not in the context"


def kinds_of(items: pd.DataFrame) -> pd.DataFrame:
    """One row per item of a task: language, id, and a column per sort in KINDS with
    the item's kind or None. `items` has the columns of
    `evaluator.core.records.Item`."""
    kinds: dict[str, list[str | None]] = {name: [] for name in KINDS}
    columns = ("language", "question", "context", "answers")
    for language, question, context, answers in zip(
        *(items[name] for name in columns), strict=True
    ):
        answer = str(answers[0]) if len(answers) else ""
        kinds["language"].append(language)
        kinds["answer type"].append(answer_type(answer, language) if answer else None)
        kinds["answer length"].append(answer_length(answer, language))
        kinds["question word"].append(question_word(question, language))
        kinds["answer position"].append(answer_position(context, answers))
    kinds["context length"] = _context_lengths(items["context"], items["language"])
    frame = pd.DataFrame(kinds, index=items.index, dtype=object)
    return frame.assign(item_id=items["item_id"])


def answer_length(answer: str, language: str) -> str | None:
    """The length in words, or in characters for languages without spaces between
    words; None for punctuation alone."""
    units = len(split_tokens(normalise(answer), language))
    if not units:
        return None
    if without_spaces(language):
        if units <= 3:
            return "1 to 3 characters"
        return "4 to 8 characters" if units <= 8 else "9 or more characters"
    if units == 1:
        return "1 word"
    return "2 to 3 words" if units <= 3 else "4 or more words"


def answer_position(context: str, answers: Sequence[str]) -> str | None:
    """Where the first of the gold answers begins; None without a context."""
    whole = normalise(context)
    if not whole:
        return None
    places = []
    for answer in map(normalise, answers):
        if answer and answer in whole:
            places.append(whole.find(answer))
    return _PLACES[min(2, 3 * min(places) // len(whole))] if places else _NOWHERE


def _context_lengths(contexts: pd.Series, languages: pd.Series) -> list[str | None]:
    kinds: list[str | None] = [None] * len(contexts)
    lengths = contexts.map(len).reset_index(drop=True)
    for _, here in lengths[lengths > 0].groupby(languages.to_numpy()[lengths > 0]):
        if here.min() < here.max():
            thirds = np.searchsorted(np.quantile(here, [1 / 3, 2 / 3]), here)
            for place, third in zip(here.index, thirds, strict=True):
                kinds[place] = _THIRDS[third]
    return kinds


NONE = "none of the known"
_STEMS = frozenset(("ko",))  # particles follow the word without a space


@lru_cache(maxsize=64)
def _patterns(code: str) -> tuple[tuple[str, str], ...]:
    """The patterns to find in a padded question, each with its kind."""
    before = "" if without_spaces(code) else " "
    after = "" if without_spaces(code) or code in _STEMS else " "
    text = files("evaluator.metrics").joinpath("question_words.json").read_text("utf-8")
    kinds: Mapping[str, str] = json.loads(text).get(code, {})
    patterns = []
    for kind, words in kinds.items():
        for word in words.split(","):
            patterns.append((f"{before}{normalise(word)}{after}", kind))
    return tuple(patterns)


def question_word(question: str, language: str) -> str | None:
    """The kind of a question by its question word; None for a language without
    listed words."""
    patterns = _patterns(main_code(language))
    if not patterns:
        return None
    padded = f" {normalise(question)} "
    places = []
    for pattern, kind in patterns:
        if pattern in padded:
            places.append((padded.find(pattern), -len(pattern), kind))
    return min(places)[2] if places else NONE
