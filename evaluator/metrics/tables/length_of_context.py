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
from dataclasses import replace

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
    Row,
)
from evaluator.metrics.cuts import Cut
from evaluator.metrics.fates import FATES, FateRates
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.items import ALL, Flags, Items
from evaluator.metrics.measures import Average, Share, Unbounded, drop
from evaluator.metrics.table import Dots, Holm, Series, Table
from evaluator.tasks.base import plain_task

THIRDS = ("first", "middle", "last")
_LEAST = 1e-3  # nats, on a logarithmic axis


def _rows(inputs: Inputs) -> Iterator[Row]:
    tokens: dict[tuple[str, str], int] = {}
    for subject in inputs.checkpoints:
        lengths = inputs.of(subject)["context_tokens"]
        tokens[subject.key] = int(np.nanmax(lengths, initial=0))
    lengthened = {plain_task(task) for (task, _), length in tokens.items() if length}
    for subject in sorted(
        inputs.checkpoints, key=lambda each: (plain_task(each.task), tokens[each.key])
    ):
        if plain_task(subject.task) not in lengthened:
            continue
        length, items = tokens[subject.key], inputs.of(subject)
        items = items.take(items.has("greedy_status") | items.has("fidelity_status"))
        depths = {ALL: items}
        for number, name in enumerate(THIRDS if length else ()):
            depths[name] = items.take(_in_third(items, number))
        for name, here in depths.items():
            keys = {"context_tokens": length, "depth": name}
            for row in replace(_CUT, keys=keys).rows(inputs, subject, items=here):
                in_language = here.of(row["language"])
                row |= _divergence(in_language)
                if subject.base:
                    row |= FateRates()(in_language)
                yield row


def _in_third(items: Items, number: int) -> Flags:
    thirds = np.digitize(items["context_depth"], [1 / 3, 2 / 3])
    here: Flags = items.has("context_depth") & (thirds == number)
    return here


_CUT = Cut(
    probes=("greedy",),
    measures=(Share("accuracy", "produced"),),
    paired=(drop("drop", "produced"), Average("dense_accuracy", "base_produced")),
)


def _divergence(items: Items) -> Row:
    """Along the base's greedy answer."""
    done = items.take(items["fidelity_greedy_positions"] > 0)
    row: Row = {"kld_n": len(done)}
    if not len(done):
        return row
    sums, positions = done["fidelity_greedy_kld"], done["fidelity_greedy_positions"]
    return row | Unbounded.ratio(sums, positions, done).row("kld", "log")


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
        "Accuracy of said answers, fates of the known ones, and divergence from the"
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
        *PERCENTAGE.estimates(
            *(f"{fate}_rate" for fate in FATES), of="known", n="known"
        ),
        *COUNT("kld_n"),
        *DIVERGENCE.estimates("kld", n="kld_n"),
    ),
    compute=_rows,
    figure=(
        Dots("Said, by length", lambda frame: _lengths("accuracy", frame), width=1.15),
        Dots("Said, by depth, longest context", _depths),
        Dots(
            "Divergence from the base, nats",
            lambda frame: _lengths("kld", frame),
            "amounts",
        ),
    ),
    plotted=_drawn,
    corrections=(Holm(("task", "language", "depth")),),
)
