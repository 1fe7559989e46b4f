"""Screening, tried on a run that asked everything: what would it have saved, and decided otherwise?

It pretends that only the anchors had been asked, decides, and looks up what the rest says; once for each of many draws
of anchors. The decision of the full run is which checkpoint is best, or which have lost more than the gate allows. What
is not screened out is asked everything, so that only what is out can make a difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from evaluator.metrics.gate import Verdict
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.intervals import Floats
from evaluator.metrics.screening.anchors import draw_anchors
from evaluator.metrics.screening.decision import Answers, answers_of, decide, measures_of, population
from evaluator.screen import Measure, Screen
from evaluator.thresholds import Thresholds


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What became of one checkpoint over the draws, and what the full run says of it."""

    checkpoint: str
    accuracy: float  # of the measure, on all items
    loss: float  # against the best, or against the base by the measure that lost most
    within: bool  # it is the best, or has lost no more than the gate allows: to screen it out is a mistake
    outcome: str  # the gate's verdict on the full run
    out: int  # draws in which it was screened out


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One task of one base's compressed checkpoints, over `repeats` draws."""

    task: str
    base: str
    measures: tuple[Measure, ...]
    items: int  # that each checkpoint was asked
    anchors: int
    repeats: int
    fates: tuple[Fate, ...]
    saved: float  # items, in the mean over the draws
    same: int  # draws in which the decision was the full run's
    left_out: tuple[str, ...] = field(default=())  # checkpoints that were asked less than the base

    @property
    def whole(self) -> int:
        """The items that the compressed checkpoints were asked."""
        return self.items * len(self.fates)

    @property
    def mistakes(self) -> int:
        """How often, over all draws, a checkpoint was screened out that must not be."""
        return sum(fate.out for fate in self.fates if fate.within)

    @property
    def out(self) -> int:
        """How often, over all draws, any checkpoint was screened out."""
        return sum(fate.out for fate in self.fates)

    @property
    def blocked(self) -> int:
        """How often one that the gate blocks in the full run."""
        return sum(fate.out for fate in self.fates if fate.outcome == "BLOCK")


def replay(
    inputs: Inputs, rule: Screen, thresholds: Thresholds, verdicts: Sequence[Verdict], repeats: int
) -> list[Replay]:
    """One for each task and base with at least one compressed checkpoint (against the best: two) to screen.

    The draws are those of the rule's seed and of the `repeats` - 1 next ones.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for subject in inputs.checkpoints:
        if subject.base is not None:
            groups.setdefault((subject.task, subject.base), []).append(subject.checkpoint)
    outcomes = {(each.task, each.checkpoint): each.outcome for each in verdicts}
    found = []
    for (task, base), names in groups.items():
        of_base = inputs.outcomes_of(base, task)
        measures, items = measures_of(rule, of_base), len(of_base)
        whole = [name for name in names if len(inputs.outcomes_of(name, task)) >= items]
        if not measures or len(whole) < (2 if rule.against == "best" else 1):
            continue
        drawn_from = population(inputs, base, task, measures)
        answers = answers_of(inputs, drawn_from, whole, measures, subject=(task, base), planned=len(whole))
        replayed = _Replayed(answers, rule, thresholds, {name: outcomes.get((task, name), "") for name in whole})
        found.append(replayed.over(drawn_from, items, repeats, tuple(sorted({*names} - {*whole}))))
    return found


@dataclass(frozen=True, eq=False)
class _Replayed:
    """The answers of a task to all items."""

    answers: Answers
    rule: Screen
    thresholds: Thresholds
    outcomes: Mapping[str, str]  # the gate's

    def over(self, items: pd.DataFrame, asked: int, repeats: int, left_out: tuple[str, ...]) -> Replay:
        losses, within = self._losses(), self._within()
        out = dict.fromkeys(self.answers.right, 0)
        same = saved = anchors = 0
        for seed in range(self.rule.seed, self.rule.seed + repeats):
            places = draw_anchors(items, self.rule.items, seed, self.answers.task)
            dropped = decide(self.answers.at(places), self.rule, self.thresholds)
            anchors = len(places)
            for name in dropped:
                out[name] += 1
            saved += len(dropped) * (asked - anchors)
            same += self._same(set(dropped), within)
        measures = tuple(self.answers.of_base)
        fates = tuple(
            Fate(
                checkpoint=name,
                accuracy=_mean(right[measures[0]]),
                loss=losses[name],
                within=name in within,
                outcome=self.outcomes[name],
                out=out[name],
            )
            for name, right in self.answers.right.items()
        )
        return Replay(
            task=self.answers.task,
            base=self.answers.base,
            measures=measures,
            items=asked,
            anchors=anchors,
            repeats=repeats,
            fates=fates,
            saved=saved / repeats,
            same=same,
            left_out=left_out,
        )

    def _losses(self) -> dict[str, float]:
        """Against the best of them, or against the base by the measure that lost most."""
        if self.rule.against == "best":
            accuracies = {name: _mean(next(iter(right.values()))) for name, right in self.answers.right.items()}
            return {name: max(accuracies.values()) - each for name, each in accuracies.items()}
        return {
            name: max(_mean(self.answers.of_base[measure] - values) for measure, values in right.items())
            for name, right in self.answers.right.items()
        }

    def _within(self) -> set[str]:
        allowed = 0.0 if self.rule.against == "best" else (self.thresholds.max_drop or 0.0) / 100
        return {name for name, loss in self._losses().items() if loss <= allowed + 1e-12}

    def _same(self, dropped: set[str], within: set[str]) -> bool:
        """Best: one that is the full run's best was asked everything. Gate: nothing was dropped that is within."""
        return bool(within - dropped) if self.rule.against == "best" else not within & dropped


def _mean(values: Floats) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0
