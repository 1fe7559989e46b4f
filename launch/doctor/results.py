"""The results of the doctor's runs: plain records, without an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evaluator.engine.base import Response
from evaluator.engine.beam import Hypothesis

Answers = Mapping[str, Response]  # by request id


class NotHereError(Exception):
    """This machine has nothing to compare; the text gives the reason in one line."""


class DisagreementError(Exception):
    """The answers of two runs cannot be compared; the text gives the reason in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The answers of one run."""

    dtype: str = ""  # of its computations
    facts: Mapping[str, str] = field(default_factory=dict)  # about the engine or device, in words
    scoring: str = "forced"  # how its engine scores
    notes: tuple[str, ...] = ()  # from the engine
    answers: Mapping[str, Answers] = field(default_factory=dict)  # by stage: "dense", "pruned", ...
    beams: Mapping[str, tuple[Hypothesis, ...]] = field(default_factory=dict)  # by prompt, best first
    shares: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict
    )  # by comparison: matrix -> share that differs
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Results:
    """The result of every run, or the reason for its absence."""

    by_run: Mapping[str, RunResult | str]

    def of(self, run: str) -> RunResult:
        """Raises DisagreementError for a run without a result."""
        result = self.by_run.get(run, "it did not run")
        if isinstance(result, str):
            raise DisagreementError(f"{run}: {result}")
        return result

    def forced(self, run: str) -> RunResult:
        """The result of a run that scores by forcing tokens. Raises DisagreementError if its engine stopped forcing
        because the scores were wrong, NotHereError if the engine cannot force."""
        result = self.of(run)
        if result.scoring == "forced":
            return result
        why = "; ".join(result.notes) or "it scores by prompt log-probabilities"
        if result.facts.get("self-check") == "failed":
            raise DisagreementError(f"{run}: {why}")
        raise NotHereError(why)

    def answers(self, run: str, stage: str, kind: str = "") -> Answers:
        """A stage's answers to requests whose ids begin with `kind`. Raises DisagreementError if there are none."""
        found = {name: each for name, each in self.of(run).answers.get(stage, {}).items() if name.startswith(kind)}
        if not found:
            raise DisagreementError(f"{run}: no answer of stage {stage!r}")
        return found
