"""Table `accuracy`: per checkpoint, task, format, probe and language, with the paired
drop from the base.

Probe `greedy` is right if the output contains a gold answer. Probe `choice` is right if
the gold option has strictly the highest summed log-likelihood. `drop` is dense minus
pruned on the items measured in both; `normalised_drop` divides it by the headroom
(`evaluator.metrics.fates`). Row `mean` is the unweighted mean over languages of
accuracies and drops, each with the interval of that mean.
"""

from collections.abc import Iterator

import pandas as pd

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
from evaluator.metrics.exclusions import all_measured, joined_reasons, measured
from evaluator.metrics.fates import (
    CORRECT,
    headroom,
    over_headroom,
    paired_drop,
    sides_of,
)
from evaluator.metrics.inputs import MEAN, Comparison, Inputs, Part
from evaluator.metrics.measures import language_mean, rate
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
_IDENTITY = (*SUBJECT, *TEXT("format", "probe"), LANGUAGE)
_COUNTED = ("n", "excluded", "engine_error")


def _rows(inputs: Inputs) -> Iterator[Row]:
    for format in inputs.formats:
        for subject in inputs.checkpoints:
            items = inputs.outcomes_of(subject.checkpoint, subject.task, format)
            for probe in CORRECT:
                if items[f"{probe}_status"].notna().any():
                    parts = list(inputs.parts_of(subject, items, format))
                    for row in _probe_rows(parts, probe):
                        yield row | {"format": format, "probe": probe}


def _probe_rows(parts: list[Part], probe: str) -> Iterator[Row]:
    """Pooled, the mean over languages, then by language."""
    whole, *by_language = parts
    pooled = _row(whole, probe)
    yield pooled
    done = all_measured(whole.items, f"{probe}_status")
    if not done.empty:
        row = {name: pooled[name] for name in (*_COUNTED, "truncated")}
        row["n_paired"] = pooled.get("n_paired")
        languages = f"{done['language'].nunique()} of {len(by_language)} languages"
        row |= {"language": MEAN, "reason": f"unweighted mean over {languages}"}
        yield whole.subject.row | row | _means(done, whole.comparison, probe)
    for part in by_language:
        yield _row(part, probe)


def _row(part: Part, probe: str) -> Row:
    done, counts = measured(part.items, probe)
    row = part.row | counts | {"truncated": int(done["truncated"].sum())}
    for name, column in _RATES[probe].items():
        filled = done[done[column].notna()]
        row |= rate(name, filled[column], filled)
    if probe == "greedy" and len(done):
        row["token_f1"] = float(done["token_f1"].dropna().mean())
    if part.comparison is not None:
        drop = _paired(part.comparison, part.language, probe)
        row |= drop | {"reason": joined_reasons(row["reason"], drop["reason"])}
    return row


def _means(done: pd.DataFrame, comparison: Comparison | None, probe: str) -> Row:
    """Means over the languages with measured items. The mean drop is over the
    languages with items measured in both."""
    row: Row = {}
    for name, column in _RATES[probe].items():
        filled = done[done[column].notna()]
        row |= language_mean(name, filled[column], filled)
    if probe == "greedy":
        by_language = done.groupby("language")["token_f1"].mean()
        row["token_f1"] = float(by_language.mean())
    if comparison is not None:
        both = comparison.measured(probe)
        dense, pruned = sides_of(both, CORRECT[probe])
        by_language = pd.Series(dense).groupby(both["language"].to_numpy()).mean()
        row["dense_accuracy"] = float(by_language.mean())
        row |= language_mean("drop", dense - pruned, both, low=-1.0)
    return row


def _paired(comparison: Comparison, language: str, probe: str) -> Row:
    """The drop on the items that the probe measured in both checkpoints."""
    items = comparison.measured(probe, language=language)
    row = paired_drop(comparison, items, CORRECT[probe])
    if not items.empty:
        dense, _, floor = (float(each.mean()) for each in headroom(items, probe)[0])
        relative, reason = over_headroom(row["drop"], dense, floor)
        row |= {"dense_accuracy": dense, "floor": floor}
        row |= {"normalised_drop": relative, "reason": reason}
    return row


_POOLED = (
    Series("accuracy", "greedy", "open: says it", {"probe": "greedy"}),
    Series("accuracy", "choice", "choice: recognises it", {"probe": "choice"}),
)

TABLE = Table(
    name="accuracy",
    title="How much is still right?",
    reading=(
        "Open: the model writes the answer, and its greedy output must contain a gold"
        " answer. Choice: each option is scored by its log-likelihood after the same"
        " prompt, and the gold one must win. If open falls and choice does not, a"
        " multiple-choice benchmark would have noticed nothing. Drops are in percentage"
        " points. Whiskers are 95 % intervals over contexts."
    ),
    needs="the probe greedy or choice on any checkpoint",
    columns=(
        *_IDENTITY,
        *COUNT(*_COUNTED, "truncated"),
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
        Heat("Open accuracy by language, %", "accuracy", "greedy", {"probe": "greedy"}),
    ),
    plotted=lambda frame: frame[frame["format"] == "open"],
    corrections=(Holm(("task", "format", "probe", "language")),),
    lacks=(*LACKS, Lack("drop", "a checkpoint with its base (for the drops)")),
)
