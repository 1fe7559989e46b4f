"""Table `candidates`: do listed candidates help if the answer is not among them?

Open accuracy without candidates, with distractors only, with unrelated ones, and with
the gold among them, on the items measured under every evaluated format. `difference` is
from `open`, paired.
"""

from collections.abc import Iterator

import pandas as pd

from evaluator.metrics.columns import (
    BY_LANGUAGE,
    COUNTED,
    MCNEMAR,
    PERCENTAGE,
    POINTS,
    TEXT,
    Row,
)
from evaluator.metrics.exclusions import all_measured, joined_reasons, measured
from evaluator.metrics.inputs import ALL, Inputs, in_language
from evaluator.metrics.measures import as_floats, paired_difference, rate
from evaluator.metrics.table import Dots, Holm, Lack, Series, Table

# formats, in the order of the table
COMPARED = ("open", "distractors_only", "unrelated", "shown")


def _rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.checkpoints:
        asked: dict[str, pd.DataFrame] = {}
        for format in COMPARED:
            items = inputs.outcomes_of(subject.checkpoint, subject.task, format)
            if items["greedy_status"].notna().any():
                asked[format] = items
        if len(asked) < 2 or "open" not in asked:
            continue
        common = _common(asked)
        for language in (ALL, *inputs.languages(subject.task)):
            opened = in_language(common["open"], language)
            for format, items in asked.items():
                _, counts = measured(in_language(items, language), "greedy")
                listed = common[format].loc[opened.index]
                row = counts | _accuracy(listed, opened, format)
                if listed.empty:
                    nothing = "no item was measured in every format"
                    row["reason"] = joined_reasons(nothing, row["reason"])
                yield subject.row | {"language": language, "format": format} | row


def _common(asked: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The items that were measured in every format, by their numbers."""
    done = {}
    for format, items in asked.items():
        measured_items = all_measured(items, "greedy_status")
        done[format] = measured_items.set_index("item", drop=False)
    numbers = sorted(set.intersection(*(set(items.index) for items in done.values())))
    return {format: items.loc[numbers] for format, items in done.items()}


def _accuracy(listed: pd.DataFrame, opened: pd.DataFrame, format: str) -> Row:
    sides = as_floats(listed["produced"]), as_floats(opened["produced"])
    row: Row = {"n": len(listed), **rate("accuracy", sides[0], listed)}
    if format != "open":
        row |= paired_difference("difference", sides, listed)
    return row


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
        *BY_LANGUAGE,
        *TEXT("format"),
        *COUNTED,
        *PERCENTAGE.estimates("accuracy"),
        *POINTS.estimates("difference", p="mcnemar_p"),
        *MCNEMAR,
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
