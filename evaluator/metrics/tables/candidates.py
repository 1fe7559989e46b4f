"""What listed answers do: candidates in the prompt, answers without the gold one
listed, and hard distractors.

Table `candidates`: do listed candidates help if the answer is not among them? Open
accuracy without candidates, with distractors only, with unrelated ones, and with the
gold among them, on the items measured under every evaluated format. `difference` is
from `open`, paired.

Table `distractors`: does recognition depend on whether the wrong options are of the
answer's kind? A single year among three names reveals the answer. `all`, `some` or
`none` of the item's distractors are of the gold option's kind
(`evaluator.tasks.answer_types`), by the option texts in the records of `choice`. Only
checkpoints with items of several kinds have rows. `drop` is the base's accuracy minus
the checkpoint's on the items of a kind that both measured. Without scores an item has
no kind. So `excluded` and `engine_error` count the items of the whole language in each
of its rows.

Table `hard_distractors`: does recognition survive options that look like the answer?
Both kinds of choice are compared on the items measured with both. Both dissociation
rates use the same items: those that the dense model produced, and recognised among both
kinds of distractors. Differences are hard minus standard; `known` is n of the
dissociation rates.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

import evaluator.metrics.columns as col
from evaluator.metrics.columns import Column, Row
from evaluator.metrics.exclusions import joined_reasons, measured
from evaluator.metrics.fates import sides_of
from evaluator.metrics.inputs import ALL, SIDES, Comparison, Inputs, in_language, slices
from evaluator.metrics.measures import as_floats, difference, paired_difference, rate
from evaluator.metrics.table import Axis, Dots, Holm, Lack, Series, Table
from evaluator.store.outcomes import MEASURED

# formats, in the order of the table
COMPARED = ("open", "distractors_only", "unrelated", "shown")


def _rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.checkpoints:
        answers = {
            format: inputs.outcomes_of(subject.checkpoint, subject.task, format)
            for format in COMPARED
        }
        asked = {
            format: items
            for format, items in answers.items()
            if items["greedy_status"].notna().any()
        }
        if len(asked) < 2 or "open" not in asked:
            continue
        done = {
            format: items[items["greedy_status"].isin(MEASURED)]
            for format, items in asked.items()
        }
        common = sorted(
            set.intersection(*(set(items["item"]) for items in done.values()))
        )
        same = {
            format: items.set_index("item", drop=False).loc[common]
            for format, items in done.items()
        }
        for language in (ALL, *inputs.languages(subject.task)):
            opened = in_language(same["open"], language)
            for format, items in asked.items():
                listed = same[format].loc[opened.index]
                _, row = measured(in_language(items, language), "greedy")
                nothing = (
                    None if len(listed) else "no item was measured in every format"
                )
                row |= {
                    "n": len(listed),
                    "reason": joined_reasons(nothing, row["reason"]),
                }
                sides = as_floats(listed["produced"]), as_floats(opened["produced"])
                contexts = inputs.contexts_of(subject.task, listed)
                row |= rate("accuracy", sides[0], contexts)
                if format != "open":
                    row |= paired_difference("difference", sides, contexts)
                yield {**subject.row, "language": language, "format": format, **row}


_LISTED = (
    Series("accuracy", "greedy", "none", {"format": "open"}),
    Series("accuracy", "lost", "distractors only", {"format": "distractors_only"}),
    Series("accuracy", "negative", "unrelated", {"format": "unrelated"}),
    Series("accuracy", "shown", "gold among them", {"format": "shown"}),
)

TABLE = Table(
    name="candidates",
    title="Do candidates help only when they hold the answer?",
    reading=(
        "Greedy accuracy with no candidates, with distractors only, with unrelated"
        " candidates, and with the gold answer among them, on the same items."
    ),
    needs=(
        "the formats open, distractors_only, unrelated and shown with the probe greedy"
    ),
    columns=(
        *col.BY_LANGUAGE,
        Column("format", col.TEXT),
        *col.COUNT("n", "excluded", "engine_error"),
        Column("accuracy", col.PERCENTAGE, interval=True),
        Column("difference", col.POINTS, interval=True),
        *col.MCNEMAR,
    ),
    compute=_rows,
    figure=(
        Dots("Open accuracy by what is listed as candidates", _LISTED, linked=True),
    ),
    corrections=(Holm(("task", "language", "format")),),
    lacks=tuple(
        Lack("format", f"the format {format} with the probe greedy", format)
        for format in COMPARED
    ),
)


def _distractors_rows(inputs: Inputs) -> Iterator[Row]:
    comparisons = inputs.comparisons()
    for subject in inputs.checkpoints:
        items = inputs.outcomes_of(subject.checkpoint, subject.task)
        found = set(_kind_of(items["same_kind"], items["options"]))
        kinds = [kind for kind in ("all", "some", "none") if kind in found]
        if len(kinds) < 2:
            continue
        comparison = comparisons.get(subject.key)
        for language, of_language in slices(items, inputs.languages(subject.task)):
            done, counts = measured(of_language, "choice")
            for kind in kinds:
                here = done[_kind_of(done["same_kind"], done["options"]) == kind]
                if here.empty:
                    continue
                row = {
                    **subject.row,
                    "language": language,
                    "same_kind": kind,
                    **counts,
                    "n": len(here),
                }
                row |= rate(
                    "accuracy",
                    as_floats(here["recognised"]),
                    inputs.contexts_of(subject.task, here),
                )
                if comparison is not None:
                    both = comparison.measured("choice", language=language)
                    both = both[
                        _kind_of(both["same_kind_pruned"], both["options_pruned"])
                        == kind
                    ]
                    row |= {
                        "n_paired": len(both),
                        "reason": joined_reasons(comparison.reason, row["reason"]),
                    }
                    if len(both):
                        sides = sides_of(both, "recognised")
                        row["base_accuracy"] = float(sides[0].mean())
                        row |= paired_difference(
                            "drop", sides, inputs.contexts_of(subject.task, both)
                        )
                yield row


def _kind_of(same: pd.Series, options: pd.Series) -> pd.Series:
    """How many of an item's distractors are of the gold option's kind, in a word;
    null if nothing was scored."""
    words = pd.Series(
        np.where(same == 0, "none", np.where(same == options - 1, "all", "some")),
        index=same.index,
    )
    return words.where(same.notna().to_numpy())


DISTRACTORS = Table(
    name="distractors",
    title="Is the answer easier to pick where the other options are of another kind?",
    reading=(
        "Items by how many of their wrong options have the right answer's kind (date,"
        " number, name or other): all, some or none. If accuracy is higher with none"
        " than with all, the kind gives answers away. Drop is the base's accuracy minus"
        " the checkpoint's on the same items. Easy options hide a drop that shows with"
        " all and not with none."
    ),
    needs=(
        "the probe choice, and items whose wrong options are of the answer's kind to a"
        " different extent"
    ),
    columns=(
        *col.BY_LANGUAGE,
        Column("same_kind", col.TEXT, "wrong options of the answer's kind"),
        *col.COUNT("n", "excluded", "engine_error"),
        Column("accuracy", col.PERCENTAGE, interval=True),
        Column("n_paired", col.COUNT),
        Column("base_accuracy", col.PERCENTAGE),
        Column("drop", col.POINTS, interval=True),
        *col.MCNEMAR,
    ),
    compute=_distractors_rows,
    corrections=(Holm(("task", "language", "same_kind")),),
    silent=True,
)

_RECOGNISED = {"standard": "recognised", "hard": "hard_recognised"}
_GREEDY = "the probe greedy on a checkpoint and its base (for the dissociation rates)"


def _hard_distractors_rows(inputs: Inputs) -> Iterator[Row]:
    comparisons = inputs.comparisons()
    for subject in inputs.checkpoints:
        items = inputs.outcomes_of(subject.checkpoint, subject.task)
        if not items["hard_choice_status"].notna().any():
            continue
        comparison = comparisons.get(subject.key)
        for language, of_language in slices(items, inputs.languages(subject.task)):
            nothing = "no item was measured with both choice and hard_choice"
            done, row = measured(of_language, "choice", "hard_choice", nothing=nothing)
            contexts = inputs.contexts_of(subject.task, done)
            for kind, column in _RECOGNISED.items():
                row |= rate(f"{kind}_accuracy", as_floats(done[column]), contexts)
            sides = as_floats(done["hard_recognised"]), as_floats(done["recognised"])
            row |= paired_difference("difference", sides, contexts)
            if comparison is not None:
                said = (
                    comparison.outcomes[[f"greedy_status_{side}" for side in SIDES]]
                    .notna()
                    .all(axis=1)
                    .any()
                )
                unsaid = None if said or comparison.reason else f"needs {_GREEDY}"
                row |= _dissociations(inputs, comparison, language)
                row["reason"] = joined_reasons(comparison.reason, unsaid, row["reason"])
            yield {**subject.row, "language": language, **row}


def _dissociations(inputs: Inputs, comparison: Comparison, language: str) -> Row:
    both = comparison.measured("greedy", "choice", "hard_choice", language=language)
    known = both[
        (
            both[["produced_dense", "recognised_dense", "hard_recognised_dense"]] == 1
        ).all(axis=1)
    ]
    silent = as_floats(known["produced_pruned"]) == 0
    mc_only = {
        kind: silent * as_floats(known[f"{column}_pruned"])
        for kind, column in _RECOGNISED.items()
    }
    row: Row = {"known": len(known)}
    contexts = inputs.contexts_of(comparison.subject.task, known)
    for kind, values in mc_only.items():
        row |= rate(f"{kind}_dissociation", values, contexts)
    return row | difference(
        "dissociation_difference", mc_only["hard"] - mc_only["standard"], contexts
    )


_PAINTS = {
    "standard": ("choice", "standard distractors"),
    "hard": ("lost", "hard distractors"),
}
_PANELS: tuple[tuple[str, str, Axis], ...] = (
    ("accuracy", "Choice accuracy", "rates"),
    ("dissociation", "Recognised, no longer said", "points"),
)

HARD_DISTRACTORS = Table(
    name="hard_distractors",
    title="Is choice easy only because the other options are implausible?",
    reading=(
        "Standard distractors are the item's own or answers to other questions. Hard"
        " ones are those most similar to the gold answer. Left: choice accuracy. Right:"
        " the share that is recognised but no longer said, among the answers that the"
        " dense model produced and recognised with both kinds of options."
    ),
    needs="the probes choice and hard_choice, and greedy for the dissociation rates",
    columns=(
        *col.BY_LANGUAGE,
        *col.COUNT("n", "excluded", "engine_error"),
        *col.PERCENTAGE(*(f"{kind}_accuracy" for kind in _RECOGNISED), interval=True),
        Column("difference", col.POINTS, interval=True),
        *col.MCNEMAR,
        Column("known", col.COUNT),
        *col.PERCENTAGE(
            *(f"{kind}_dissociation" for kind in _RECOGNISED), interval=True
        ),
        Column("dissociation_difference", col.POINTS, interval=True),
    ),
    compute=_hard_distractors_rows,
    figure=tuple(
        Dots(
            title,
            tuple(
                Series(f"{kind}_{column}", *paint) for kind, paint in _PAINTS.items()
            ),
            axis,
            linked=True,
        )
        for column, title, axis in _PANELS
    ),
    corrections=(Holm(("task", "language")),),
    lacks=(Lack("known", _GREEDY),),
)
