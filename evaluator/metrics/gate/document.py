"""The verdicts as JSON: what `RUN/gate.json` holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluator.metrics.gate.decision import OUTCOMES, Check, Outcome, Verdict
from evaluator.metrics.gate.words import paragraph, summary, usable, why
from evaluator.store.failures import Failure
from evaluator.thresholds import Thresholds


def document(verdicts: Sequence[Verdict], thresholds: Thresholds, failures: Sequence[Failure] = ()) -> dict[str, Any]:
    """`verdict` is the worst of any checkpoint, and at best WARN where one or a task of it failed, as nothing judged
    it. Shares and differences are of 1, as in the tables."""
    found = worst(verdicts)
    return {
        "schema_version": 2,
        "verdict": "WARN" if failures and found == "PASS" else found,
        "summary": summary(verdicts),
        "words": paragraph(verdicts),
        "thresholds": dict(thresholds),
        "checkpoints": [_checkpoint(verdict) for verdict in verdicts],
        "not_judged": [{"checkpoint": each.checkpoint, "task": each.task, "why": each.reason} for each in failures],
    }


def worst(verdicts: Sequence[Verdict]) -> Outcome:
    """The worst outcome; WARN where there is none."""
    return max((verdict.outcome for verdict in verdicts), key=OUTCOMES.index, default="WARN")


def _checkpoint(verdict: Verdict) -> dict[str, Any]:
    return {
        "task": verdict.task,
        "checkpoint": verdict.checkpoint,
        "base": verdict.base,
        "verdict": verdict.outcome,
        "usable": usable(verdict),
        "why": why(verdict),
        "planned": verdict.planned,
        "unjudged": verdict.unjudged,
        "decided_early": verdict.early is not None,
        "checks": [_check(check) for check in verdict.checks],
    }


def _check(check: Check) -> dict[str, Any]:
    numbers = ("language", "state", "value", "low", "high", "threshold", "n", "contexts", "missing")
    return {
        "criterion": check.criterion.name,
        **{name: getattr(check, name) for name in numbers},
        "enough_items": check.enough,
    }
