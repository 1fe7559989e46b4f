"""Table `one_shot`: accuracy without and with one example, and the gap (dense minus
pruned) of each, on the items measured in all four.

The 0-shot format is `open_capped` if it was evaluated: its context is cut as that of
`one_shot` is, so the two differ by the example alone. Otherwise it is `open`;
`zero_shot_format` names which.
"""

from collections.abc import Iterator

from evaluator.metrics.columns import (
    BY_LANGUAGE,
    COUNT,
    COUNTED,
    P_VALUE,
    PERCENTAGE,
    POINTS,
    WORDS,
    Row,
)
from evaluator.metrics.fates import paired_row
from evaluator.metrics.inputs import ITEM, SIDES, Inputs, Part
from evaluator.metrics.measures import as_floats, difference, paired_difference, rate
from evaluator.metrics.table import Dots, Heat, Holm, Lack, Series, Table

SHOTS = ("zero", "one")


def _rows(inputs: Inputs) -> Iterator[Row]:
    for key, one in inputs.comparisons("one_shot").items():
        if one.outcomes.empty:
            continue
        zero, format = inputs.comparisons("open_capped")[key], "open_capped"
        if zero.outcomes.empty:
            zero, format = inputs.comparisons("open")[key], "open"
        both = zero.measured("greedy").merge(
            one.measured("greedy"), on=[*ITEM], suffixes=("_zero", "_one")
        )
        for part in inputs.parts_of(one.subject, both, "one_shot"):
            yield _row(part) | {"zero_shot_format": format}


def _row(part: Part) -> Row:
    items = part.items
    nothing = "no item is measured in both formats and both checkpoints"
    row = paired_row(part, "greedy", nothing)
    if items.empty:
        return row
    gaps = []
    for shot in SHOTS:
        dense, pruned = (as_floats(items[f"produced_{side}_{shot}"]) for side in SIDES)
        gaps.append(dense - pruned)
        p = f"{shot}_shot_mcnemar_p"
        row |= rate(f"{shot}_shot_dense", dense, items)
        row |= rate(f"{shot}_shot_pruned", pruned, items)
        row |= paired_difference(f"{shot}_shot_gap", (dense, pruned), items, p)
    repaired = gaps[0] - gaps[1]
    return row | difference("repaired", repaired, items, low=-2.0, high=2.0)


_CAPPED = (
    "the format open_capped with the probe greedy (0-shot here is open, with whole"
    " contexts)"
)
_GAPS = (("zero_shot_gap", "greedy", "0-shot"), ("one_shot_gap", "kept", "1-shot"))

TABLE = Table(
    name="one_shot",
    title="Does one example repair it?",
    reading=(
        "The gap to the dense model without and with one example in the prompt. If the"
        " example closes the gap, the answer was still there. zero_shot_format shows"
        " whether the prompt without the example had its context cut in the same way"
        " (open_capped)."
    ),
    needs=(
        "the formats open_capped and one_shot with the probe greedy, on a checkpoint"
        " and its base"
    ),
    columns=(
        *BY_LANGUAGE,
        *COUNTED,
        *COUNT("unpaired"),
        *WORDS("zero_shot_format"),
        *PERCENTAGE.estimates(
            *(f"{shot}_shot_{side}" for shot in SHOTS for side in SIDES)
        ),
        *POINTS.estimates("zero_shot_gap", p="zero_shot_mcnemar_p"),
        *P_VALUE("zero_shot_mcnemar_p", "zero_shot_holm_p"),
        *POINTS.estimates("one_shot_gap", p="one_shot_mcnemar_p"),
        *P_VALUE("one_shot_mcnemar_p", "one_shot_holm_p"),
        *POINTS.estimates("repaired"),
    ),
    compute=_rows,
    figure=(
        Dots(
            "Gap to the dense model",
            tuple(Series(*each) for each in _GAPS),
            "points",
            width=1.15,
            linked=True,
        ),
        *(
            Heat(
                f"{label} gap by language, points",
                column,
                colour,
                strength=lambda gap: 2 * abs(gap),
            )
            for column, colour, label in _GAPS
        ),
    ),
    corrections=tuple(
        Holm(("task", "language"), f"{shot}_shot_mcnemar_p", f"{shot}_shot_holm_p")
        for shot in SHOTS
    ),
    lacks=(Lack("zero_shot_format", _CAPPED, "open_capped"),),
)
