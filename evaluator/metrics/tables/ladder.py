"""Table `ladder`: the drop of open, shown and choice on the items measured in all
evaluated rungs.

The rows also have the perplexity on the first task of text by name, because this
metric may hide the drop."""

from collections.abc import Iterator

import pandas as pd

from evaluator.metrics.bootstrap import intervals, language_intervals
from evaluator.metrics.columns import (
    BY_LANGUAGE,
    COUNT,
    DROP,
    PERCENTAGE,
    RATIO,
    TEXT,
    WORDS,
    Row,
)
from evaluator.metrics.fates import headroom, normalised, over_headroom
from evaluator.metrics.inputs import ALL, MEAN, Comparison, Inputs
from evaluator.metrics.measures import bounds, language_mean, paired_difference
from evaluator.metrics.table import Dots, Holm, Lack, Series, Table, amount
from evaluator.metrics.tables.perplexity import PERPLEXITY, first_readings

# rung -> format, probe
RUNGS = {
    "open": ("open", "greedy"),
    "shown": ("shown", "greedy"),
    "choice": ("open", "choice"),
}


def _rows(inputs: Inputs) -> Iterator[Row]:
    readings = first_readings(inputs)
    for key, opened in inputs.comparisons("open").items():
        subject = opened.subject
        measured: dict[str, tuple[Comparison, str, pd.DataFrame]] = {}
        for rung, (format, probe) in RUNGS.items():
            comparison = inputs.comparisons(format)[key]
            if comparison.outcomes[f"{probe}_status_pruned"].notna().any():
                measured[rung] = comparison, probe, comparison.measured(probe)
        if not measured:
            none = {"n": 0, "reason": opened.reason or "no format was asked"}
            yield subject.row | {"language": ALL} | none
            continue
        numbers = [set(items["item"]) for *_, items in measured.values()]
        common = set.intersection(*numbers)
        for rung, (comparison, probe, items) in measured.items():
            counts = comparison.counts(ALL, probe)
            counts |= readings.get(subject.checkpoint, {})
            items = items[items["item"].isin(common)]
            for row in _rung_rows(comparison, items, probe):
                yield {**subject.row, "rung": rung, **row, **counts}


def _rung_rows(
    comparison: Comparison, items: pd.DataFrame, probe: str
) -> Iterator[Row]:
    counts = {"n": len(items), "languages": int(items["language"].nunique())}
    if items.empty:
        none = comparison.reason or "no item is measured in every rung"
        yield counts | {"language": ALL, "reason": none}
        return
    values, kinds = headroom(items, probe)
    dense, pruned, floor = (float(each.mean()) for each in values)
    drop = float((values[0] - values[1]).mean())
    relative, reason = over_headroom(drop, dense, floor)
    pooled: Row = {
        **counts,
        "language": ALL,
        "dense": dense,
        "pruned": pruned,
        **paired_difference("drop", (values[0], values[1]), items),
        "normalised_drop": relative,
        "reason": reason and f"{probe}: {reason}",
    }
    if relative is not None:
        found = intervals(normalised, values, items, kinds)
        pooled |= bounds("normalised_drop", *found)
    yield pooled
    yield counts | _language_means(items, probe)


def _language_means(items: pd.DataFrame, probe: str) -> Row:
    """The unweighted mean of the languages' drops; for the normalised drop, of the
    languages with a defined one."""
    values, kinds = headroom(items, probe)
    by_item = pd.DataFrame(dict(zip(("dense", "pruned", "floor"), values, strict=True)))
    means = by_item.groupby(items["language"].to_numpy()).mean()
    row: Row = {"language": MEAN, **means[["dense", "pruned"]].mean()}
    row |= language_mean("drop", values[0] - values[1], items, low=-1.0)
    relative = pd.Series(normalised(*means.to_numpy().T), means.index).dropna()
    if len(relative) < len(means):
        row["reason"] = (
            f"normalised over the {len(relative)} of {len(means)} languages where it is"
            " defined"
        )
    if len(relative):
        here = items["language"].isin(relative.index).to_numpy()
        values = [each[here] for each in values]
        found = language_intervals(normalised, values, items[here], kinds)
        row["normalised_drop"] = float(relative.mean())
        row |= bounds("normalised_drop", *found)
    return row


_PAINTS = {"open": "greedy", "shown": "shown", "choice": "choice"}
_PERPLEXITIES = (
    Series("perplexity_dense", "muted", "base", {"rung": "open"}, hollow=True),
    Series("perplexity", "rank", "perplexity", {"rung": "open"}),
)


def _by_rung(column: str) -> tuple[Series, ...]:
    return tuple(
        Series(column, colour, rung, {"rung": rung}) for rung, colour in _PAINTS.items()
    )


TABLE = Table(
    name="ladder",
    title="Does more support mean less damage?",
    reading=(
        "The drop from the dense model with nothing shown (open), with candidates"
        " listed in the prompt (shown), and with options only scored (choice). The"
        " second panel divides each drop by its headroom. Perplexity, if measured, is"
        " shown too: it may hardly move while answers go unsaid."
    ),
    needs=(
        "the probes greedy and choice, and the formats open and shown, on a checkpoint"
        " and its base"
    ),
    columns=(
        *BY_LANGUAGE,
        *TEXT("rung"),
        *COUNT("n", "excluded", "engine_error", "unpaired", "languages"),
        *PERCENTAGE("dense", "pruned"),
        *DROP,
        *RATIO.estimates("normalised_drop"),
        *WORDS("perplexity_task"),
        *PERPLEXITY("perplexity_dense", "perplexity"),
    ),
    compute=_rows,
    figure=(
        Dots("Drop in points", _by_rung("drop"), "points", linked=True),
        Dots(
            "Drop relative to headroom",
            _by_rung("normalised_drop"),
            "changes",
            linked=True,
        ),
        Dots(
            "Perplexity, {perplexity_task}",
            _PERPLEXITIES,
            "amounts",
            width=0.7,
            linked=True,
            text=amount,
        ),
    ),
    plotted=lambda frame: frame[frame["n"] > 0],
    corrections=(Holm(("task", "language", "rung")),),
    lacks=(
        Lack("rung", "the probe greedy (the rung open)", "open"),
        Lack("rung", "the format shown with the probe greedy", "shown"),
        Lack("rung", "the probe choice (its rung)", "choice"),
    ),
)
