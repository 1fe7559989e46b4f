"""Table `ladder`: the drop of open, shown and choice on the items measured in all the rungs that were asked.

Perplexity, the metric that hides it all, stands beside them: of the first task of text by name.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    MCNEMAR,
    PERCENTAGE,
    POINTS,
    RATIO,
    REASON,
    SUBJECT,
    TEXT,
    Column,
    Row,
    columns_of,
)
from evaluator.metrics.draws import intervals, over_languages
from evaluator.metrics.drops import CORRECT, floor_of, headroom, normalised, over_headroom, sides_of
from evaluator.metrics.figure import Axis, Dots, Figure, Series, amount
from evaluator.metrics.inputs import ALL, MEAN, Comparison, Inputs
from evaluator.metrics.intervals import ItemNumbers
from evaluator.metrics.measures import bounds, item_numbers, language_mean, paired_difference
from evaluator.metrics.table import Holm, Lack, Table
from evaluator.metrics.tables.perplexity import PERPLEXITY, first_readings

RUNGS = {"open": ("open", "greedy"), "shown": ("shown", "greedy"), "choice": ("open", "choice")}


def _rows(inputs: Inputs) -> Iterator[Row]:
    read = first_readings(inputs)
    for key, opened in inputs.comparisons("open").items():
        rungs = _asked_rungs(inputs, key)
        if not rungs:
            reason = opened.reason or "no format was asked"
            yield {**opened.subject.row, "language": ALL, "n": 0, "reason": reason}
            continue
        measured = {rung: each.measured(RUNGS[rung][1]) for rung, each in rungs.items()}
        common = set.intersection(*(set(item_numbers(items).tolist()) for items in measured.values()))
        for rung, items in measured.items():
            shared = items[items["item"].isin(common)]
            counts = rungs[rung].counts(ALL, RUNGS[rung][1]) | read.get(opened.subject.checkpoint, {})
            yield from (row | counts for row in _rung_rows(inputs, rungs[rung], shared, rung))


def _asked_rungs(inputs: Inputs, key: tuple[str, str]) -> dict[str, Comparison]:
    """The rungs that a checkpoint was asked, each as the comparison with its base in the rung's format."""
    rungs = {rung: inputs.comparisons(format)[key] for rung, (format, _) in RUNGS.items()}
    return {
        rung: each for rung, each in rungs.items() if each.outcomes[f"{RUNGS[rung][1]}_status_pruned"].notna().any()
    }


def _rung_rows(inputs: Inputs, comparison: Comparison, items: pd.DataFrame, rung: str) -> list[Row]:
    """The pooled row and the mean over languages of one rung."""
    row: Row = {**comparison.subject.row, "rung": rung, "n": len(items), "languages": int(items["language"].nunique())}
    if items.empty:
        return [row | {"language": ALL, "reason": comparison.reason or "no item is measured in every rung"}]
    probe, contexts = RUNGS[rung][1], inputs.contexts_of(comparison.subject.task, items)
    dense, pruned = sides_of(items, CORRECT[probe])
    relative, reason = over_headroom(
        float((dense - pruned).mean()), float(dense.mean()), floor_of(items, probe, "_dense")
    )
    pooled: Row = {
        "language": ALL,
        "dense": float(dense.mean()),
        "pruned": float(pruned.mean()),
        **paired_difference("drop", (dense, pruned), contexts),
        "normalised_drop": relative,
        "reason": reason and f"{probe}: {reason}",
    }
    values, kinds = headroom(items, probe)
    if relative is not None:
        pooled |= bounds("normalised_drop", *intervals(normalised, values, contexts, kinds))
    return [row | pooled, row | _language_means(items, probe, contexts)]


def _language_means(items: pd.DataFrame, probe: str, contexts: ItemNumbers) -> Row:
    """The unweighted mean of each language's drop; of the normalised one where it is defined."""
    dense, pruned = sides_of(items, CORRECT[probe])
    sides = pd.DataFrame({"dense": dense, "pruned": pruned}).groupby(items["language"].to_numpy()).mean()
    row: Row = {"language": MEAN, **sides.mean()} | language_mean("drop", dense - pruned, items, contexts, low=-1.0)
    values, kinds = headroom(items, probe)
    by_language = pd.DataFrame(dict(enumerate(values))).groupby(items["language"].to_numpy()).mean()
    relative = pd.Series(normalised(*by_language.to_numpy().T), by_language.index).dropna()
    if len(relative) < len(by_language):
        row["reason"] = f"normalised over the {len(relative)} of {len(by_language)} languages where it is defined"
    if len(relative):
        row["normalised_drop"] = float(relative.mean())
        here = items["language"].isin(relative.index).to_numpy()
        values = [each[here] for each in values]
        mean, parts, shared = over_languages(normalised, values, items["language"][here], kinds)
        row |= bounds("normalised_drop", *intervals(mean, parts, contexts[here], shared))
    return row


_PAINTS = {"open": "greedy", "shown": "shown", "choice": "choice"}
_DROPS: tuple[tuple[str, str, Axis], ...] = (
    ("drop", "Drop in points", "points"),
    ("normalised_drop", "Drop relative to headroom", "changes"),
)

TABLE = Table(
    name="ladder",
    title="Does more support mean less damage?",
    reading=(
        "The drop from the dense model with nothing shown (open), with candidates listed in the prompt (shown), and "
        "with options only scored (choice). The second panel divides each drop by its headroom. Perplexity, if "
        "measured, is shown too: it may hardly move while answers go unsaid."
    ),
    needs="the probes greedy and choice, and the formats open and shown, on a checkpoint and its base",
    columns=(
        *SUBJECT,
        LANGUAGE,
        Column("rung", TEXT),
        *columns_of(COUNT, "n", "excluded", "engine_error", "unpaired", "languages"),
        *columns_of(PERCENTAGE, "dense", "pruned"),
        Column("drop", POINTS, interval=True),
        *MCNEMAR,
        Column("normalised_drop", RATIO, interval=True),
        Column("perplexity_task", TEXT),
        Column("perplexity_dense", PERPLEXITY),
        Column("perplexity", PERPLEXITY),
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        (
            *(
                Dots(
                    title,
                    tuple(Series(column, colour, rung, {"rung": rung}) for rung, colour in _PAINTS.items()),
                    axis,
                    linked=True,
                    legend=4 * (column == "drop"),
                )
                for column, title, axis in _DROPS
            ),
            Dots(
                "Perplexity, {perplexity_task}",
                (
                    Series("perplexity_dense", "muted", "base", {"rung": "open"}, hollow=True),
                    Series("perplexity", "rank", "perplexity", {"rung": "open"}),
                ),
                "amounts",
                width=0.7,
                linked=True,
                text=amount,
            ),
        ),
        rows=lambda frame: frame[frame["n"] > 0],
    ),
    corrections=(Holm(("task", "language", "rung")),),
    lacks=(
        Lack("rung", "the probe greedy (the rung open)", "open"),
        Lack("rung", "the format shown with the probe greedy", "shown"),
        Lack("rung", "the probe choice (its rung)", "choice"),
    ),
)
