"""Table `calibration`: does the text that calibrated the pruning close the gap between choice and open?

Kinds of calibration (paper, section 5), read from the source's name:

    english         `c4`, or Wikipedia or the bundled gazetteer in English alone
    per_language    one of these in one other language
    multilingual    `balanced:...`, Wikipedia in several languages, or the whole `gazetteer`
    other           a file of the user's

"Per-language calibration" is many checkpoints: each language's items come from the checkpoint that was calibrated on
that language. If a base has at least two single-language checkpoints of one pruning setting, rows of a made-up
checkpoint `<setting> per language` combine them, including English.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from evaluator.core.text import code_of
from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    PERCENTAGE,
    POINTS,
    REASON,
    SUBJECT,
    TEXT,
    Column,
    Row,
    columns_of,
    names_of,
)
from evaluator.metrics.counting import measured
from evaluator.metrics.figure import Dots, Figure, Series
from evaluator.metrics.inputs import MEAN, Inputs, Subject, in_language, slices
from evaluator.metrics.measures import as_floats, difference, language_mean, rate
from evaluator.metrics.table import Table

_COUNTS = columns_of(COUNT, "n", "excluded", "engine_error")


def _rows(inputs: Inputs) -> Iterator[Row]:
    """Open and choice accuracy and their gap per calibrated checkpoint: pooled, mean over languages, by language."""
    alone: dict[tuple[object, ...], list[Subject]] = {}
    for subject in inputs.checkpoints:
        if subject.base is None or subject.calibration is None:
            continue
        items = inputs.outcomes_of(subject.checkpoint, subject.task)
        yield from _subject_rows(inputs, subject, kind_of(subject.calibration), items)
        if _single_language(subject.calibration) is not None:
            setting = (subject.task, subject.base, subject.method, subject.pattern, subject.requested)
            alone.setdefault(setting, []).append(subject)
    for subjects in alone.values():
        if len(subjects) > 1:
            yield from _subject_rows(inputs, _together(subjects), "per_language", _own_languages(inputs, subjects))


def kind_of(source: str) -> str:
    """The kind of a calibration source, by its name in the records."""
    family = source.partition(":")[0]
    # A file, the data set that a quantised checkpoint names, or both if it was pruned before.
    if " + " in source or family not in ("c4", "wikipedia", "balanced", "gazetteer"):
        return "other"
    language = "en" if family == "c4" else _single_language(source)
    return "multilingual" if language is None else "english" if language == "en" else "per_language"


def _single_language(source: str) -> str | None:
    """The code of a source's only language, if the source names one."""
    family, _, languages = source.partition(":")
    named = [code_of(each) for each in re.split(r"[,\s]+", languages.strip()) if each]
    return named[0] if family in ("wikipedia", "balanced", "gazetteer") and len(named) == 1 else None


def _together(subjects: Sequence[Subject]) -> Subject:
    """The made-up checkpoint that combines single-language ones."""
    first = subjects[0]
    by_share = first.pattern in ("unstructured", "layers", "heads", "channels")
    amount = first.requested if by_share else first.pattern
    return replace(first, checkpoint=f"{first.method}-{amount} per language", calibration="each language's own")


def _own_languages(inputs: Inputs, subjects: Sequence[Subject]) -> pd.DataFrame:
    """Each language's items from the checkpoint that was calibrated on that language."""
    task = subjects[0].task
    own = {_single_language(each.calibration or ""): each.checkpoint for each in subjects}
    found = [
        in_language(inputs.outcomes_of(own[code_of(language)], task), language)
        for language in inputs.languages(task)
        if code_of(language) in own
    ]
    return pd.concat(found) if found else inputs.outcomes_of("", task)


def _subject_rows(inputs: Inputs, subject: Subject, kind: str, items: pd.DataFrame) -> list[Row]:
    everything, _ = measured(items, "greedy", "choice")
    if everything.empty:
        return []
    rows: list[Row] = []
    for language, asked in slices(items, inputs.languages(subject.task)):
        done, counts = measured(asked, "greedy", "choice", nothing="no item was measured with both greedy and choice")
        row: Row = {**subject.row, "kind": kind, "language": language, **counts}
        opened, chosen = as_floats(done["produced"]), as_floats(done["recognised"])
        contexts = inputs.contexts_of(subject.task, done)
        row |= rate("open_accuracy", opened, contexts) | rate("choice_accuracy", chosen, contexts)
        row |= difference("choice_minus_open", chosen - opened, contexts)
        rows.append(row)
    opened, chosen = as_floats(everything["produced"]), as_floats(everything["recognised"])
    mean: Row = {**subject.row, "kind": kind, "language": MEAN}
    mean |= {name: rows[0][name] for name in names_of(_COUNTS)}
    contexts = inputs.contexts_of(subject.task, everything)
    mean |= language_mean("open_accuracy", opened, everything, contexts)
    mean |= language_mean("choice_accuracy", chosen, everything, contexts)
    mean |= language_mean("choice_minus_open", chosen - opened, everything, contexts, low=-1.0)
    mean["reason"] = f"unweighted mean over {everything['language'].nunique()} of {len(rows) - 1} languages"
    return [rows[0], mean, *rows[1:]]


def _named_by_kind(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(checkpoint=frame["checkpoint"] + " (" + frame["kind"].str.replace("_", " ") + ")")


TABLE = Table(
    name="calibration",
    title="Does calibration close the gap?",
    reading=(
        "Open and choice accuracy of checkpoints that differ in the text used to calibrate the pruning. If both rise "
        "together, the gap between them stays."
    ),
    needs="the probes greedy and choice on a pruned checkpoint that was calibrated",
    columns=(
        *SUBJECT,
        Column("kind", TEXT),
        LANGUAGE,
        *_COUNTS,
        *columns_of(PERCENTAGE, "open_accuracy", "choice_accuracy", interval=True),
        Column("choice_minus_open", POINTS, "choice − open", interval=True),
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        (
            Dots(
                "Accuracy",
                (Series("open_accuracy", "greedy", "open"), Series("choice_accuracy", "choice", "choice")),
                width=1.15,
                linked=True,
                legend=4,
            ),
            Dots(
                "Gap: choice minus open",
                (
                    Series("choice_minus_open", "mc_only", "pooled", shift=-0.12),
                    Series("choice_minus_open", "mc_only", "mean over languages", {"language": MEAN}, 0.12, True),
                ),
                "points",
                legend=4,
            ),
        ),
        rows=_named_by_kind,
    ),
)
