"""Table `recovery_percent`: how much of the base's accuracy is left, 100 x compressed /
base.

Both accuracies are over the items measured in both checkpoints (intervals:
`evaluator.metrics.bootstrap`). A choice that only guesses still recovers a good part.
So `above_guessing` counts only the part above the floor of 1/K: (compressed - floor) /
(base - floor). Row `mean` is the unweighted mean over the languages with a right answer
of the base.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from evaluator.metrics.bootstrap import Kinds, intervals, language_intervals
from evaluator.metrics.columns import BY_LANGUAGE, COUNT, COUNTED, PERCENTAGE, TEXT, Row
from evaluator.metrics.exclusions import joined_reasons
from evaluator.metrics.fates import CORRECT, headroom, normalised, paired_row
from evaluator.metrics.inputs import MEAN, Comparison, Inputs, Part
from evaluator.metrics.intervals import Floats
from evaluator.metrics.measures import bounds
from evaluator.metrics.table import LACKS, Dots, Heat, Table, of_probes, whole_percent

_NUMBERS = ("recovery", "above_guessing")


def _rows(inputs: Inputs) -> Iterator[Row]:
    """Per checkpoint with a base and probe: pooled (`all`), the mean over languages
    (`mean`), and by language."""
    for comparison in inputs.comparisons().values():
        for probe in CORRECT:
            if comparison.tells_of(probe):
                parts = comparison.parts(comparison.measured(probe))
                pooled, *by_language = [_recovered(part, probe) for part in parts]
                yield pooled
                if len(by_language) > 1:
                    yield _mean_recovered(comparison, probe, by_language)
                yield from by_language


def _kept(dense: Floats, pruned: Floats, floor: Floats) -> Floats:
    return np.asarray(1 - normalised(dense, pruned, floor))


def _values(items: pd.DataFrame, probe: str, name: str) -> tuple[list[Floats], Kinds]:
    """The arguments of `_kept`, as a number per item, and the possible kinds of
    items."""
    values, kinds = headroom(items, probe)
    if name == "recovery":
        values[2] = np.zeros(len(items))
        kinds = [(before, after, 0.0) for before, after, _ in kinds]
    return values, kinds


def _recovered(part: Part, probe: str) -> Row:
    items = part.items
    row = paired_row(part, probe) | {"probe": probe}
    if items.empty:
        return row
    means = [float(each.mean()) for each in headroom(items, probe)[0]]
    dense, pruned, guessed = means
    row |= {"base_accuracy": dense, "accuracy": pruned}
    for name in _NUMBERS if guessed else ("recovery",):
        floor = guessed if name == "above_guessing" else 0.0
        if dense > floor:
            row[name] = (pruned - floor) / (dense - floor)
            values, kinds = _values(items, probe, name)
            row |= bounds(name, *intervals(_kept, values, items, kinds))
        else:
            what = name.replace("_", " ")
            right = f"the base is right for {dense:.3f}, not above {floor:g}"
            row["reason"] = joined_reasons(row["reason"], f"{what}: {right}")
    return row


def _mean_recovered(
    comparison: Comparison, probe: str, by_language: Sequence[Row]
) -> Row:
    defined = [row for row in by_language if row.get("recovery") is not None]
    mean: Row = {
        **comparison.subject.row,
        "probe": probe,
        "language": MEAN,
        "n": sum(row["n"] for row in defined),
        "reason": (
            f"unweighted mean over {len(defined)} of {len(by_language)} languages"
        ),
    }
    for name in _NUMBERS:
        here = {}
        for row in defined:
            if row.get(name) is not None:
                here[row["language"]] = row[name]
        if here:
            mean[name] = float(np.mean([*here.values()]))
            items = comparison.measured(probe)
            items = items[items["language"].isin(here)]
            values, kinds = _values(items, probe, name)
            mean |= bounds(name, *language_intervals(_kept, values, items, kinds))
    return mean


TABLE = Table(
    name="recovery_percent",
    title="How much of the accuracy is left?",
    reading=(
        "Recovery is the checkpoint's accuracy in percent of its base's, on the same"
        " items: 100 is no change. For choices, above guessing counts only the part"
        " above 1/K, because guessing alone recovers the rest."
    ),
    needs="the probe greedy or choice on a checkpoint and its base",
    columns=(
        *BY_LANGUAGE,
        *TEXT("probe"),
        *COUNTED,
        *COUNT("unpaired"),
        *PERCENTAGE("base_accuracy", "accuracy"),
        *PERCENTAGE.estimates("recovery", "above_guessing"),
    ),
    compute=_rows,
    figure=(
        Dots(
            "Accuracy in % of the base's",
            of_probes("recovery"),
            "share",
            width=1.15,
            linked=True,
            line=1,
            text=whole_percent,
        ),
        Heat(
            "Open by language, % of the base's",
            "recovery",
            "greedy",
            {"probe": "greedy"},
        ),
    ),
    plotted=lambda frame: frame[frame["recovery"].notna()],
    lacks=LACKS,
)
