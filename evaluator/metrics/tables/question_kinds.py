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

import evaluator.metrics.columns as col
from evaluator.core.text import main_code, normalise, split_tokens, without_spaces
from evaluator.metrics.columns import Row
from evaluator.metrics.exclusions import STATUSES
from evaluator.metrics.fates import CORRECT, sides_of
from evaluator.metrics.inputs import ALL, SIDES, Comparison, Inputs
from evaluator.metrics.intervals import Mean
from evaluator.metrics.measures import apart, paired_difference
from evaluator.metrics.table import Dots, Holm, Series, Table
from evaluator.store.outcomes import MEASURED
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
            for name in KINDS if comparison.tells_of(probe) else ():
                if name in items and items[name].nunique() > 1:
                    rows = _of_sort(inputs, comparison, probe, items, name)
                    yield from sorted(
                        rows, key=lambda row: -float(row.get("drop", -np.inf))
                    )


def _of_sort(
    inputs: Inputs, comparison: Comparison, probe: str, items: pd.DataFrame, name: str
) -> Iterator[Row]:
    """The rows of one sort: a probe of a checkpoint and its base, on the items
    evaluated on both."""
    sides = [items[f"{probe}_status_{side}"] for side in SIDES]
    excluded, failed = (
        np.logical_or.reduce([side == status for side in sides]) for status in STATUSES
    )
    both = np.logical_and.reduce([side.isin(MEASURED) for side in sides])
    kind_of, done = items[name], items[both]
    kinds = sorted(kind_of.dropna().unique())
    if done.empty:
        return
    dense, pruned = sides_of(done, CORRECT[probe])
    member_KI = np.stack([(kind_of[both] == kind).to_numpy() for kind in kinds])
    contexts = inputs.contexts_of(comparison.subject.task, done)
    for kind, mine in zip(kinds, member_KI, strict=True):
        here = (kind_of == kind).to_numpy()
        row: Row = {**comparison.subject.row, "probe": probe, "by": name, "kind": kind}
        row |= {"n": int(mine.sum()), "excluded": int((excluded & here).sum())}
        row["engine_error"] = int((failed & ~excluded & here).sum())
        if row["n"] < col.FEW:
            yield row | {
                "reason": (
                    f"too few items: {row['n']} of the {col.FEW} that a kind needs"
                )
            }
            continue
        rest = member_KI.any(axis=0) & ~mine
        row |= {
            "base_accuracy": float(dense[mine].mean()),
            "accuracy": float(pruned[mine].mean()),
        }
        row |= paired_difference("drop", (dense[mine], pruned[mine]), contexts[mine])
        if rest.any():
            lost = (
                Mean((dense - pruned)[these], contexts[these], low=-1.0)
                for these in (mine, rest)
            )
            row |= apart("excess", *lost)
        yield row


def _weakest(frame: pd.DataFrame) -> pd.DataFrame:
    """The kinds with the largest drops, of each checkpoint and probe."""
    dropped = frame[frame["drop"] > 0]
    groups = dropped.groupby(["task", "checkpoint", "probe"], sort=False)
    return pd.concat(
        [dropped.head(0), *(group.nlargest(_SHOWN, "drop") for _, group in groups)],
        ignore_index=True,
    )


_PROBES = {"greedy": "open", "choice": "choice"}
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
        *col.SUBJECT,
        *col.TEXT("probe", "by", "kind"),
        *col.COUNT("n", "excluded", "engine_error"),
        *col.PERCENTAGE("base_accuracy", "accuracy"),
        *col.POINTS("drop", "excess", interval=True),
        *col.MCNEMAR,
    ),
    compute=_rows,
    figure=tuple(
        Dots(
            title,
            tuple(
                Series(column, probe, label, {"probe": probe})
                for probe, label in _PROBES.items()
            ),
            "points",
        )
        for column, title in (
            ("drop", "Drop from the base"),
            ("excess", "More than the other kinds"),
        )
    ),
    plotted=lambda frame: (
        frame.dropna(subset="drop")
        .nlargest(_DRAWN, "drop")
        .assign(
            checkpoint=lambda worst: (
                worst["checkpoint"] + ": " + worst["by"] + ", " + worst["kind"]
            ),
            language=ALL,
        )
    ),
    corrections=(Holm(("task", "checkpoint", "probe")),),
    any_of="drop",
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
    columns: dict[str, Sequence[str | None]] = {"language": items["language"].tolist()}
    answers = [str(each[0]) if len(each) else "" for each in items["answers"]]
    languages, questions, contexts = (
        items[name].tolist() for name in ("language", "question", "context")
    )
    columns["answer type"] = [
        answer_type(*each) if each[0] else None
        for each in zip(answers, languages, strict=True)
    ]
    columns["answer length"] = [
        answer_length(*each) for each in zip(answers, languages, strict=True)
    ]
    columns["question word"] = [
        question_word(*each) for each in zip(questions, languages, strict=True)
    ]
    columns["context length"] = _context_lengths(contexts, languages)
    columns["answer position"] = [
        answer_position(*each) for each in zip(contexts, items["answers"], strict=True)
    ]
    return pd.DataFrame(columns, index=items.index, dtype=object).assign(
        item_id=items["item_id"]
    )


def answer_length(answer: str, language: str) -> str | None:
    """The length in words, or in characters for languages without spaces between
    words; None for punctuation alone."""
    units = len(split_tokens(normalise(answer), language))
    ends = {1: "1 word", 3: "2 to 3 words", np.inf: "4 or more words"}
    if without_spaces(language):
        ends = {
            3: "1 to 3 characters",
            8: "4 to 8 characters",
            np.inf: "9 or more characters",
        }
    return next(name for end, name in ends.items() if units <= end) if units else None


def answer_position(context: str, answers: Sequence[str]) -> str | None:
    """Where the first of the gold answers begins; None without a context."""
    whole = normalise(context)
    if not whole:
        return None
    found = [
        whole.find(answer)
        for answer in map(normalise, answers)
        if answer and answer in whole
    ]
    return _PLACES[min(2, 3 * min(found) // len(whole))] if found else _NOWHERE


def _context_lengths(
    contexts: Sequence[str], languages: Sequence[str]
) -> list[str | None]:
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


NONE = "none of the known"
_STEMS = frozenset(("ko",))  # particles follow the word without a space


@lru_cache(maxsize=64)
def _patterns(code: str) -> tuple[tuple[str, str], ...]:
    """The patterns to find in a padded question, each with its kind."""
    before = "" if without_spaces(code) else " "
    after = "" if without_spaces(code) or code in _STEMS else " "
    text = (
        files("evaluator.metrics")
        .joinpath("question_words.json")
        .read_text(encoding="utf-8")
    )
    kinds: Mapping[str, str] = json.loads(text).get(code, {})
    return tuple(
        (f"{before}{normalise(word)}{after}", kind)
        for kind, words in kinds.items()
        for word in words.split(",")
    )


def question_word(question: str, language: str) -> str | None:
    """The kind of a question by its question word; None for a language without
    listed words."""
    patterns = _patterns(main_code(language))
    if not patterns:
        return None
    padded = f" {normalise(question)} "
    found = [
        (padded.find(pattern), -len(pattern), kind)
        for pattern, kind in patterns
        if pattern in padded
    ]
    return min(found)[2] if found else NONE
