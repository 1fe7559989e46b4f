"""Table `thinking`: do models think longer, do their thoughts still end, and does
thinking still help?

One row per checkpoint whose task has `thinking` on, pooled and by language, on the
greedy answers to the open prompt.

- `ratio` is the mean length of thoughts over the base's, on the items measured in both.
  A missing thought has length 0.
- `cut`: the share of thoughts without an end. `loops`: the share that loops
  (`evaluator.core.grading.loops`).
- `accuracy`: the answer after the thought contains a gold answer; a cut thought has no
  answer.
- The fates are those of table `fates`, of the answers after thoughts, on the items that
  the base knew.
"""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from evaluator.metrics.columns import (
    AMOUNT,
    BY_LANGUAGE,
    COUNT,
    FACTOR,
    PERCENTAGE,
    REASON,
    Row,
)
from evaluator.metrics.exclusions import joined_reasons, measured
from evaluator.metrics.fates import BARS, RATES, fate_rates, sides_of, why_unpaired
from evaluator.metrics.inputs import Comparison, Inputs, settings_of
from evaluator.metrics.intervals import Ratio
from evaluator.metrics.measures import contexts_of, of_mean, rate
from evaluator.metrics.table import Bars, Dots, Lack, Series, Table

_RATES = {"cut": "thought_cut", "loops": "thought_loops", "accuracy": "produced"}
_RATIO = (Series("ratio", "rank", "tokens"),)
_ACCURACY = (Series("accuracy", "greedy", "after a thought"),)


def _rows(inputs: Inputs) -> Iterator[Row]:
    for part in inputs.parts("thought_tokens"):
        row = part.row | _own(part.items)
        if part.comparison is not None:
            task, checkpoint = part.subject.key
            limit = settings_of(inputs.run, checkpoint, task).get("thought_limit", 0)
            paired = _paired(part.comparison, part.language, limit)
            reason = joined_reasons(row["reason"], paired["reason"])
            row |= paired | {"reason": reason}
        yield row


def _own(items: pd.DataFrame) -> Row:
    """What a checkpoint thinks, and says after it."""
    done, row = measured(items, "greedy", nothing="no greedy answer was measured")
    if done.empty:
        return row
    row["thought_tokens"] = float(done["thought_tokens"].mean())
    for name, column in _RATES.items():
        row |= rate(name, done[column].fillna(0.0), done)
    return row


def _paired(comparison: Comparison, language: str, limit: int) -> Row:
    """The thoughts beside the base's, and what became of the answers that the base
    knew."""
    items = comparison.measured("greedy", language=language)
    why = comparison.reason or why_unpaired(comparison, language, "greedy")
    row: Row = {"n_paired": len(items), "reason": why}
    if items.empty:
        return row
    dense, pruned = sides_of(items, "thought_tokens")
    row["base_thought_tokens"] = float(dense.mean())
    if dense.any():
        most = max(limit, dense.max(), pruned.max())
        ratio = Ratio(pruned / most, dense / most, contexts_of(items))
        row |= of_mean("ratio", ratio)
    else:
        reason = "the base thought about none of these items"
        row["reason"] = joined_reasons(why, reason)
    return row | fate_rates(items)


TABLE = Table(
    name="thinking",
    title="Does it think longer, and does thinking still help?",
    reading=(
        "Thought tokens are the mean length of what a model writes before its answer,"
        " and ratio compares that with the base. A cut thought has no end, as its"
        " budget or the model stopped it, and so no answer. A thought loops if half of"
        " its runs of eight words repeat earlier ones."
    ),
    needs="a task with thinking on, and the probe greedy",
    columns=(
        *BY_LANGUAGE,
        *COUNT("n", "excluded", "engine_error", "n_paired"),
        *AMOUNT("base_thought_tokens", n="n_paired", stored="tokens"),
        *AMOUNT("thought_tokens", stored="tokens"),
        *FACTOR.estimates("ratio", n="n_paired"),
        *PERCENTAGE.estimates("cut", "loops", "accuracy"),
        *COUNT("known"),
        *(replace(column, n="known") for column in RATES),
        REASON,
    ),
    compute=_rows,
    figure=(
        Dots(
            "Tokens of a thought, in multiples of the base's",
            _RATIO,
            "amounts",
            line=1,
            text="{:.2f}".format,
        ),
        Dots(
            "Thoughts",
            (
                Series("cut", "lost", "cut off"),
                Series("loops", "mc_only", "loops", hollow=True),
            ),
            legend=4,
        ),
        Dots("Open accuracy", _ACCURACY),
        Bars("Fates of the answers", BARS),
    ),
    lacks=(Lack("ratio", "a checkpoint with its base (for ratio and fates)"),),
)
