"""Table `judges`: is a matcher fit to judge? What it said of control pairs, of which it is known whether they match.

Sensitivity is the share of matching pairs that it accepts: the reference itself (`same`) and the reference in another
form (`paraphrase`). Specificity is the share of pairs with another item's reference (`other`) that it denies. `unfit`
says what is wrong where the whole interval of either is below 0.8 (`evaluator.metrics.judging`).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from evaluator.metrics.columns import COUNT, LANGUAGE, PERCENTAGE, REASON, TEXT, Column, Row, columns_of
from evaluator.metrics.counting import joined_reasons
from evaluator.metrics.figure import Dots, Figure, Series
from evaluator.metrics.inputs import Inputs, slices
from evaluator.metrics.judging import BAR, MATCHING, fitness_of
from evaluator.metrics.measures import as_floats, rate
from evaluator.metrics.table import Table

_KINDS = (*MATCHING, "other")


def _rows(inputs: Inputs) -> list[Row]:
    """Per task and matcher: pooled, then by language."""
    if inputs.controls is None:
        return []
    rows: list[Row] = []
    for (task, matcher), pairs in inputs.controls.groupby(["task", "matcher"], sort=True):
        languages = sorted(pairs["language"].unique())
        for language, here in slices(pairs, languages if len(languages) > 1 else []):
            rows.append({"task": task, "checkpoint": matcher, "language": language, **_judged(here)})
    return rows


def _judged(pairs: pd.DataFrame) -> Row:
    fitness = fitness_of(pairs)
    row: Row = {"n": fitness.matching + fitness.different, "matching": fitness.matching, "different": fitness.different}
    for name in ("excluded", "engine_error"):
        row[name] = int((pairs["status"] == name).sum())
    judged = pairs[pairs["verdict"].notna()]
    yes, matching = as_floats(judged["verdict"].astype(bool)), judged["control"].isin(MATCHING).to_numpy()
    rates = {"sensitivity": yes[matching], "specificity": 1 - yes[~matching]}
    rates |= {f"{kind}_accepted": yes[(judged["control"] == kind).to_numpy()] for kind in _KINDS}
    for name, flags in rates.items():
        row |= rate(name, flags, np.arange(len(flags)))  # every pair is a context of its own
    none = None if row["n"] else "no control pair was judged"
    lacking = "no pair that matches" if row["n"] and not fitness.matching else None
    different = "no pair that does not match" if row["n"] and not fitness.different else None
    return row | {"unfit": fitness.why_unfit, "reason": joined_reasons(none, lacking, different)}


TABLE = Table(
    name="judges",
    title="Is the judge fit?",
    reading=(
        "Each matcher first judged control pairs with a known result. Sensitivity: the share of matching pairs that "
        "it accepts (the reference itself, and in another form). Specificity: the share of references of other "
        "questions that it denies. A matcher that denies or accepts everything has one of the two near 0 %, and its "
        "verdicts mean nothing. Control pairs are easier than real answers: to pass them is the least."
    ),
    needs="control pairs: run resurface match RUN --matcher CHECKPOINT",
    columns=(
        Column("task", TEXT),
        Column("checkpoint", TEXT, "judge"),
        LANGUAGE,
        *columns_of(COUNT, "n", "matching", "different", "excluded", "engine_error"),
        *columns_of(PERCENTAGE, "sensitivity", "specificity", interval=True),
        *(Column(f"{kind}_accepted", PERCENTAGE, f"accepts: {kind}", interval=True) for kind in _KINDS),
        Column("unfit", TEXT),
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        (
            Dots(
                "On control pairs; unfit with a whole interval at the left of the line",
                (
                    Series("sensitivity", "kept", "accepts right answers", shift=-0.1),
                    Series("specificity", "choice", "denies wrong answers", shift=0.1),
                ),
                line=BAR,
                legend=4,
            ),
        ),
        rows=lambda frame: frame[frame["n"] > 0],
    ),
    silent=True,
)
