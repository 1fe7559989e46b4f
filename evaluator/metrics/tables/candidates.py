"""Table `candidates`: do listed candidates help if the answer is not among them?

Open accuracy without candidates, with distractors only, with unrelated ones, and with
the gold among them, on the items measured under every evaluated format. `difference` is
from `open`, paired.
"""

from collections.abc import Iterator
from functools import reduce

import numpy as np

from evaluator.metrics.columns import (
    BY_LANGUAGE,
    COUNTED,
    MCNEMAR,
    PERCENTAGE,
    POINTS,
    TEXT,
    Row,
)
from evaluator.metrics.cuts import Cut
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.items import Items, within
from evaluator.metrics.measures import Gap, Share
from evaluator.metrics.table import Dots, Holm, Lack, Series, Table

# formats, in the order of the table
COMPARED = ("open", "distractors_only", "unrelated", "shown")


_GAP = Gap("difference", "produced", less="open_produced")


def _rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.checkpoints:
        asked: dict[str, Items] = {}
        for format in COMPARED:
            items = inputs.of(subject, format)
            if items.any_ran("greedy"):
                asked[format] = items
        if len(asked) < 2 or "open" not in asked:
            continue
        numbers = [items.measured("greedy")["item"] for items in asked.values()]
        common = reduce(np.intersect1d, numbers)
        for format, items in asked.items():
            gap = [] if format == "open" else [_GAP]
            cut = Cut(
                keys={"format": format},
                probes=("greedy",),
                where=within(common),
                measures=(Share("accuracy", "produced"), *gap),
                nothing="no item was measured in every format",
            )
            beside = items.beside("open_", asked["open"])
            yield from cut.rows(inputs, subject, format, beside)


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
    figure=(Dots("Said, by what is listed as candidates", _LISTED, linked=True),),
    corrections=(Holm(("task", "language", "format")),),
    lacks=tuple(
        Lack("format", f"the format {format} with the probe greedy", format)
        for format in COMPARED
    ),
)
