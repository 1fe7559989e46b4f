"""Table `thinking`: do models think longer, do their thoughts still end, and does
thinking still help?

One row per checkpoint whose task has `thinking` on, pooled and by language, on the
greedy answers to the open prompt.

- `ratio` is the mean length of thoughts over the base's, on the items measured in both.
  A missing thought has length 0.
- `cut`: the share of thoughts without an end. `loops`: the share that loops
  (`evaluator.core.text.loops`).
- `accuracy`: the answer after the thought contains a gold answer; a cut thought has no
  answer.
- The fates are those of table `fates`, of the answers after thoughts, on the items that
  the base knew.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from evaluator.metrics.columns import (
    AMOUNT,
    BY_LANGUAGE,
    COUNT,
    FACTOR,
    PERCENTAGE,
    REASON,
    Row,
)
from evaluator.metrics.comparable import settings_of
from evaluator.metrics.cuts import Cut
from evaluator.metrics.fates import BARS, RATES, FateRates
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.intervals import Floats
from evaluator.metrics.items import Items
from evaluator.metrics.measures import Average, Lengthening, Share
from evaluator.metrics.table import Bars, Dots, Lack, Series, Table

_RATES = {"cut": "thought_cut", "loops": "thought_loops", "accuracy": "produced"}
_RATIO = (Series("ratio", "rank", "tokens"),)
_ACCURACY = (Series("accuracy", "greedy", "after a thought"),)


def _or_none(column: str) -> Callable[[Items], Floats]:
    """Of all measured items: a missing thought is neither cut nor loops."""
    return lambda items: np.nan_to_num(items[column])


def _rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.checkpoints:
        if not inputs.of(subject).has("thought_tokens").any():
            continue
        settings = settings_of(inputs.run, subject.checkpoint, subject.task)
        longer = Lengthening(
            "ratio",
            "thought_tokens",
            settings.get("thought_limit", 0),
            "the base thought about none of these items",
        )
        cut = Cut(
            probes=("greedy",),
            nothing="no greedy answer was measured",
            measures=(
                Average("thought_tokens", "thought_tokens"),
                *(Share(name, _or_none(of)) for name, of in _RATES.items()),
            ),
            paired=(
                Average("base_thought_tokens", "base_thought_tokens"),
                longer,
                FateRates(),
            ),
        )
        yield from cut.rows(inputs, subject)


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
        ),
        Dots("Said", _ACCURACY),
        Bars("Fates of the answers", BARS),
    ),
    lacks=(Lack("ratio", "a checkpoint with its base (for ratio and fates)"),),
)
