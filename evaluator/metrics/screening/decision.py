"""Which checkpoints are asked no more, from their answers to the anchors.

Against the best, a checkpoint is out when another compressed one is surely better. Each comparison has the level
(1 - confidence) / (K - 1): so that the best of K is out in at most 1 - confidence of the draws, whichever it is and
whichever seems to be. Against the gate, it is out when it has surely lost more than `max_drop` of its base's accuracy,
at the level (1 - confidence) / (K * measures). K is how many there are to be, not how many there are so far: so that an
order of events and a resumed run decide nothing else.

A confidence is one of what all items would say (the full run), over the draws of the anchors. It needs no assumption on
items that share contexts, and says nothing of other questions than the run's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from evaluator.metrics.inputs import ITEM, Inputs
from evaluator.metrics.intervals import Floats, ItemNumbers
from evaluator.metrics.screening.bounds import bounds, surely_above
from evaluator.screen import Measure, Screen
from evaluator.thresholds import Thresholds

# Of each measure: the probe, and the outcome column that says whether an item is right.
MEASURES: Mapping[Measure, tuple[str, str]] = {"open": ("greedy", "produced"), "choice": ("choice", "recognised")}


@dataclass(frozen=True, eq=False, kw_only=True)
class Answers:
    """What a base and its compressed checkpoints did with the same items: right (1.0), wrong (0.0), or not measured
    (NaN), an array for each measure. `planned`: how many compressed checkpoints there are to be."""

    task: str
    base: str
    of_base: Mapping[Measure, Floats]
    right: Mapping[str, Mapping[Measure, Floats]]  # by checkpoint
    planned: int

    def at(self, places: ItemNumbers) -> Answers:
        """The same on some of the items."""
        return Answers(
            task=self.task,
            base=self.base,
            of_base={measure: values[places] for measure, values in self.of_base.items()},
            right={
                name: {measure: values[places] for measure, values in answers.items()}
                for name, answers in self.right.items()
            },
            planned=self.planned,
        )


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A checkpoint beside what it may be worse than, by one measure, on the `n` anchors that both were measured on."""

    checkpoint: str
    measure: Measure
    reference: str  # another checkpoint, or the base
    n: int
    plus: int  # anchors on which the reference alone is right
    minus: int
    own: int  # anchors on which the checkpoint is right
    margin: float  # how much worse it may be
    level: float

    @property
    def worse(self) -> bool:
        """Whether it is surely worse by more than the margin."""
        return surely_above(self.plus, self.minus, self.n, self.margin, self.level)

    @property
    def difference(self) -> float:
        """By how much the reference is right more often."""
        return (self.plus - self.minus) / self.n if self.n else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Of the difference: both one-sided bounds at the level that was decided by."""
        return bounds(self.plus, self.minus, self.n, self.level)


def measures_of(rule: Screen, outcomes: pd.DataFrame) -> tuple[Measure, ...]:
    """By which of the measures that a base's outcomes of a task have is decided; none: it is not screened."""
    asked = tuple(measure for measure, (_, column) in MEASURES.items() if outcomes[column].notna().any())
    if rule.measure is not None:
        return (rule.measure,) if rule.measure in asked else ()
    return asked if rule.against == "gate" else asked[:1]


def decide(answers: Answers, rule: Screen, thresholds: Thresholds) -> dict[str, Compared]:
    """Of each checkpoint that is out, by what: the comparison in which it is worst."""
    out = {}
    for name in answers.right:
        against = comparisons(answers, name, rule, thresholds)
        worse = [each for each in against if each.worse]
        if worse:
            out[name] = max(worse, key=lambda each: each.difference - each.margin)
    return out


def nearest(answers: Answers, name: str, rule: Screen, thresholds: Thresholds) -> Compared | None:
    """Of a checkpoint that stays, the comparison in which it is worst; None where there is none."""
    against = comparisons(answers, name, rule, thresholds)
    return max(against, key=lambda each: each.difference - each.margin, default=None)


def comparisons(answers: Answers, name: str, rule: Screen, thresholds: Thresholds) -> list[Compared]:
    """What a checkpoint is held against."""
    own, planned = answers.right[name], answers.planned
    if rule.against == "gate":
        assert thresholds.max_drop is not None
        level = round(1 - rule.confidence, 12) / (planned * len(own))
        return [
            _compared((name, answers.base), measure, (own[measure], answers.of_base[measure]), margin, level)
            for measure in own
            for margin in (thresholds.max_drop / 100,)
        ]
    level = round(1 - rule.confidence, 12) / max(planned - 1, 1)
    return [
        _compared((name, other), measure, (own[measure], values[measure]), 0.0, level)
        for other, values in answers.right.items()
        if other != name
        for measure in own
    ]


def _compared(
    names: tuple[str, str], measure: Measure, right: tuple[Floats, Floats], margin: float, level: float
) -> Compared:
    own, reference = right
    both = ~(np.isnan(own) | np.isnan(reference))
    return Compared(
        checkpoint=names[0],
        measure=measure,
        reference=names[1],
        n=int(both.sum()),
        plus=int((reference > own)[both].sum()),
        minus=int((own > reference)[both].sum()),
        own=int(own[both].sum()),
        margin=margin,
        level=level,
    )


def population(inputs: Inputs, base: str, task: str, measures: Sequence[Measure]) -> pd.DataFrame:
    """The base's outcomes on the items of which it has a measure: what anchors are drawn from."""
    outcomes = inputs.outcomes_of(base, task)
    known = outcomes[[MEASURES[measure][1] for measure in measures]].notna().any(axis=1)
    return outcomes[known].reset_index(drop=True)


def answers_of(
    inputs: Inputs,
    items: pd.DataFrame,
    names: Sequence[str],
    measures: Sequence[Measure],
    *,
    subject: tuple[str, str],
    planned: int,
) -> Answers:
    """What a base (`subject`: the task and it) and checkpoints did with `items`, rows of the base's outcomes."""
    task, base = subject

    def right(name: str) -> dict[Measure, Floats]:
        found = items[list(ITEM)].merge(inputs.outcomes_of(name, task), on=list(ITEM), how="left")
        return {measure: found[MEASURES[measure][1]].to_numpy(dtype="float64") for measure in measures}

    return Answers(
        task=task, base=base, of_base=right(base), right={name: right(name) for name in names}, planned=planned
    )
