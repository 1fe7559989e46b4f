"""Table `hard_distractors`: does recognition survive options that look like the answer?

Both kinds of choice are compared on the items measured with both. Both dissociation rates use the same items: those the
dense model produced, and recognised among both kinds of distractors. Differences are hard minus
standard; `known` is n of the dissociation rates.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    MCNEMAR,
    PERCENTAGE,
    POINTS,
    REASON,
    SUBJECT,
    Column,
    Row,
    columns_of,
)
from evaluator.metrics.counting import joined_reasons, measured
from evaluator.metrics.figure import Dots, Figure, Series
from evaluator.metrics.inputs import Comparison, Inputs, slices
from evaluator.metrics.measures import as_floats, difference, paired_difference, rate
from evaluator.metrics.table import Holm, Lack, Table

_RECOGNISED = {"standard": "recognised", "hard": "hard_recognised"}
_GREEDY = "the probe greedy on a checkpoint and its base (for the dissociation rates)"


def _rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.checkpoints:
        items = inputs.outcomes_of(subject.checkpoint, subject.task)
        if not items["hard_choice_status"].notna().any():
            continue
        comparison = inputs.comparisons().get(subject.key)
        for language, of_language in slices(items, inputs.languages(subject.task)):
            row = {**subject.row, "language": language, **_accuracies(inputs, subject.task, of_language)}
            if comparison is not None:
                row |= _dissociations(inputs, comparison, language)
                row["reason"] = joined_reasons(comparison.reason, _unsaid(comparison), row["reason"])
            yield row


def _unsaid(comparison: Comparison) -> str | None:
    """What to run where both checkpoints were compared and one was never asked to say the answer."""
    said = comparison.outcomes[["greedy_status_dense", "greedy_status_pruned"]].notna().all(axis=1).any()
    return None if said or comparison.reason else f"needs {_GREEDY}"


def _accuracies(inputs: Inputs, task: str, items: pd.DataFrame) -> Row:
    nothing = "no item was measured with both choice and hard_choice"
    done, row = measured(items, "choice", "hard_choice", nothing=nothing)
    contexts = inputs.contexts_of(task, done)
    for kind, column in _RECOGNISED.items():
        row |= rate(f"{kind}_accuracy", as_floats(done[column]), contexts)
    sides = as_floats(done["hard_recognised"]), as_floats(done["recognised"])
    return row | paired_difference("difference", sides, contexts)


def _dissociations(inputs: Inputs, comparison: Comparison, language: str) -> Row:
    both = comparison.measured("greedy", "choice", "hard_choice", language=language)
    known = both[(both[["produced_dense", "recognised_dense", "hard_recognised_dense"]] == 1).all(axis=1)]
    silent = as_floats(known["produced_pruned"]) == 0
    mc_only = {kind: silent * as_floats(known[f"{column}_pruned"]) for kind, column in _RECOGNISED.items()}
    row: Row = {"known": len(known)}
    contexts = inputs.contexts_of(comparison.subject.task, known)
    for kind, values in mc_only.items():
        row |= rate(f"{kind}_dissociation", values, contexts)
    return row | difference("dissociation_difference", mc_only["hard"] - mc_only["standard"], contexts)


TABLE = Table(
    name="hard_distractors",
    title="Is choice easy only because the other options are implausible?",
    reading=(
        "Standard distractors are the item's own or answers to other questions. Hard ones are those most similar to "
        "the gold answer. Left: choice accuracy. Right: the share that is recognised but no longer said, among the "
        "answers that the dense model produced and recognised with both kinds of options."
    ),
    needs="the probes choice and hard_choice, and greedy for the dissociation rates",
    columns=(
        *SUBJECT,
        LANGUAGE,
        *columns_of(COUNT, "n", "excluded", "engine_error"),
        *columns_of(PERCENTAGE, *(f"{kind}_accuracy" for kind in _RECOGNISED), interval=True),
        Column("difference", POINTS, interval=True),
        *MCNEMAR,
        Column("known", COUNT),
        *columns_of(PERCENTAGE, *(f"{kind}_dissociation" for kind in _RECOGNISED), interval=True),
        Column("dissociation_difference", POINTS, interval=True),
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        tuple(
            Dots(
                title,
                (
                    Series(f"standard_{column}", "choice", "standard distractors"),
                    Series(f"hard_{column}", "lost", "hard distractors"),
                ),
                "rates" if column == "accuracy" else "points",
                linked=True,
                legend=4 * (column == "accuracy"),
            )
            for column, title in (("accuracy", "Choice accuracy"), ("dissociation", "Recognised, no longer said"))
        )
    ),
    corrections=(Holm(("task", "language")),),
    lacks=(Lack("known", _GREEDY),),
)
