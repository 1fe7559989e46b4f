"""Table `recovery_percent`: how much of the base's accuracy is left, 100 x compressed /
base.

Both accuracies are over the items measured in both checkpoints (intervals:
`evaluator.metrics.bootstrap`). A choice that only guesses still recovers a good part.
So `above_guessing` counts only the part above the floor of 1/K: (compressed - floor) /
(base - floor). Row `mean` is the unweighted mean over the languages with a right answer
of the base.
"""

from collections.abc import Iterator

import numpy as np

from evaluator.metrics.bootstrap import Kinds, intervals, language_intervals
from evaluator.metrics.columns import BY_LANGUAGE, COUNT, COUNTED, PERCENTAGE, TEXT, Row
from evaluator.metrics.cuts import Cut, walk
from evaluator.metrics.fates import CORRECT, headroom, normalised
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.intervals import Floats
from evaluator.metrics.items import Items
from evaluator.metrics.measures import Average, Measure, bounds, defined_in
from evaluator.metrics.table import LACKS, Dots, Heat, Table, of_probes, whole_percent


def _kept(base: Floats, own: Floats, floor: Floats) -> Floats:
    return np.asarray(1 - normalised(base, own, floor))


class _Recovered(Measure):
    """How much of the base's accuracy above a floor is left: above 0, or above
    guessing."""

    def __init__(self, name: str, probe: str) -> None:
        self._name, self._probe = name, probe

    def _values(self, items: Items) -> tuple[list[Floats], Kinds]:
        """The arguments of `_kept`, as a number per item, and the possible kinds of
        items."""
        values, kinds = headroom(items, self._probe)
        if self._name == "recovery":
            values[2] = np.zeros(len(items))
            kinds = [(before, after, 0.0) for before, after, _ in kinds]
        return values, kinds

    def __call__(self, items: Items) -> Row:
        if not len(items):
            return {}
        values, kinds = self._values(items)
        base, own, floor = (float(each.mean()) for each in values)
        if base > floor:
            row = {self._name: (own - floor) / (base - floor)}
            return row | bounds(self._name, *intervals(_kept, values, items, kinds))
        right = f"the base is right for {base:.3f}, not above {floor:g}"
        return {"reason": f"{self._name.replace('_', ' ')}: {right}"}

    def over_languages(self, items: Items) -> Row:
        defined, by_language, why = defined_in(self, self._name, items)
        row: Row = {"reason": why}
        if self._name == "recovery":
            row["n"] = len(defined)
        if not by_language:
            return row
        row[self._name] = float(np.mean([each[self._name] for each in by_language]))
        values, kinds = self._values(defined)
        found = language_intervals(_kept, values, defined, kinds)
        return row | bounds(self._name, *found)


def _cut(probe: str) -> Cut:
    right = CORRECT[probe]
    names = ["recovery"] if probe == "greedy" else ["recovery", "above_guessing"]
    return Cut(
        keys={"probe": probe},
        probes=(probe,),
        both=True,
        measures=(
            Average("base_accuracy", f"base_{right}"),
            Average("accuracy", right),
            *(_Recovered(name, probe) for name in names),
        ),
        mean=True,
    )


_CUTS = [_cut(probe) for probe in CORRECT]


def _rows(inputs: Inputs) -> Iterator[Row]:
    return walk(inputs, _CUTS)


TABLE = Table(
    name="recovery_percent",
    title="How much of the accuracy is left?",
    reading=(
        "Recovery is the checkpoint's accuracy in percent of its base's, on the same"
        " items: 100 is no change. For picked answers, above guessing counts only the"
        " part above 1/K, because guessing alone recovers the rest."
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
            "Said, by language, % of the base's",
            "recovery",
            "greedy",
            {"probe": "greedy"},
        ),
    ),
    plotted=lambda frame: frame[frame["recovery"].notna()],
    lacks=LACKS,
)
