"""Table `candidates`: do listed candidates help when the answer is not among them?

Open accuracy without candidates, with distractors only, with unrelated ones, and with the gold among them, on the same
items: those measured under every format that was asked. `difference` is from `open`, paired.
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
from evaluator.metrics.figure import Dots, Figure, Series
from evaluator.metrics.inputs import Inputs, in_language, slices
from evaluator.metrics.intervals import ItemNumbers
from evaluator.metrics.measures import as_floats, item_numbers, paired_difference, rate
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
    """The numbers of the items that greedy was measured on in all of these."""
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
