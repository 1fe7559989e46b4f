"""Table `fates`: what became of the answers that the dense model knew
(`evaluator.metrics.fates`).

The share of mc_only is the dissociation rate. `mc_only_corrected` subtracts the lucky
guesses among K options. If U items are truly not known, chance picks U/K, and U(1
- 1/K) count as lost. So each lost item represents 1/(K - 1) lucky guesses. The result
is not clipped: below zero, chance explains more than was measured. A checkpoint with
the weights and configuration of its base is a re-run: its mc_only is noise of the
measurement, the `noise_floor` in the rows of the pruned checkpoints of that base.
"""

from collections.abc import Iterator
from dataclasses import replace

from evaluator.metrics.columns import (
    COUNT,
    FLAG,
    LANGUAGE,
    PERCENTAGE,
    SUBJECT,
    Column,
    Row,
)
from evaluator.metrics.cuts import Cut, walk
from evaluator.metrics.fates import BARS, FATES, RATES, fate_share, has_fate, known
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.items import Items
from evaluator.metrics.measures import Count, Custom, Share
from evaluator.metrics.table import Bars, Heat, Note, Table


def _corrected(items: Items) -> Row:
    """`mc_only` without lucky guesses."""
    guesses = 1 / (items["options"] - 1)
    mc_only, lost = has_fate("mc_only")(items), has_fate("lost")(items)
    low = -float(guesses.max(initial=0.0))
    return Share("mc_only_corrected", lambda _: mc_only - lost * guesses, low)(items)


_MEASURES = (
    *(Count(fate, has_fate(fate)) for fate in FATES),
    *(fate_share(fate) for fate in FATES),
    replace(fate_share("mc_only"), name="dissociation_rate"),
    Custom(_corrected),
)


def _of_known(items: Items) -> Row:
    """`n` counts the known answers among the measured `items`."""
    of_known = items.take(known(items))
    row: Row = {"items": len(items), "n": len(of_known)}
    if len(items) and not len(of_known):
        row["reason"] = "the dense model both said and picked none of the items"
    for measure in _MEASURES:
        row |= measure(of_known)
    return row


_CUT = Cut(
    probes=("greedy", "choice"),
    both=True,
    measures=(Custom(_of_known),),
    nothing=(
        "no item was measured with both probes greedy and choice in both checkpoints"
    ),
)


def _rows(inputs: Inputs) -> Iterator[Row]:
    rows, floors = list(walk(inputs, [_CUT])), {}
    re_runs = {each.key for each in inputs.compared if each.re_run}
    for row in rows:
        if (row["task"], row["checkpoint"]) in re_runs:
            floors[_place(row)] = row.get("dissociation_rate")
    for row in rows:
        again = (row["task"], row["checkpoint"]) in re_runs
        floor = None if again else floors.get(_place(row))
        yield row | {"re_run": again, "noise_floor": floor}


def _place(row: Row) -> tuple[str, str, str]:
    return row["task"], row["base"], row["language"]


TABLE = Table(
    name="fates",
    title="What became of the answers that the dense model knew?",
    reading=(
        "An answer is known if the dense model both said and picked it. Kept: the"
        " compressed model still does both. Picked only: it no longer says the answer;"
        " this share is the dissociation rate. Said only: it no longer picks the answer."
        " Lost: neither, which does not prove the answer erased: beams, samples or its"
        " rank may still find it. Chance-corrected subtracts what guessing among the"
        " options would give. The noise floor is the dissociation rate of the dense"
        " model evaluated again, where the run has that: the noise of the measurement."
    ),
    needs=(
        "the probes greedy and choice on a dense checkpoint and on a compressed one"
        " that names it as its base"
    ),
    columns=(
        *SUBJECT,
        *FLAG("re_run"),
        LANGUAGE,
        *COUNT("n", "items", "excluded", "engine_error", "unpaired"),
        *COUNT(*FATES),
        *RATES,
        # equals mc_only_rate by definition: the paper's name
        *PERCENTAGE.estimates("dissociation_rate", csv_only=True),
        Column("noise_floor", PERCENTAGE, "noise floor (re-run)"),
        Column(
            "mc_only_corrected",
            PERCENTAGE,
            "picked only, chance-corrected",
            interval=True,
        ),
    ),
    compute=_rows,
    figure=(
        Bars(
            "What became of the answers that the dense model knew, %",
            BARS,
            width=1.35,
            note=Note("n", lambda n: f"n = {n or 0:.0f}"),
        ),
        Heat("Picked only, by language, %", "mc_only_rate", "mc_only"),
    ),
    plotted=lambda frame: frame[
        frame.groupby(["task", "checkpoint"])["n"].transform("max") > 0
    ],
)
