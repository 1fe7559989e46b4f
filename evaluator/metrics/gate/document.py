"""The verdicts as JSON: what `RUN/gate.json` holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluator.metrics.gate.decision import OUTCOMES, Check, Outcome, Verdict
from evaluator.metrics.gate.words import paragraph, usable, why
from evaluator.store.failures import Failure
from evaluator.thresholds import Thresholds


def document(verdicts: Sequence[Verdict], thresholds: Thresholds, failures: Sequence[Failure] = ()) -> dict[str, Any]:
    """All of it; `verdict` is the worst of any checkpoint, and WARN where one or a task of it failed, as it was not
    judged. Shares and differences are of 1, as in the tables."""
    found = worst(verdicts)
    return {
        "schema_version": 1,
        "verdict": "WARN" if failures and found == "PASS" else found,
        "words": paragraph(verdicts),
        "thresholds": thresholds.model_dump(mode="json"),
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
        "underpowered": verdict.underpowered,
        "usable": usable(verdict),
        "why": why(verdict),
        "screened_out": verdict.screened_out is not None,
        "checks": [_check(check) for check in verdict.checks],
    }


def _check(check: Check) -> dict[str, Any]:
    return {
        "criterion": check.criterion.name,
        "language": check.language,
        "state": check.state,
        "value": check.value,
        "low": check.low,
        "high": check.high,
        "threshold": check.threshold,
        "n": check.n,
        "detectable": check.detectable,
        "enough_items": check.enough,
    }
