"""Table `recovery_percent`: how much of the base's accuracy is left, 100 x compressed / base.

Both accuracies are over the items measured in both checkpoints; the interval resamples contexts, jointly for the two.
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
from evaluator.metrics.drops import CORRECT, UNPAIRED, floor_of, sides_of, why_unpaired
from evaluator.metrics.inputs import MEAN, Comparison, Inputs, slices
from evaluator.metrics.intervals import Floats, nan_mean, percentile_interval
from evaluator.metrics.measures import bounds, item_numbers
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
            yield from (pooled[0], *_mean(pooled[0], by_language), *(row for row, _ in by_language))


def _recovered(
    inputs: Inputs, comparison: Comparison, probe: str, language: str, items: pd.DataFrame
) -> tuple[Row, dict[str, Floats]]:
    """A row, and the bootstrap draws of its ratios."""
    row: Row = {**comparison.subject.row, "language": language, "probe": probe, "n": len(items)}
    row |= comparison.counts(language, probe)
    left_out = why_unpaired(comparison, language, probe)
    if items.empty:
        return row | {"reason": joined_reasons(comparison.reason or UNPAIRED, left_out)}, {}
    dense, pruned = sides_of(items, CORRECT[probe])
    floor = floor_of(items, probe, "_dense")
    row |= {"base_accuracy": float(dense.mean()), "accuracy": float(pruned.mean())}
    resampler, numbers = inputs.resampler(comparison.subject.task), item_numbers(items)
    base_draws, own_draws = resampler.means(numbers, dense, pruned)
    draws, reasons = {}, [left_out]
    for name, guessed in (("recovery", 0.0), ("above_guessing", floor)):
        if name == "above_guessing" and not floor:
            continue
        if dense.mean() <= guessed:
            reasons.append(f"{name.replace('_', ' ')}: the base is right for {dense.mean():.3f}, not above {guessed:g}")
            continue
        row[name] = float((pruned.mean() - guessed) / (dense.mean() - guessed))
        over = np.where(base_draws > guessed, base_draws - guessed, np.nan)
        draws[name] = (own_draws - guessed) / over
        row |= bounds(name, resampler.interval(numbers, draws[name]))
    return row | {"reason": joined_reasons(*reasons)}, draws


def _mean(pooled: Row, by_language: Sequence[tuple[Row, dict[str, Floats]]]) -> list[Row]:
    """The mean over the languages in which recovery is defined; nothing for fewer than two languages."""
    if len(by_language) < 2:
        return []
    defined = [(row, draws) for row, draws in by_language if row.get("recovery") is not None]
    same = {name: pooled.get(name) for name in (*(each.name for each in SUBJECT), "probe")}
    reason = f"unweighted mean over {len(defined)} of {len(by_language)} languages"
    mean: Row = same | {"language": MEAN, "n": sum(row["n"] for row, _ in defined), "reason": reason}
    for name in _RATIOS:
        values = [(row, draws) for row, draws in defined if row.get(name) is not None]
        if not values:
            continue
        mean[name] = float(np.mean([row[name] for row, _ in values]))
        if all(row[f"{name}_low"] is not None for row, _ in values):
            mean |= bounds(name, percentile_interval(nan_mean([draws[name] for _, draws in values])))
    return [mean]


TABLE = Table(
    name="recovery_percent",
    title="How much of the accuracy is left?",
    reading=(
        "Recovery is the checkpoint's accuracy in percent of its base's, on the same items: 100 is no change. Of a "
        "choice, above guessing counts only what lies above 1/K, as guessing alone would recover the rest."
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
    lacks=(Lack("probe", "the probe greedy", "greedy"), Lack("probe", "the probe choice", "choice")),
)
