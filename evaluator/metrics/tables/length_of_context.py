"""Table `length_of_context`: what a longer context costs, and whether it matters where
the answer's passage stands.

A row for each length (`context_tokens`; 0: the item's own context) and depth. The depth
of an item is the share of the added text before its own passage
(`evaluator.probes.lengthening`). The thirds are the depths below 1/3, those below 2/3,
and the others. `all` has them together, also the items without a depth: those that were
excluded.

Accuracy is that of the greedy answers; the drop, fates and their intervals are over the
items measured in the checkpoint and in its base, at the same length. kld is along the
base's greedy answer (`fidelity`).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

import evaluator.metrics.columns as col
from evaluator.metrics.columns import Column, Row
from evaluator.metrics.exclusions import joined_reasons, left_out_of, why_left_out
from evaluator.metrics.fates import FATES, fate_rates, paired_drop
from evaluator.metrics.inputs import ALL, Comparison, Inputs, Subject, slices
from evaluator.metrics.measures import Unbounded, as_floats, bounds, rate
from evaluator.metrics.table import Dots, Holm, Series, Table
from evaluator.store.outcomes import MEASURED
from evaluator.tasks.base import plain_task

THIRDS = ("first", "middle", "last")
_LEAST = 1e-3  # nats, on a logarithmic axis
_NOTHING = "no item was measured"


def _rows(inputs: Inputs) -> Iterator[Row]:
    comparisons = inputs.comparisons()
    lengths: dict[Subject, int] = {}
    for subject in inputs.checkpoints:
        wanted = inputs.outcomes_of(subject.checkpoint, subject.task)[
            "context_tokens"
        ].dropna()
        lengths[subject] = int(wanted.iloc[0]) if len(wanted) else 0
    lengthened = {
        plain_task(subject.task) for subject, tokens in lengths.items() if tokens
    }
    order = sorted(
        lengths, key=lambda subject: (plain_task(subject.task), lengths[subject])
    )
    for subject in (each for each in order if plain_task(each.task) in lengthened):
        items = inputs.outcomes_of(subject.checkpoint, subject.task)
        asked = items[items["greedy_status"].notna() | items["fidelity_status"].notna()]
        for language, own in slices(asked, inputs.languages(subject.task)):
            place: Row = {
                **subject.row,
                "language": language,
                "context_tokens": lengths[subject],
            }
            third = np.digitize(as_floats(own["context_depth"]), [1 / 3, 2 / 3])
            third = np.where(own["context_depth"].isna(), len(THIRDS), third)
            yield (
                place
                | {"depth": ALL}
                | _measured(inputs, subject, comparisons.get(subject.key), own)
            )
            for number, name in enumerate(THIRDS) if lengths[subject] else ():
                here = own[third == number]
                yield (
                    place
                    | {"depth": name}
                    | _measured(inputs, subject, comparisons.get(subject.key), here)
                )


def _measured(
    inputs: Inputs, subject: Subject, comparison: Comparison | None, items: pd.DataFrame
) -> Row:
    """The numbers of some items of one language, or of all."""
    done, compared = (
        items[items["greedy_status"].isin(MEASURED)],
        items[items["fidelity_greedy_positions"] > 0],
    )
    row: Row = {
        "n": len(done),
        **left_out_of(items["greedy_status"]),
        "kld_n": len(compared),
    }
    row |= rate(
        "accuracy", as_floats(done["produced"]), inputs.contexts_of(subject.task, done)
    )
    reason = joined_reasons(
        None if len(done) else _NOTHING, why_left_out(items, "greedy_status")
    )
    if len(compared):
        sums, counts = (
            as_floats(compared[f"fidelity_greedy_{name}"])
            for name in ("kld", "positions")
        )
        ratio = Unbounded.ratio(
            sums, counts, inputs.contexts_of(subject.task, compared)
        )
        row |= {"kld": ratio.value, **bounds("kld", ratio.interval("log"))}
    if comparison is None:
        return row | {"reason": reason}
    both = comparison.measured("greedy")
    both = both[both["item"].isin(items["item"])]
    drop = paired_drop(inputs, comparison, both, "produced")
    reason = joined_reasons(reason, drop.pop("reason", None))
    row |= drop | {
        "dense_accuracy": float(both["produced_dense"].mean()) if len(both) else None
    }
    joined = comparison.outcomes
    return (
        row
        | fate_rates(inputs, subject.task, joined[joined["item"].isin(items["item"])])
        | {"reason": reason}
    )


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
    named = frame.sort_values("context_tokens")["length"].unique()
    shifts = np.linspace(0.25, -0.25, len(named)) if len(named) > 1 else [0.0]
    return [
        Series(
            column,
            colours[at % len(colours)],
            name,
            {"length": name, "depth": ALL},
            float(shifts[at]),
        )
        for at, name in enumerate(named)
    ]


def _depths(frame: pd.DataFrame) -> Sequence[Series]:
    """The thirds at the greatest length."""
    longest = str(frame.sort_values("context_tokens")["length"].iloc[-1])
    return [
        Series(
            "accuracy",
            colour,
            f"{name} third",
            {"length": longest, "depth": name},
            shift,
        )
        for name, colour, shift in zip(
            THIRDS, ("greedy", "choice", "rank"), (0.2, 0.0, -0.2), strict=True
        )
    ]


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
        *col.BY_LANGUAGE,
        Column("context_tokens", col.COUNT),
        Column("depth", col.TEXT),
        *col.COUNT("n", "excluded", "engine_error"),
        Column("accuracy", col.PERCENTAGE, interval=True),
        Column("n_paired", col.COUNT),
        Column("dense_accuracy", col.PERCENTAGE),
        Column("drop", col.POINTS, interval=True),
        *col.MCNEMAR,
        Column("known", col.COUNT),
        *(
            Column(f"{fate}_rate", col.PERCENTAGE, fate, interval=True, of="known")
            for fate in FATES
        ),
        Column("kld_n", col.COUNT),
        Column("kld", col.DIVERGENCE, interval=True),
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
    silent=True,
)
