"""Table `length_of_context`: what a longer context costs, and whether it matters where
the answer's passage stands.

A row for each length (`context_tokens`; 0: the item's own context) and depth. The depth
of an item is the share of the added text before its own passage
(`evaluator.asking.long_contexts`). The thirds are the depths below 1/3, those below 2/3,
and the others. `all` has them together, also the items without a depth: those that were
excluded.

Accuracy is that of the greedy answers; the drop, fates and their intervals are over the
items measured in the checkpoint and in its base, at the same length. kld is along the
base's greedy answer (`fidelity`).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from evaluator.metrics.columns import (
    BY_LANGUAGE,
    COUNT,
    COUNTED,
    DIVERGENCE,
    DROP,
    PERCENTAGE,
    TEXT,
    Column,
    Row,
)
from evaluator.metrics.exclusions import (
    all_measured,
    joined_reasons,
    left_out_of,
    why_left_out,
)
from evaluator.metrics.fates import FATES, fate_rates, paired_drop
from evaluator.metrics.inputs import ALL, Comparison, Inputs
from evaluator.metrics.measures import Unbounded, as_floats, rate
from evaluator.metrics.table import Dots, Holm, Series, Table
from evaluator.tasks.base import plain_task

THIRDS = ("first", "middle", "last")
_LEAST = 1e-3  # nats, on a logarithmic axis
_NOTHING = "no item was measured"


def _rows(inputs: Inputs) -> Iterator[Row]:
    tokens: dict[tuple[str, str], int] = {}
    for subject in inputs.checkpoints:
        items = inputs.outcomes_of(subject.checkpoint, subject.task)
        lengths = items["context_tokens"].dropna()
        tokens[subject.key] = int(lengths.iloc[0]) if len(lengths) else 0
    lengthened = {plain_task(task) for (task, _), length in tokens.items() if length}
    for subject in sorted(
        inputs.checkpoints, key=lambda each: (plain_task(each.task), tokens[each.key])
    ):
        if plain_task(subject.task) not in lengthened:
            continue
        length = tokens[subject.key]
        items = inputs.outcomes_of(subject.checkpoint, subject.task)
        ran = items[["greedy_status", "fidelity_status"]].notna().any(axis=1)
        for part in inputs.parts_of(subject, items[ran]):
            row = part.row | {"context_tokens": length}
            yield row | {"depth": ALL} | _measured(part.items, part.comparison)
            if length:
                depths = part.items["context_depth"]
                third = np.digitize(as_floats(depths), [1 / 3, 2 / 3])
                for at, name in enumerate(THIRDS):
                    here = part.items[(third == at) & depths.notna()]
                    yield row | {"depth": name} | _measured(here, part.comparison)


def _measured(items: pd.DataFrame, comparison: Comparison | None) -> Row:
    """The numbers of some items of one language, or of all."""
    done = all_measured(items, "greedy_status")
    compared = items[items["fidelity_greedy_positions"] > 0]
    row: Row = {
        "n": len(done),
        **left_out_of(items, "greedy_status"),
        "kld_n": len(compared),
        **rate("accuracy", done["produced"], done),
    }
    nothing = None if len(done) else _NOTHING
    row["reason"] = joined_reasons(nothing, why_left_out(items, "greedy_status"))
    if len(compared):
        sums = compared["fidelity_greedy_kld"]
        positions = compared["fidelity_greedy_positions"]
        row |= Unbounded.ratio(sums, positions, compared).row("kld", "log")
    if comparison is None:
        return row
    both = comparison.measured("greedy")
    both = both[both["item"].isin(items["item"])]
    drop = paired_drop(comparison, both, "produced")
    reason = joined_reasons(row["reason"], drop.get("reason"))
    row |= drop | {"dense_accuracy": float(both["produced_dense"].mean())}
    joined = comparison.outcomes
    row |= fate_rates(joined[joined["item"].isin(items["item"])])
    return row | {"reason": reason}


def _drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """A row of the figure has all lengths of a task. A base's divergence is the
    noise of the measurement: not drawn."""
    length = frame["context_tokens"].map(
        lambda tokens: f"{tokens:,} tokens" if tokens else "own context"
    )
    kld = frame["kld"].where(frame["base"].notna()).clip(lower=_LEAST)
    return frame.assign(task=frame["task"].map(plain_task), length=length, kld=kld)


def _lengths(column: str, frame: pd.DataFrame) -> Sequence[Series]:
    colours = ("muted", "greedy", "choice", "beam", "sample", "rank")
    names = frame.sort_values("context_tokens")["length"].unique()
    shifts = np.linspace(0.25, -0.25, len(names)) if len(names) > 1 else [0.0]
    series = []
    for at, name in enumerate(names):
        colour, where = colours[at % len(colours)], {"length": name, "depth": ALL}
        series.append(Series(column, colour, name, where, float(shifts[at])))
    return series


def _depths(frame: pd.DataFrame) -> Sequence[Series]:
    """The thirds at the greatest length."""
    longest = str(frame.sort_values("context_tokens")["length"].iloc[-1])
    shown = zip(THIRDS, ("greedy", "choice", "rank"), (0.2, 0.0, -0.2), strict=True)
    series = []
    for name, colour, shift in shown:
        where = {"length": longest, "depth": name}
        series.append(Series("accuracy", colour, f"{name} third", where, shift))
    return series


TABLE = Table(
    name="length_of_context",
    title="Does it forget in a long context?",
    reading=(
        "Accuracy of open answers, fates of the known ones, and divergence from the"
        " base, by the length of the context and by the depth of the answer's passage"
        " in it: first, middle and last third. A drop that grows with the length is"
        " damage to long contexts. Compare lengths only where n is alike: longer"
        " contexts exclude more items."
    ),
    needs="context_tokens, with the probe greedy or fidelity",
    columns=(
        *BY_LANGUAGE,
        *COUNT("context_tokens"),
        *TEXT("depth"),
        *COUNTED,
        *PERCENTAGE.estimates("accuracy"),
        *COUNT("n_paired"),
        *PERCENTAGE("dense_accuracy", n="n_paired"),
        *DROP,
        *COUNT("known"),
        *(
            Column(
                f"{fate}_rate", PERCENTAGE, fate, interval=True, of="known", n="known"
            )
            for fate in FATES
        ),
        *COUNT("kld_n"),
        *DIVERGENCE.estimates("kld", n="kld_n"),
    ),
    compute=_rows,
    figure=(
        Dots(
            "Open accuracy by length",
            lambda frame: _lengths("accuracy", frame),
            width=1.15,
            legend=3,
        ),
        Dots("Open accuracy by depth, longest context", _depths, legend=3),
        Dots(
            "Divergence from the base, nats",
            lambda frame: _lengths("kld", frame),
            "amounts",
        ),
    ),
    plotted=_drawn,
    corrections=(Holm(("task", "language", "depth")),),
)
