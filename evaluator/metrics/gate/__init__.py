"""PASS, WARN, ANOMALOUS or BLOCK for each compressed checkpoint: a test of non-inferiority on paired items.

outcome, checks = decide(paired, Thresholds())     # pure: arrays and tolerances in, a decision out
verdicts = judge(inputs, Thresholds())             # of each checkpoint of a run
paragraph(verdicts)                                # the same in plain words
"""

from __future__ import annotations

from evaluator.metrics.gate.criteria import CRITERIA, Criterion
from evaluator.metrics.gate.decision import BLOCK_LEVEL, PASS_LEVEL, Check, Outcome, Verdict, decide
from evaluator.metrics.gate.document import document
from evaluator.metrics.gate.looks import in_order, looks
from evaluator.metrics.gate.paired import Paired, paired_of
from evaluator.metrics.gate.replay import Replay, replay
from evaluator.metrics.gate.verdicts import unfinished
from evaluator.metrics.gate.words import paragraph, summary, usable, why

__all__ = [
    "BLOCK_LEVEL",
    "CRITERIA",
    "PASS_LEVEL",
    "Check",
    "Criterion",
    "Outcome",
    "Paired",
    "Replay",
    "Verdict",
    "decide",
    "document",
    "in_order",
    "looks",
    "paired_of",
    "paragraph",
    "replay",
    "summary",
    "unfinished",
    "usable",
    "why",
]
