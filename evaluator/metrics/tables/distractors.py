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
rates use the same items: those that the dense model said, and picked among both
kinds of distractors. Differences are hard minus standard; `known` is n of the
dissociation rates.
"""

from collections.abc import Callable, Iterator

import numpy as np

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
from evaluator.metrics.cuts import Cut, add
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.items import Flags, Items, joined_reasons
from evaluator.metrics.measures import Average, Gap, Share, difference, drop, rate
from evaluator.metrics.table import Dots, Holm, Lack, Series, Table

# of an item's distractors, how many are of the gold option's kind
_KINDS: dict[str, Callable[[Items], Flags]] = {
    "all": lambda items: items["same_kind"] == items["options"] - 1,
    "some": lambda items: (
        (items["same_kind"] > 0) & (items["same_kind"] < items["options"] - 1)
    ),
    "none": lambda items: items["same_kind"] == 0,
}


def _rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.checkpoints:
        items = inputs.of(subject)
        kinds = {name: of for name, of in _KINDS.items() if of(items).any()}
        for name, of in kinds.items() if len(kinds) > 1 else ():
            cut = Cut(
                keys={"same_kind": name},
                probes=("choice",),
                where=of,
                measures=(Share("accuracy", "recognised"),),
                paired=(
                    Average("base_accuracy", "base_recognised"),
                    drop("drop", "recognised"),
                ),
            )
            for row in cut.rows(inputs, subject):
                if row["n"]:
                    yield row


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


def _dissociations(items: Items) -> Row:
    """Of the answers that the base says and picks from both kinds of options."""
    right = ("base_produced", "base_recognised", "base_hard_recognised")
    items = items.measured("greedy", "choice", "hard_choice", both=True)
    items = items.take(np.logical_and.reduce([items[name] == 1 for name in right]))
    silent = items["produced"] == 0
    shares = {kind: silent * items[name] for kind, name in _RECOGNISED.items()}
    row: Row = {"known": len(items)}
    for kind, values in shares.items():
        row |= rate(f"{kind}_dissociation", values, items)
    gap = shares["hard"] - shares["standard"]
    return row | difference("dissociation_difference", gap, items)


_HARD = Cut(
    probes=("choice", "hard_choice"),
    measures=(
        *(Share(f"{kind}_accuracy", name) for kind, name in _RECOGNISED.items()),
        Gap("difference", "hard_recognised", less="recognised"),
    ),
    nothing="no item was measured with both choice and hard_choice",
)


def _hard_rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.checkpoints:
        items = inputs.of(subject)
        if not items.any_ran("hard_choice"):
            continue
        alone = inputs.alone(subject) if subject.base else None
        unsaid = None
        said = items.has("base_greedy_status") & items.has("greedy_status")
        if not alone and not said.any():
            unsaid = f"needs {_GREEDY}"
        for row in _HARD.rows(inputs, subject):
            if subject.base:
                here = items.of(row["language"])
                add(row, _dissociations(here))
                add(row, {"reason": joined_reasons(alone, unsaid)})
            yield row


def _both_kinds(column: str) -> tuple[Series, ...]:
    return (
        Series(f"standard_{column}", "choice", "standard distractors"),
        Series(f"hard_{column}", "lost", "hard distractors"),
    )


HARD_DISTRACTORS = Table(
    name="hard_distractors",
    title="Is picking easy only because the other options are implausible?",
    reading=(
        "Standard distractors are the item's own or answers to other questions. Hard"
        " ones are those most similar to the gold answer. Left: picked. Right: picked"
        " only, among the answers that the dense model said, and picked with both kinds"
        " of options."
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
        Dots("Picked", _both_kinds("accuracy"), linked=True),
        Dots("Picked only", _both_kinds("dissociation"), "points", linked=True),
    ),
    corrections=(Holm(("task", "language")),),
    lacks=(Lack("known", _GREEDY),),
)
