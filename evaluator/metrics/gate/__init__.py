"""PASS, WARN or BLOCK for each compressed checkpoint: thresholds on the numbers of the tables, and nothing else.

verdicts = decide(tables, Thresholds(), incomparable={})     # pure: frames and bounds in, verdicts out
paragraph(verdicts)                                          # the same in plain words
"""

from __future__ import annotations

from evaluator.metrics.gate.criteria import CRITERIA, Criterion
from evaluator.metrics.gate.decision import Check, Verdict, decide, looked_at
from evaluator.metrics.gate.document import document
from evaluator.metrics.gate.words import paragraph, summary, usable, why

__all__ = [
    "CRITERIA",
    "Check",
    "Criterion",
    "Verdict",
    "decide",
    "document",
    "looked_at",
    "paragraph",
    "summary",
    "usable",
    "why",
]
