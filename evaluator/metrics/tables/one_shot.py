"""Table `one_shot`: does one example repair the drop?

0-shot and 1-shot accuracy and the prune gap (dense minus pruned) of each, on the items measured in all four. 0-shot is
`open_capped` where it was asked: its context is cut as that of `one_shot` is, so that the two differ by the example
alone. Otherwise it is `open`, and `zero_shot_format` says so.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    P_VALUE,
    PERCENTAGE,
    POINTS,
    REASON,
    SUBJECT,
    TEXT,
    Column,
    Row,
    columns_of,
)
from evaluator.metrics.counting import joined_reasons
from evaluator.metrics.drops import why_unpaired
from evaluator.metrics.figure import Dots, Figure, Heat, Series
from evaluator.metrics.inputs import ITEM, SIDES, Inputs, slices
from evaluator.metrics.measures import as_floats, difference, paired_difference, rate
from evaluator.metrics.table import Holm, Lack, Table

SHOTS = ("zero", "one")


def _rows(inputs: Inputs) -> Iterator[Row]:
    zeros = {format: inputs.comparisons(format) for format in ("open_capped", "open")}
    for key, one in inputs.comparisons("one_shot").items():
        if one.outcomes.empty:
            continue
        format = next((format for format in zeros if not zeros[format][key].outcomes.empty), "open")
        both = zeros[format][key].measured("greedy")
        both = both.merge(one.measured("greedy"), on=list(ITEM), suffixes=("_zero", "_one"))
        for language, items in slices(both, inputs.languages(one.subject.task)):
            row = {**one.subject.row, "language": language, "zero_shot_format": format, "n": len(items)}
            row |= one.counts(language, "greedy") | _shots(inputs, one.subject.task, items)
            why = why_unpaired(one, language, "greedy")
            yield row | {"reason": joined_reasons(row.get("reason"), why)}


def _shots(inputs: Inputs, task: str, items: pd.DataFrame) -> Row:
    if items.empty:
        return {"reason": "no item is measured in both formats and both checkpoints"}
    row: Row = {}
    gaps, contexts = {}, inputs.contexts_of(task, items)
    for shot in SHOTS:
        dense, pruned = (as_floats(items[f"produced_{side}_{shot}"]) for side in SIDES)
        row |= rate(f"{shot}_shot_dense", dense, contexts) | rate(f"{shot}_shot_pruned", pruned, contexts)
        row |= paired_difference(f"{shot}_shot_gap", (dense, pruned), contexts, f"{shot}_shot_mcnemar_p")
        gaps[shot] = dense - pruned
    return row | difference("repaired", gaps["zero"] - gaps["one"], contexts, low=-2.0, high=2.0)


def _gap_columns(shot: str) -> tuple[Column, ...]:
    gap = Column(f"{shot}_shot_gap", POINTS, interval=True)
    return gap, *columns_of(P_VALUE, f"{shot}_shot_mcnemar_p", f"{shot}_shot_holm_p")


_GAPS = (("zero_shot_gap", "greedy", "0-shot"), ("one_shot_gap", "kept", "1-shot"))

TABLE = Table(
    name="one_shot",
    title="Does one example repair it?",
    reading=(
        "The gap to the dense model without and with one example in the prompt. If the example closes the gap, the "
        "answer was still there. zero_shot_format shows whether the prompt without the example had its context cut "
        "in the same way (open_capped)."
    ),
    needs="the formats open_capped and one_shot with the probe greedy, on a checkpoint and its base",
    columns=(
        *SUBJECT,
        LANGUAGE,
        *columns_of(COUNT, "n", "excluded", "engine_error", "unpaired"),
        Column("zero_shot_format", TEXT),
        *columns_of(PERCENTAGE, *(f"{shot}_shot_{side}" for shot in SHOTS for side in SIDES), interval=True),
        *_gap_columns("zero"),
        *_gap_columns("one"),
        Column("repaired", POINTS, interval=True),
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        (
            Dots(
                "Gap to the dense model",
                tuple(Series(column, colour, label) for column, colour, label in _GAPS),
                "points",
                width=1.15,
                linked=True,
                legend=4,
            ),
            *(
                Heat(f"{label} gap by language, points", column, colour, strength=lambda gap: 2 * abs(gap))
                for column, colour, label in _GAPS
            ),
        )
    ),
    corrections=tuple(Holm(("task", "language"), f"{shot}_shot_mcnemar_p", f"{shot}_shot_holm_p") for shot in SHOTS),
    lacks=(
        Lack(
            "zero_shot_format",
            "the format open_capped with the probe greedy (0-shot here is open, with whole contexts)",
            "open_capped",
        ),
    ),
)
