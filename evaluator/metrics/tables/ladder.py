"""Table `ladder`: the drop of open, shown and choice on the items measured in all the rungs that were asked.

Perplexity, the metric that hides it all, stands beside them: of the first task of text by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
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
from evaluator.metrics.drops import Drop, drop_of
from evaluator.metrics.inputs import ALL, MEAN, Comparison, Inputs
from evaluator.metrics.intervals import nan_mean, percentile_interval
from evaluator.metrics.long_frame import Holm
from evaluator.metrics.measures import bounds, item_numbers
from evaluator.metrics.table import Lack, Table
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
    resampler, numbers, probe = inputs.resampler(comparison.subject.task), item_numbers(items), RUNGS[rung][1]
    drop = drop_of(resampler, items, probe)
    by_language = [drop_of(resampler, of_one, probe) for _, of_one in items.groupby("language", sort=True)]
    pooled: Row = {
        "language": ALL,
        "dense": drop.dense,
        "pruned": drop.pruned,
        "drop": drop.raw,
        **bounds("drop", resampler.interval(numbers, drop.raw_draws)),
        "mcnemar_p": drop.p,
        "normalised_drop": drop.normal,
        "reason": drop.reason,
    }
    if drop.normal is not None:
        pooled |= bounds("normalised_drop", resampler.interval(numbers, drop.normal_draws))
    return [row | pooled, row | _language_means(by_language)]


def _language_means(drops: Sequence[Drop]) -> Row:
    """The unweighted mean of each language's drop; of the normalised one where it is defined."""
    dense, pruned = (float(np.mean([getattr(each, side) for each in drops])) for side in ("dense", "pruned"))
    row: Row = {"language": MEAN, "dense": dense, "pruned": pruned, "drop": dense - pruned}
    row |= bounds("drop", percentile_interval(nan_mean([each.raw_draws for each in drops])))
    defined = [each for each in drops if each.normal is not None]
    if len(defined) < len(drops):
        row["reason"] = f"normalised over the {len(defined)} of {len(drops)} languages where it is defined"
    if defined:
        row["normalised_drop"] = float(np.mean([each.normal for each in defined]))
        row |= bounds("normalised_drop", percentile_interval(nan_mean([each.normal_draws for each in defined])))
    return row


TABLE = Table(
    name="ladder",
    title="Does more support mean less damage?",
    reading=(
        "The drop from the dense model with nothing shown (open), with candidates listed in the prompt (shown), and "
        "with options only scored (choice). The second panel divides each drop by what there was to lose. Perplexity, "
        "where it was measured, stands beside them: it may hardly move while answers go unsaid."
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
    corrections=(Holm(("task", "language", "rung")),),
    lacks=(
        Lack("rung", "the probe greedy (the rung open)", "open"),
        Lack("rung", "the format shown with the probe greedy", "shown"),
        Lack("rung", "the probe choice (its rung)", "choice"),
    ),
)
