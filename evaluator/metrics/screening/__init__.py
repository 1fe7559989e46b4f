"""Screening: few items first, and the rest for the checkpoints that matter.

places = draw_anchors(outcomes_of_the_base, rule.items, rule.seed, task)     # which items are asked first
out = decide(answers.at(places), rule, thresholds)                           # what is surely worse, and than what
replay(inputs, rule, thresholds, verdicts, repeats=200)                      # the same on a run that asked everything
"""

from __future__ import annotations

from evaluator.metrics.screening.anchors import draw_anchors
from evaluator.metrics.screening.decision import (
    MEASURES,
    Answers,
    Compared,
    answers_of,
    decide,
    measures_of,
    nearest,
    population,
)
from evaluator.metrics.screening.replay import Fate, Replay, replay

__all__ = [
    "MEASURES",
    "Answers",
    "Compared",
    "Fate",
    "Replay",
    "answers_of",
    "decide",
    "draw_anchors",
    "measures_of",
    "nearest",
    "population",
    "replay",
]
