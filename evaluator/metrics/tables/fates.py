"""Table `fates`: what became of the answers that the dense model knew
(`evaluator.metrics.fates`).

The share of mc_only is the dissociation rate. `mc_only_corrected` subtracts the lucky
guesses among K options. If U items are truly not recognised, chance picks U/K, and U(1
- 1/K) count as lost. So each lost item represents 1/(K - 1) lucky guesses. The result
is not clipped: below zero, chance explains more than was measured. A checkpoint with
the weights and configuration of its base is a re-run: its mc_only is noise of the
measurement, the `noise_floor` in the rows of the pruned checkpoints of that base.
"""

from collections.abc import Iterator

from evaluator.metrics.columns import (
    COUNT,
    FLAG,
    LANGUAGE,
    PERCENTAGE,
    SUBJECT,
    Column,
    Row,
)
from evaluator.metrics.fates import BARS, FATES, RATES, UNMEASURED, item_fates
from evaluator.metrics.inputs import Inputs, Part
from evaluator.metrics.measures import as_floats, difference, rate
from evaluator.metrics.table import Bars, Heat, Note, Table


def _rows(inputs: Inputs) -> Iterator[Row]:
    """One row per checkpoint with a base, task and language, and a pooled row `all`."""
    rows, floors = [], {}
    for comparison in inputs.comparisons().values():
        outcomes = comparison.outcomes
        for part in comparison.parts(outcomes.assign(fate=item_fates(outcomes))):
            row = _row(part)
            rows.append(row)
            if row["re_run"]:
                floors[_place(row)] = row.get("dissociation_rate")
    for row in rows:
        floor = None if row["re_run"] else floors.get(_place(row))
        yield row | {"noise_floor": floor}


def _place(row: Row) -> tuple[str, str, str]:
    return row["task"], row["base"], row["language"]


def _row(part: Part) -> Row:
    items, comparison = part.items, part.compared
    known = items[items["fate"].isin(FATES)]
    measured = int((items["fate"] != UNMEASURED).sum())
    row: Row = {
        **part.row,
        "re_run": part.subject.re_run,
        "n": len(known),
        "items": measured,
        **comparison.counts(part.language, "greedy", "choice"),
        "reason": comparison.reason,
    }
    if not row["reason"] and known.empty:
        row["reason"] = _why_unknown(len(items), measured)
    for fate in FATES:
        flags = known["fate"] == fate
        row |= {fate: int(flags.sum()), **rate(f"{fate}_rate", flags, known)}
    mc_only = as_floats(known["fate"] == "mc_only")
    row |= rate("dissociation_rate", mc_only, known)
    guesses = 1 / (as_floats(known["options_pruned"]) - 1)
    corrected = mc_only - as_floats(known["fate"] == "lost") * guesses
    low = -float(guesses.max(initial=0.0))
    return row | difference("mc_only_corrected", corrected, known, low=low)


def _why_unknown(items: int, measured: int) -> str:
    if not items:
        return "no item of this language is common to the checkpoint and its base"
    if not measured:
        return (
            "no item was measured with both probes greedy and choice in both"
            " checkpoints"
        )
    return "the dense model both produced and recognised none of the items"


TABLE = Table(
    name="fates",
    title="What became of the answers that the dense model knew?",
    reading=(
        "An answer is known if the dense model both produced and recognised it. kept:"
        " the compressed model still does both. mc_only: it still picks the answer but no"
        " longer says it; this share is the dissociation rate. produced_only: it says"
        " the answer but no longer picks it. lost: neither, which does not prove the"
        " answer erased: beams, samples or its rank may still find it."
        " mc_only_corrected subtracts what guessing among the options would give."
        " noise_floor is the dissociation rate of the dense model evaluated again,"
        " where the run has that: the noise of the measurement."
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
        *(Column(fate, COUNT, fate) for fate in FATES),
        *RATES,
        # equals mc_only_rate by definition: the paper's name
        *PERCENTAGE.estimates("dissociation_rate", csv_only=True),
        Column("noise_floor", PERCENTAGE, "noise floor (re-run)"),
        Column(
            "mc_only_corrected", PERCENTAGE, "mc_only, chance-corrected", interval=True
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
        Heat("mc_only by language, %", "mc_only_rate", "mc_only"),
    ),
    plotted=lambda frame: frame[
        frame.groupby(["task", "checkpoint"])["n"].transform("max") > 0
    ],
)
