"""Table `recovery_percent`: how much of the base's accuracy is left, 100 x compressed / base.

Both accuracies are over the items measured in both checkpoints (intervals: `evaluator.metrics.draws`).
A choice that only guesses still recovers a good part of the base's accuracy, so `above_guessing` gives the same of what
lies above the floor of 1/K: (compressed - floor) / (base - floor). Row `mean` is the unweighted mean over the languages
in which the base has any right answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from evaluator.metrics.columns import COUNT, LANGUAGE, PERCENTAGE, REASON, SUBJECT, TEXT, Column, Row, columns_of
from evaluator.metrics.counting import joined_reasons
from evaluator.metrics.draws import Kinds, intervals, over_languages
from evaluator.metrics.drops import CORRECT, UNPAIRED, floor_of, headroom, normalised, sides_of, why_unpaired
from evaluator.metrics.figure import Dots, Figure, Heat, Series, whole_percent
from evaluator.metrics.inputs import MEAN, Comparison, Inputs, slices
from evaluator.metrics.intervals import Floats
from evaluator.metrics.measures import bounds
from evaluator.metrics.table import Lack, Table

_RATIOS = ("recovery", "above_guessing")


def _rows(inputs: Inputs) -> Iterator[Row]:
    """Per checkpoint with a base and probe: pooled (`all`), the mean over languages (`mean`), and by language."""
    for comparison in inputs.comparisons().values():
        for probe in CORRECT:
            if not comparison.tells_of(probe):
                continue
            measured = slices(comparison.measured(probe), comparison.languages)
            pooled, *by_language = [_recovered(inputs, comparison, probe, *each) for each in measured]
            yield from (pooled, *_mean(inputs, comparison, pooled, by_language), *by_language)


def _left(dense: Floats, pruned: Floats, floor: Floats) -> Floats:
    return np.asarray(1 - normalised(dense, pruned, floor))


def _values(items: pd.DataFrame, probe: str, name: str) -> tuple[list[Floats], Kinds]:
    """What `_left` takes, as a number per item, and the kinds of items that there may be."""
    values, kinds = headroom(items, probe)
    if name == "above_guessing":
        return values, kinds
    return [*values[:2], np.zeros(len(items))], [(*kind[:2], 0.0) for kind in kinds]


def _recovered(inputs: Inputs, comparison: Comparison, probe: str, language: str, items: pd.DataFrame) -> Row:
    row: Row = {**comparison.subject.row, "language": language, "probe": probe, "n": len(items)}
    row |= comparison.counts(language, probe)
    left_out = why_unpaired(comparison, language, probe)
    if items.empty:
        return row | {"reason": joined_reasons(comparison.reason or UNPAIRED, left_out)}
    dense, pruned = (float(each.mean()) for each in sides_of(items, CORRECT[probe]))
    row |= {"base_accuracy": dense, "accuracy": pruned}
    contexts, reasons = inputs.contexts_of(comparison.subject.task, items), [left_out]
    for name, floor in (("recovery", 0.0), ("above_guessing", floor_of(items, probe, "_dense"))):
        if name == "above_guessing" and not floor:
            continue
        if dense <= floor:
            reasons.append(f"{name.replace('_', ' ')}: the base is right for {dense:.3f}, not above {floor:g}")
            continue
        row[name] = (pruned - floor) / (dense - floor)
        values, kinds = _values(items, probe, name)
        row |= bounds(name, *intervals(_left, values, contexts, kinds))
    return row | {"reason": joined_reasons(*reasons)}


def _mean(inputs: Inputs, comparison: Comparison, pooled: Row, by_language: Sequence[Row]) -> list[Row]:
    """The mean over the languages in which recovery is defined; nothing for fewer than two languages."""
    if len(by_language) < 2:
        return []
    defined = [row for row in by_language if row.get("recovery") is not None]
    same = {name: pooled.get(name) for name in (*(each.name for each in SUBJECT), "probe")}
    reason = f"unweighted mean over {len(defined)} of {len(by_language)} languages"
    mean: Row = same | {"language": MEAN, "n": sum(row["n"] for row in defined), "reason": reason}
    for name in _RATIOS:
        here = {row["language"]: row[name] for row in defined if row.get(name) is not None}
        if not here:
            continue
        mean[name] = float(np.mean([*here.values()]))
        items = comparison.measured(pooled["probe"])
        items = items[items["language"].isin(here)]
        values, kinds = _values(items, pooled["probe"], name)
        contexts = inputs.contexts_of(comparison.subject.task, items)
        over, parts, shared = over_languages(_left, values, items["language"], kinds)
        mean |= bounds(name, *intervals(over, parts, contexts, shared))
    return [mean]


TABLE = Table(
    name="recovery_percent",
    title="How much of the accuracy is left?",
    reading=(
        "Recovery is the checkpoint's accuracy in percent of its base's, on the same items: 100 is no change. For "
        "choices, above guessing counts only the part above 1/K, because guessing alone recovers the rest."
    ),
    needs="the probe greedy or choice on a checkpoint and its base",
    columns=(
        *SUBJECT,
        LANGUAGE,
        Column("probe", TEXT),
        *columns_of(COUNT, "n", "excluded", "engine_error", "unpaired"),
        *columns_of(PERCENTAGE, "base_accuracy", "accuracy"),
        *columns_of(PERCENTAGE, *_RATIOS, interval=True),
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        (
            Dots(
                "Accuracy in % of the base's",
                (
                    Series("recovery", "greedy", "open", {"probe": "greedy"}),
                    Series("recovery", "choice", "choice", {"probe": "choice"}),
                ),
                "share",
                width=1.15,
                linked=True,
                line=1,
                text=whole_percent,
                legend=4,
            ),
            Heat("Open by language, % of the base's", "recovery", "greedy", {"probe": "greedy"}),
        ),
        rows=lambda frame: frame[frame["recovery"].notna()],
    ),
    lacks=(Lack("probe", "the probe greedy", "greedy"), Lack("probe", "the probe choice", "choice")),
)
