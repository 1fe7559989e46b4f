"""Accuracy and its drop, and where the gate stopped evaluating a screened checkpoint.

Table `accuracy`: per checkpoint, task, format, probe and language, with the paired drop from the base.

Probe `greedy` is right if the output contains a gold answer. Probe `choice` is right if the gold option has strictly
the highest summed log-likelihood. `drop` is dense minus pruned on the items measured in both; `normalised_drop` divides
it by the headroom (`evaluator.metrics.drops`).

Row `mean` is the unweighted mean over languages of accuracies and drops, each with the interval of that mean.

Table `screening`: at which look the gate stopped evaluating each checkpoint of a screened sweep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    MCNEMAR,
    PERCENTAGE,
    POINTS,
    RATIO,
    REASON,
    SCORE,
    SHARE,
    SUBJECT,
    TEXT,
    Column,
    Row,
    columns_of,
    names_of,
)
from evaluator.metrics.counting import joined_reasons, measured
from evaluator.metrics.drops import CORRECT, floor_of, over_headroom, paired_drop, sides_of
from evaluator.metrics.figure import Dots, Figure, Heat, Series, whole_percent
from evaluator.metrics.inputs import MEAN, Comparison, Inputs, Subject, slices
from evaluator.metrics.intervals import ItemNumbers
from evaluator.metrics.looks import BLOCK_LEVEL, PASS_LEVEL, nominal
from evaluator.metrics.measures import as_floats, language_mean, rate
from evaluator.metrics.table import Holm, Lack, Table
from evaluator.store.outcomes import MEASURED
from evaluator.store.screening import screened_of

_RATES = {
    "greedy": {"accuracy": "produced", "exact_match": "exact_match"},
    "choice": {"accuracy": "recognised", "per_token": "recognised_per_token", "per_byte": "recognised_per_byte"},
}
_IDENTITY = (*SUBJECT, *columns_of(TEXT, "format", "probe"), LANGUAGE)
_COUNTS = columns_of(COUNT, "n", "excluded", "engine_error", "truncated")
_MEASURES = ("accuracy", "exact_match", "per_token", "per_byte", "truncation")


@dataclass(frozen=True, eq=False)
class _Asked:
    """One probe of one checkpoint in one format, and the checkpoint's comparison with its base."""

    inputs: Inputs
    subject: Subject
    format: str
    probe: str
    comparison: Comparison | None

    @property
    def items(self) -> pd.DataFrame:
        return self.inputs.outcomes_of(self.subject.checkpoint, self.subject.task, self.format)

    def contexts(self, items: pd.DataFrame) -> ItemNumbers:
        return self.inputs.contexts_of(self.subject.task, items)


def _rows(inputs: Inputs) -> Iterator[Row]:
    for format in inputs.formats:
        for subject in inputs.checkpoints:
            for probe in CORRECT:
                asked = _Asked(inputs, subject, format, probe, inputs.comparisons(format).get(subject.key))
                if asked.items[f"{probe}_status"].notna().any():
                    yield from _checkpoint_rows(asked)


def _checkpoint_rows(asked: _Asked) -> list[Row]:
    rows = []
    languages = asked.inputs.languages(asked.subject.task)
    for language, items in slices(asked.items, languages):
        row = {**asked.subject.row, "format": asked.format, "probe": asked.probe, "language": language}
        row |= _measured(asked, items)
        if asked.comparison is not None:
            drop = _paired(asked, asked.comparison, language)
            row |= drop | {"reason": joined_reasons(row["reason"], drop["reason"])}
        rows.append(row)
    done = asked.items[asked.items[f"{asked.probe}_status"].isin(MEASURED)]
    if not done.empty:
        kept = [*names_of(_IDENTITY), *names_of(_COUNTS), "n_paired"]
        reason = f"unweighted mean over {done['language'].nunique()} of {len(languages)} languages"
        mean = {name: rows[0].get(name) for name in kept} | {"language": MEAN, "reason": reason}
        rows.insert(1, mean | _means(asked, done))
    return rows


def _means(asked: _Asked, done: pd.DataFrame) -> Row:
    """Means over the languages with measured items. The mean drop is over the languages with items measured in both."""
    row: Row = {}
    for name, column in (_RATES[asked.probe] | {"truncation": "truncated"}).items():
        filled = done[done[column].notna()]
        row |= language_mean(name, as_floats(filled[column]), filled, asked.contexts(filled))
    if asked.probe == "greedy":
        row["token_f1"] = float(done.groupby("language")["token_f1"].mean().mean())
    if asked.comparison is not None:
        both = asked.comparison.measured(asked.probe)
        dense, pruned = sides_of(both, CORRECT[asked.probe])
        if not both.empty:
            row["dense_accuracy"] = float(pd.Series(dense).groupby(both["language"].to_numpy()).mean().mean())
        row |= language_mean("drop", dense - pruned, both, asked.contexts(both), low=-1.0)
    return row


def _measured(asked: _Asked, items: pd.DataFrame) -> Row:
    done, row = measured(items, asked.probe)
    row["truncated"] = int(done["truncated"].sum())
    for name, column in (_RATES[asked.probe] | {"truncation": "truncated"}).items():
        filled = done[done[column].notna()]
        row |= rate(name, as_floats(filled[column]), asked.contexts(filled))
    if asked.probe == "greedy" and len(done):
        f1 = done["token_f1"].dropna()
        row["token_f1"] = float(f1.mean()) if len(f1) else None
    return row


def _paired(asked: _Asked, comparison: Comparison, language: str) -> Row:
    """The drop on the items that the probe measured in both checkpoints."""
    items = comparison.measured(asked.probe, language=language)
    row = paired_drop(asked.inputs, comparison, items, CORRECT[asked.probe])
    if items.empty:
        return row
    dense, floor = float(sides_of(items, CORRECT[asked.probe])[0].mean()), floor_of(items, asked.probe, "_dense")
    relative, reason = over_headroom(row["drop"], dense, floor)
    return row | {"dense_accuracy": dense, "floor": floor, "normalised_drop": relative, "reason": reason}


TABLE = Table(
    name="accuracy",
    title="How much is still right?",
    reading=(
        "Open: the model writes the answer, and its greedy output must contain a gold answer. Choice: each option "
        "is scored by its log-likelihood after the same prompt, and the gold one must win. If open falls and choice "
        "does not, a multiple-choice benchmark would have noticed nothing. Drops are in percentage points. Whiskers "
        "are 95 % intervals over contexts."
    ),
    needs="the probe greedy or choice on any checkpoint",
    columns=(
        *_IDENTITY,
        *_COUNTS,
        *columns_of(PERCENTAGE, *_MEASURES, interval=True),
        Column("token_f1", SCORE),
        Column("n_paired", COUNT),
        Column("dense_accuracy", PERCENTAGE),
        Column("drop", POINTS, interval=True),
        *MCNEMAR,
        Column("floor", SHARE),
        Column("normalised_drop", RATIO),
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        (
            Dots(
                "Accuracy, languages pooled",
                (
                    Series("accuracy", "greedy", "open: says it", {"probe": "greedy"}),
                    Series("accuracy", "choice", "choice: recognises it", {"probe": "choice"}),
                ),
                width=1.15,
                linked=True,
                text=whole_percent,
                legend=4,
            ),
            Heat("Open accuracy by language, %", "accuracy", "greedy", {"probe": "greedy"}),
        ),
        rows=lambda frame: frame[frame["format"] == "open"],
    ),
    corrections=(Holm(("task", "format", "probe", "language")),),
    lacks=(
        Lack("probe", "the probe greedy", "greedy"),
        Lack("probe", "the probe choice", "choice"),
        Lack("drop", "a checkpoint with its base (for the drops)"),
    ),
)


def _screening_rows(inputs: Inputs) -> list[Row]:
    """Within a task and base, the checkpoints that stopped early first."""
    return [
        {
            **{name: getattr(each, name) for name in ("task", "checkpoint", "base", "decision", "asked", "items")},
            "look": sum(size <= each.asked for size in each.looks),
            "looks": len(each.looks),
            "pass_level": nominal(PASS_LEVEL, each.looks),
            "block_level": nominal(BLOCK_LEVEL, each.looks),
        }
        for each in sorted(screened_of(inputs.run), key=lambda each: (each.task, each.base, not each.early))
    ]


SCREENING = Table(
    name="screening",
    title="Decided early: which checkpoints needed only some of the items?",
    reading=(
        "The gate judged a checkpoint's first items, and then more, until it could pass or block it. Each look has "
        "a smaller level than a single look would have, so the error over all looks is the gate's. A row shows the "
        "last look, its verdict, and the levels of one look: of a pass, and of a block before its correction for "
        "the number of criteria and languages. Every number of a checkpoint that stopped early describes its first "
        "items alone."
    ),
    needs="screen: in the sweep file",
    columns=(
        *columns_of(TEXT, "task", "checkpoint", "base", "decision"),
        *columns_of(COUNT, "look", "looks", "asked", "items"),
        *columns_of(PERCENTAGE, "pass_level", "block_level"),
        REASON,
    ),
    compute=_screening_rows,
    counts="asked",
    silent=True,
)
