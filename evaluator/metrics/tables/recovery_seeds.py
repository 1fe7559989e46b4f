"""Table `recovery_seeds`: sample recovery among greedy failures for every run seed: mean and range over the seeds.

The greedy output does not depend on the seed; it is that of the lowest. `mean` is the mean of the seeds' rates, its
interval is over items: the range shows the noise of sampling, the interval that of the choice of items.
"""

from __future__ import annotations

import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    PERCENTAGE,
    REASON,
    SUBJECT,
    Column,
    Row,
    columns_of,
)
from evaluator.metrics.figure import Dots, Figure, Series
from evaluator.metrics.inputs import Inputs, slices
from evaluator.metrics.measures import as_floats, rate
from evaluator.metrics.table import Table


def _rows(inputs: Inputs) -> list[Row]:
    rows: list[Row] = []
    for subject in inputs.checkpoints:
        every = inputs.all_outcomes_of(subject.checkpoint, subject.task)
        ours = every[(every["format"] == "open") & every["sample_status"].notna()]
        if ours["seed"].nunique() < 2:
            continue
        greedy = inputs.outcomes_of(subject.checkpoint, subject.task)
        failures = ours[ours["item"].isin(greedy.loc[greedy["produced"] == 0, "item"])]
        for language, of_language in slices(failures, inputs.languages(subject.task)):
            row = {**subject.row, "language": language, "seeds": int(ours["seed"].nunique())}
            rows.append(row | _over_seeds(inputs, subject.task, of_language))
    return rows


def _over_seeds(inputs: Inputs, task: str, failures: pd.DataFrame) -> Row:
    done = failures[failures["sample_hit"].notna()]
    left_out = {
        name: failures.loc[failures["sample_status"] == name, "item"].nunique() for name in ("excluded", "engine_error")
    }
    if done.empty:
        return {"n_min": 0, "n_max": 0, **left_out, "reason": "no greedy failure with samples"}
    by_seed = done.groupby("seed")["sample_hit"].agg(["mean", "size"])
    by_item = done.groupby("item")["sample_hit"].mean().reset_index()
    interval = rate("mean", as_floats(by_item["sample_hit"]), inputs.contexts_of(task, by_item))
    return {
        "n_min": int(by_seed["size"].min()),
        "n_max": int(by_seed["size"].max()),
        **left_out,
        **interval,
        "mean": float(by_seed["mean"].mean()),
        "lowest": float(by_seed["mean"].min()),
        "highest": float(by_seed["mean"].max()),
    }


TABLE = Table(
    name="recovery_seeds",
    title="Is recovery stable over seeds?",
    reading=("The share of greedy's misses that samples find: the lowest, mean and highest rate over the run seeds."),
    needs="the probes greedy and sample, the latter under at least two run seeds",
    columns=(
        *SUBJECT,
        LANGUAGE,
        *columns_of(COUNT, "seeds", "n_min", "n_max", "excluded", "engine_error"),
        Column("mean", PERCENTAGE, interval=True),
        *columns_of(PERCENTAGE, "lowest", "highest"),
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        (
            Dots(
                "Recovered by samples among greedy failures, over the run seeds",
                (
                    Series("lowest", "beam", "lowest"),
                    Series("mean", "greedy", "mean"),
                    Series("highest", "sample", "highest"),
                ),
                linked=True,
                legend=4,
            ),
        )
    ),
    drawn=True,
    counts="n_max",
)
