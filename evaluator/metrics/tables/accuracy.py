"""Table `accuracy`: per checkpoint, task, format, probe and language, with the paired
drop from the base.

Probe `greedy` is right if the output contains a gold answer. Probe `choice` is right if
the gold option has strictly the highest summed log-likelihood. `drop` is dense minus
pruned on the items measured in both; `normalised_drop` divides it by the headroom
(`evaluator.metrics.fates`). Row `mean` is the unweighted mean over languages of
accuracies and drops, each with the interval of that mean.
"""

from collections.abc import Iterator

from evaluator.metrics.columns import (
    COUNT,
    DROP,
    LANGUAGE,
    PERCENTAGE,
    RATIO,
    SCORE,
    SHARE,
    SUBJECT,
    TEXT,
    Row,
)
from evaluator.metrics.cuts import Cut, walk
from evaluator.metrics.fates import CORRECT, NormalisedDrop
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.measures import Average, Count, Share, drop
from evaluator.metrics.table import (
    LACKS,
    Dots,
    Heat,
    Holm,
    Lack,
    Series,
    Table,
    whole_percent,
)

# The columns of rates, and the outcomes that they are of.
_RATES = {
    "greedy": {
        "accuracy": "produced",
        "exact_match": "exact_match",
        "truncation": "truncated",
    },
    "choice": {
        "accuracy": "recognised",
        "per_token": "recognised_per_token",
        "per_byte": "recognised_per_byte",
        "truncation": "truncated",
    },
}


def _cut(probe: str) -> Cut:
    rates = [Share(name, column) for name, column in _RATES[probe].items()]
    overlap = [Average("token_f1", "token_f1")] if probe == "greedy" else []
    right = CORRECT[probe]
    return Cut(
        keys={"probe": probe},
        probes=(probe,),
        measures=(Count("truncated", "truncated"), *rates, *overlap),
        paired=(
            Average("dense_accuracy", f"base_{right}"),
            drop("drop", right),
            NormalisedDrop(probe),
        ),
        mean=True,
    )


_CUTS = [_cut(probe) for probe in CORRECT]


def _rows(inputs: Inputs) -> Iterator[Row]:
    for format in inputs.formats:
        for row in walk(inputs, _CUTS, format):
            yield row | {"format": format}


_POOLED = (
    Series("accuracy", "greedy", "said", {"probe": "greedy"}),
    Series("accuracy", "choice", "picked", {"probe": "choice"}),
)

TABLE = Table(
    name="accuracy",
    title="How much is still right?",
    reading=(
        "Said (probe greedy): the model's greedy output must contain a gold answer."
        " Picked (probe choice): each option is scored by its log-likelihood after the"
        " same prompt, and the gold one must win. If said falls and picked does not, a"
        " multiple-choice benchmark would have noticed nothing. Drops are in percentage"
        " points. Whiskers are 95 % intervals over contexts."
    ),
    needs="the probe greedy or choice on any checkpoint",
    columns=(
        *SUBJECT,
        *TEXT("format", "probe"),
        LANGUAGE,
        *COUNT("n", "excluded", "engine_error", "truncated"),
        *PERCENTAGE.estimates(
            "accuracy", "exact_match", "per_token", "per_byte", "truncation"
        ),
        *SCORE("token_f1"),
        *COUNT("n_paired"),
        *PERCENTAGE("dense_accuracy", n="n_paired"),
        *DROP,
        *SHARE("floor", n="n_paired"),
        *RATIO("normalised_drop", n="n_paired"),
    ),
    compute=_rows,
    figure=(
        Dots(
            "Accuracy, languages pooled",
            _POOLED,
            width=1.15,
            linked=True,
            text=whole_percent,
        ),
        Heat("Said, by language, %", "accuracy", "greedy", {"probe": "greedy"}),
    ),
    plotted=lambda frame: frame[frame["format"] == "open"],
    corrections=(Holm(("task", "format", "probe", "language")),),
    lacks=(*LACKS, Lack("drop", "a checkpoint with its base (for the drops)")),
)
