"""Table `fates`: what became of the answers that the dense model knew (`evaluator.metrics.drops`).

The share of mc_only is the dissociation rate. `mc_only_corrected` subtracts the lucky guesses among K options. If U
items are truly not recognised, chance picks U/K, and U(1 - 1/K) count as lost. So each lost item represents 1/(K - 1)
lucky guesses. The result is not clipped: below zero, chance explains more than was measured.

A checkpoint with the weights of its base is a re-run: its mc_only is noise of the measurement. Its rows are the noise
floor. `noise_floor` repeats its dissociation rate in the rows of the pruned checkpoints of that base.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    FLAG,
    LANGUAGE,
    PERCENTAGE,
    REASON,
    SUBJECT,
    Column,
    Row,
    columns_of,
)
from evaluator.metrics.drops import FATES, fate_measured, known_items
from evaluator.metrics.figure import Bars, Figure, Heat, Note
from evaluator.metrics.inputs import Comparison, Inputs, in_language, slices
from evaluator.metrics.measures import as_floats, difference, rate
from evaluator.metrics.table import Table


def _rows(inputs: Inputs) -> Iterator[Row]:
    """One row per checkpoint with a base, task and language, and a pooled row `all`."""
    comparisons = inputs.comparisons().values()
    again = {each.subject.key: list(_of(inputs, each)) for each in comparisons if each.subject.re_run}
    noise = {_place(row): row["dissociation_rate"] for rows in again.values() for row in rows}
    for each in comparisons:
        if each.subject.re_run:
            yield from (row | {"noise_floor": None} for row in again[each.subject.key])
        else:
            yield from (row | {"noise_floor": noise.get(_place(row))} for row in _of(inputs, each))


def _of(inputs: Inputs, comparison: Comparison) -> Iterator[Row]:
    known = known_items(comparison.outcomes)
    for language, items in slices(comparison.outcomes, comparison.languages):
        yield _row(inputs, comparison, items, in_language(known, language), language)


def _place(row: Row) -> tuple[object, ...]:
    return row["task"], row["base"], row["language"]


def _row(inputs: Inputs, comparison: Comparison, items: pd.DataFrame, known: pd.DataFrame, language: str) -> Row:
    n = len(known)
    counts = {fate: int((known["fate"] == fate).sum()) for fate in FATES}
    row: Row = {
        **comparison.subject.row,
        "re_run": comparison.subject.re_run,
        "language": language,
        "n": n,
        "items": int(fate_measured(items).sum()),
        **comparison.counts(language, "greedy", "choice"),
        **counts,
        "reason": _reason(comparison, items, n),
    }
    contexts = inputs.contexts_of(comparison.subject.task, known)
    is_fate = {fate: as_floats(known["fate"] == fate) for fate in FATES}
    for fate, flags in is_fate.items():
        row |= rate(f"{fate}_rate", flags, contexts)
    row |= rate("dissociation_rate", is_fate["mc_only"], contexts)
    guesses = 1 / (as_floats(known["options_pruned"]) - 1)
    most = float(guesses.max(initial=0.0))
    return row | difference("mc_only_corrected", is_fate["mc_only"] - is_fate["lost"] * guesses, contexts, low=-most)


def _reason(comparison: Comparison, items: pd.DataFrame, n: int) -> str | None:
    if comparison.reason or n:
        return comparison.reason
    if items.empty:
        return "no item of this language is common to the checkpoint and its base"
    if not fate_measured(items).any():
        return "no item was measured with both probes greedy and choice in both checkpoints"
    return "the dense model both produced and recognised none of the items"


TABLE = Table(
    name="fates",
    title="What became of the answers that the dense model knew?",
    reading=(
        "An answer is known if the dense model both produced and recognised it. kept: the pruned model still does "
        "both. mc_only: it still picks the answer but no longer says it; this share is the dissociation rate. "
        "produced_only: it says the answer but no longer picks it. lost: neither, which does not prove the answer "
        "erased: beams, samples or its rank may still find it. mc_only_corrected subtracts what guessing among the "
        "options would give. noise_floor is the dissociation rate of the dense model evaluated again, where the run "
        "has that: the noise of the measurement."
    ),
    needs="the probes greedy and choice on a dense checkpoint and on a pruned one that names it as its base",
    columns=(
        *SUBJECT,
        Column("re_run", FLAG),
        LANGUAGE,
        *columns_of(COUNT, "n", "items", "excluded", "engine_error", "unpaired"),
        *(Column(fate, COUNT, fate) for fate in FATES),
        *(Column(f"{fate}_rate", PERCENTAGE, f"{fate} rate", interval=True) for fate in FATES),
        Column("dissociation_rate", PERCENTAGE, interval=True),
        Column("noise_floor", PERCENTAGE, "noise floor (re-run)"),
        Column("mc_only_corrected", PERCENTAGE, "mc_only, chance-corrected", interval=True),
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        (
            Bars(
                "What became of the answers that the dense model knew, %",
                {f"{fate}_rate": (fate, fate, 1.0) for fate in FATES},
                width=1.35,
                legend=4,
                note=Note("n", lambda n: f"n = {n or 0:.0f}"),
            ),
            Heat("mc_only by language, %", "mc_only_rate", "mc_only"),
        ),
        rows=lambda frame: frame[frame.groupby(["task", "checkpoint"])["n"].transform("max") > 0],
    ),
)
