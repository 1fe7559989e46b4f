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
from evaluator.metrics.cuts import Cut
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.intervals import Floats
from evaluator.metrics.items import Flags, Items
from evaluator.metrics.measures import Gap, Share, as_floats
from evaluator.metrics.table import Dots, Heat, Holm, Lack, Series, Table
from evaluator.store.outcomes import MEASURED

SHOTS = {"zero": "zero_", "one": ""}  # and the prefix of its columns
_SIDES = ("dense", "pruned")


def _measured_too(items: Items) -> Flags:
    """Which items both sides measured without the example too."""
    statuses = ("zero_base_greedy_status", "zero_greedy_status")
    return items.having(statuses, *MEASURED)


def _repaired(items: Items) -> Floats:
    """The gap without the example minus the gap with it."""
    zero = items["zero_base_produced"] - items["zero_produced"]
    one = items["base_produced"] - items["produced"]
    return as_floats(zero - one)


def _measures(shot: str, prefix: str) -> tuple[Share, ...]:
    base, own = f"{prefix}base_produced", f"{prefix}produced"
    return (
        Share(f"{shot}_shot_dense", base),
        Share(f"{shot}_shot_pruned", own),
        Gap(f"{shot}_shot_gap", base, less=own, p=f"{shot}_shot_mcnemar_p"),
    )


_CUT = Cut(
    probes=("greedy",),
    both=True,
    where=_measured_too,
    measures=(
        *(each for shot in SHOTS.items() for each in _measures(*shot)),
        Share("repaired", _repaired, low=-2.0, high=2.0),
    ),
    nothing="no item is measured in both formats and both checkpoints",
)


def _rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.compared:
        one = inputs.of(subject, "one_shot")
        if not len(one.both):
            continue
        zero, format = inputs.of(subject, "open_capped"), "open_capped"
        if not len(zero.both):
            zero, format = inputs.of(subject), "open"
        items = one.beside("zero_", zero)
        for row in _CUT.rows(inputs, subject, "one_shot", items):
            yield row | {"zero_shot_format": format}


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
            *(f"{shot}_shot_{side}" for shot in SHOTS for side in _SIDES)
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
