"""What listed answers do: candidates in the prompt, answers without the gold one listed, and hard distractors.

Table `candidates`: do listed candidates help if the answer is not among them?

It has open accuracy without candidates, with distractors only, with unrelated ones, and with the gold among them. All
are on the items measured under every evaluated format. `difference` is from `open`, paired.

Table `distractors`: does recognition depend on whether the wrong options are of the answer's kind?

A single year among three names reveals the answer. `evaluator.tasks.answer_types` gives the kind of an option. The
records of `choice` hold each option's text. So runs of any age, and items with their own options, have kinds too.

    all, some, none    of the item's distractors are of the gold option's kind

Only checkpoints with items of several kinds have rows. `drop` is the base's accuracy minus the checkpoint's on the
items of a kind that both measured. Without scores an item has no kind. So `excluded` and `engine_error` count the items
of the whole language in each of its rows.

Table `hard_distractors`: does recognition survive options that look like the answer?

Both kinds of choice are compared on the items measured with both. Both dissociation rates use the same items: those
that the dense model produced, and recognised among both kinds of distractors. Differences are hard minus standard.
`known` is n of the dissociation rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    MCNEMAR,
    PERCENTAGE,
    POINTS,
    REASON,
    SUBJECT,
    TEXT,
    Column,
    Row,
    columns_of,
)
from evaluator.metrics.counting import joined_reasons, measured
from evaluator.metrics.drops import sides_of
from evaluator.metrics.figure import Dots, Figure, Series
from evaluator.metrics.inputs import Comparison, Inputs, in_language, slices
from evaluator.metrics.intervals import ItemNumbers
from evaluator.metrics.measures import as_floats, difference, item_numbers, paired_difference, rate
from evaluator.metrics.table import Holm, Lack, Table
from evaluator.store.outcomes import MEASURED

COMPARED = ("open", "distractors_only", "unrelated", "shown")  # formats, in the order of the table


def _rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.checkpoints:
        answers = {format: inputs.outcomes_of(subject.checkpoint, subject.task, format) for format in COMPARED}
        asked = {format: items for format, items in answers.items() if items["greedy_status"].notna().any()}
        if len(asked) < 2 or "open" not in asked:
            continue
        common = _common(asked.values())
        for language, opened in slices(_pick(asked["open"], common), inputs.languages(subject.task)):
            for format, everything in asked.items():
                row = {**subject.row, "language": language, "format": format}
                yield row | _compared(inputs, subject.task, in_language(everything, language), opened, format)


def _compared(inputs: Inputs, task: str, answers: pd.DataFrame, opened: pd.DataFrame, format: str) -> Row:
    """Accuracy in one format on the items of `opened`, and its difference from theirs."""
    items = _pick(answers, item_numbers(opened))
    _, row = measured(answers, "greedy")
    nothing = None if len(items) else "no item was measured in every format"
    row |= {"n": len(items), "reason": joined_reasons(nothing, row["reason"])}
    listed, unlisted = as_floats(items["produced"]), as_floats(opened["produced"])
    contexts = inputs.contexts_of(task, items)
    row |= rate("accuracy", listed, contexts)
    if format != "open":
        row |= paired_difference("difference", (listed, unlisted), contexts)
    return row


def _common(answers: Iterable[pd.DataFrame]) -> ItemNumbers:
    """The numbers of the items with greedy measured in all of these."""
    sets = [set(items.loc[items["greedy_status"].isin(MEASURED), "item"]) for items in answers]
    return np.asarray(sorted(set.intersection(*sets)), dtype=np.intp)


def _pick(answers: pd.DataFrame, items: ItemNumbers) -> pd.DataFrame:
    """The rows of these items, in this order."""
    return answers.set_index("item", drop=False).rename_axis(None).loc[items]


TABLE = Table(
    name="candidates",
    title="Do candidates help only when they hold the answer?",
    reading=(
        "Greedy accuracy with no candidates, with distractors only, with unrelated candidates, and with the gold "
        "answer among them, on the same items."
    ),
    needs="the formats open, distractors_only, unrelated and shown with the probe greedy",
    columns=(
        *SUBJECT,
        LANGUAGE,
        Column("format", TEXT),
        *columns_of(COUNT, "n", "excluded", "engine_error"),
        Column("accuracy", PERCENTAGE, interval=True),
        Column("difference", POINTS, interval=True),
        *MCNEMAR,
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        (
            Dots(
                "Open accuracy by what is listed as candidates",
                (
                    Series("accuracy", "greedy", "none", {"format": "open"}),
                    Series("accuracy", "lost", "distractors only", {"format": "distractors_only"}),
                    Series("accuracy", "negative", "unrelated", {"format": "unrelated"}),
                    Series("accuracy", "shown", "gold among them", {"format": "shown"}),
                ),
                linked=True,
                legend=4,
            ),
        )
    ),
    corrections=(Holm(("task", "language", "format")),),
    lacks=tuple(Lack("format", f"the format {format} with the probe greedy", format) for format in COMPARED),
)


_KINDS = ("all", "some", "none")


def _distractors_rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.checkpoints:
        items = inputs.outcomes_of(subject.checkpoint, subject.task)
        found = set(_kind_of(items["same_kind"], items["options"]))
        kinds = [kind for kind in _KINDS if kind in found]
        if len(kinds) < 2:
            continue
        comparison = inputs.comparisons().get(subject.key)
        for language, of_language in slices(items, inputs.languages(subject.task)):
            done, counts = measured(of_language, "choice")
            for kind in kinds:
                here = done[_kind_of(done["same_kind"], done["options"]) == kind]
                if here.empty:
                    continue
                row = {**subject.row, "language": language, "same_kind": kind, **counts, "n": len(here)}
                row |= rate("accuracy", as_floats(here["recognised"]), inputs.contexts_of(subject.task, here))
                if comparison is not None:
                    row |= _drop(inputs, comparison, language, kind)
                    row["reason"] = joined_reasons(comparison.reason, row["reason"])
                yield row


def _drop(inputs: Inputs, comparison: Comparison, language: str, kind: str) -> Row:
    both = comparison.measured("choice", language=language)
    both = both[_kind_of(both["same_kind_pruned"], both["options_pruned"]) == kind]
    if both.empty:
        return {"n_paired": 0}
    dense, pruned = sides_of(both, "recognised")
    row: Row = {"n_paired": len(both), "base_accuracy": float(dense.mean())}
    contexts = inputs.contexts_of(comparison.subject.task, both)
    return row | paired_difference("drop", (dense, pruned), contexts)


def _kind_of(same: pd.Series, options: pd.Series) -> pd.Series:
    """How many of an item's distractors are of the gold option's kind, in a word; null if nothing was scored."""
    words = pd.Series(np.where(same == 0, "none", np.where(same == options - 1, "all", "some")), index=same.index)
    return words.where(same.notna().to_numpy())


DISTRACTORS = Table(
    name="distractors",
    title="Is the answer easier to pick where the other options are of another kind?",
    reading=(
        "Items by how many of their wrong options have the right answer's kind (date, number, name or other): all, "
        "some or none. If accuracy is higher with none than with all, the kind gives answers away. Drop is the "
        "base's accuracy minus the checkpoint's on the same items. Easy options hide a drop that shows with all and "
        "not with none."
    ),
    needs="the probe choice, and items whose wrong options are of the answer's kind to a different extent",
    columns=(
        *SUBJECT,
        LANGUAGE,
        Column("same_kind", TEXT, "wrong options of the answer's kind"),
        *columns_of(COUNT, "n", "excluded", "engine_error"),
        Column("accuracy", PERCENTAGE, interval=True),
        Column("n_paired", COUNT),
        Column("base_accuracy", PERCENTAGE),
        Column("drop", POINTS, interval=True),
        *MCNEMAR,
        REASON,
    ),
    compute=_distractors_rows,
    corrections=(Holm(("task", "language", "same_kind")),),
    silent=True,
)


_RECOGNISED = {"standard": "recognised", "hard": "hard_recognised"}
_GREEDY = "the probe greedy on a checkpoint and its base (for the dissociation rates)"


def _hard_distractors_rows(inputs: Inputs) -> Iterator[Row]:
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
    """What to run if both checkpoints were compared but greedy did not run on both."""
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


HARD_DISTRACTORS = Table(
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
    compute=_hard_distractors_rows,
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
