"""How a choice depends on its wrong options: on their kind, and on how much they look
like the answer.

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

import pandas as pd

from evaluator.metrics.columns import (
    BY_LANGUAGE,
    COUNT,
    COUNTED,
    DROP,
    MCNEMAR,
    PERCENTAGE,
    POINTS,
    TEXT,
    Column,
    Row,
)
from evaluator.metrics.exclusions import joined_reasons, measured
from evaluator.metrics.fates import sides_of
from evaluator.metrics.inputs import Comparison, Inputs, Part, statuses_of
from evaluator.metrics.measures import as_floats, difference, paired_difference, rate
from evaluator.metrics.table import Dots, Holm, Lack, Series, Table


def _rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.checkpoints:
        items = inputs.outcomes_of(subject.checkpoint, subject.task)
        found = set(_kind_of(items))
        kinds = [kind for kind in ("all", "some", "none") if kind in found]
        if len(kinds) > 1:
            for part in inputs.parts_of(subject, items):
                for kind in kinds:
                    yield from _of_kind(part, kind)


def _of_kind(part: Part, kind: str) -> Iterator[Row]:
    done, counts = measured(part.items, "choice")
    here = done[_kind_of(done) == kind]
    if here.empty:
        return
    row = part.row | counts | {"same_kind": kind, "n": len(here)}
    row |= rate("accuracy", here["recognised"], here)
    if part.comparison is not None:
        both = part.comparison.measured("choice", language=part.language)
        both = both[_kind_of(both, "_pruned") == kind]
        reason = joined_reasons(part.comparison.reason, row["reason"])
        row |= {"n_paired": len(both), "reason": reason}
        if len(both):
            sides = sides_of(both, "recognised")
            row["base_accuracy"] = float(sides[0].mean())
            row |= paired_difference("drop", sides, both)
    yield row


def _kind_of(items: pd.DataFrame, side: str = "") -> pd.Series:
    """How many of an item's distractors are of the gold option's kind, in a word;
    null if nothing was scored."""
    same, options = items[f"same_kind{side}"], items[f"options{side}"]
    kinds = pd.Series("some", index=items.index, dtype=object)
    kinds[same == options - 1] = "all"
    kinds[same == 0] = "none"
    return kinds.where(same.notna())


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
        *BY_LANGUAGE,
        Column("same_kind", TEXT, "wrong options of the answer's kind"),
        *COUNTED,
        *PERCENTAGE.estimates("accuracy"),
        *COUNT("n_paired"),
        *PERCENTAGE("base_accuracy", n="n_paired"),
        *DROP,
    ),
    compute=_rows,
    corrections=(Holm(("task", "language", "same_kind")),),
)

_RECOGNISED = {"standard": "recognised", "hard": "hard_recognised"}
_GREEDY = "the probe greedy on a checkpoint and its base (for the dissociation rates)"


def _hard_rows(inputs: Inputs) -> Iterator[Row]:
    for part in inputs.parts("hard_choice_status"):
        nothing = "no item was measured with both choice and hard_choice"
        done, row = measured(part.items, "choice", "hard_choice", nothing=nothing)
        for kind, column in _RECOGNISED.items():
            row |= rate(f"{kind}_accuracy", done[column], done)
        sides = as_floats(done["hard_recognised"]), as_floats(done["recognised"])
        row |= paired_difference("difference", sides, done)
        comparison = part.comparison
        if comparison is not None:
            statuses = comparison.outcomes[statuses_of("greedy")]
            unsaid = f"needs {_GREEDY}"
            if comparison.reason or statuses.notna().all(axis=1).any():
                unsaid = ""
            row |= _dissociations(comparison, part.language)
            row["reason"] = joined_reasons(comparison.reason, unsaid, row["reason"])
        yield part.row | row


def _dissociations(comparison: Comparison, language: str) -> Row:
    items = comparison.measured("greedy", "choice", "hard_choice", language=language)
    right = items[["produced_dense", "recognised_dense", "hard_recognised_dense"]] == 1
    known = items[right.all(axis=1)]
    silent = as_floats(known["produced_pruned"]) == 0
    standard = silent * as_floats(known["recognised_pruned"])
    hard = silent * as_floats(known["hard_recognised_pruned"])
    return {
        "known": len(known),
        **rate("standard_dissociation", standard, known),
        **rate("hard_dissociation", hard, known),
        **difference("dissociation_difference", hard - standard, known),
    }


def _both_kinds(column: str) -> tuple[Series, ...]:
    return (
        Series(f"standard_{column}", "choice", "standard distractors"),
        Series(f"hard_{column}", "lost", "hard distractors"),
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
        *BY_LANGUAGE,
        *COUNTED,
        *PERCENTAGE.estimates(*(f"{kind}_accuracy" for kind in _RECOGNISED)),
        *POINTS.estimates("difference", p="mcnemar_p"),
        *MCNEMAR,
        *COUNT("known"),
        *PERCENTAGE.estimates(
            *(f"{kind}_dissociation" for kind in _RECOGNISED), n="known"
        ),
        *POINTS.estimates("dissociation_difference", n="known"),
    ),
    compute=_hard_rows,
    figure=(
        Dots("Choice accuracy", _both_kinds("accuracy"), linked=True),
        Dots(
            "Recognised, no longer said",
            _both_kinds("dissociation"),
            "points",
            linked=True,
        ),
    ),
    corrections=(Holm(("task", "language")),),
    lacks=(Lack("known", _GREEDY),),
)
