"""What the witnesses of an examination answered. Plain records; nothing here needs an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evaluator.engine.base import Response
from evaluator.engine.beam import Hypothesis

Answers = Mapping[str, Response]  # by request id


class NotHereError(Exception):
    """There is nothing to hold against anything on this machine; the text says why, in one line."""


class DisagreementError(Exception):
    """Two sides whose answers cannot even be compared; the text says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What one witness answered."""

    dtype: str = ""  # what it computed in
    facts: Mapping[str, str] = field(default_factory=dict)  # what it is, in words
    scoring: str = "forced"  # how its engine scores
    notes: tuple[str, ...] = ()  # what its engine says of itself
    answers: Mapping[str, Answers] = field(default_factory=dict)  # by stage: "dense", "pruned", ...
    beams: Mapping[str, tuple[Hypothesis, ...]] = field(default_factory=dict)  # by prompt, best first
    shares: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict
    )  # by comparison: matrix -> share that differs
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """Every witness's statement, or the reason why there is none."""

    heard: Mapping[str, Statement | str]

    def of(self, witness: str) -> Statement:
        """Raises DisagreementError where the witness said nothing."""
        said = self.heard.get(witness, "it was not asked")
        if isinstance(said, str):
            raise DisagreementError(f"{witness}: {said}")
        return said

    def forced(self, witness: str) -> Statement:
        """The same, of a witness that scores by forcing. Raises DisagreementError for one that gave it up because its
        scores were wrong, and NotHereError for one that cannot."""
        said = self.of(witness)
        if said.scoring == "forced":
            return said
        why = "; ".join(said.notes) or "it scores by prompt log-probabilities"
        if said.facts.get("self-check") == "failed":
            raise DisagreementError(f"{witness}: {why}")
        raise NotHereError(why)

    def answers(self, witness: str, stage: str, kind: str = "") -> Answers:
        """A stage's answers to the requests whose ids begin with `kind`. Raises DisagreementError without any."""
        found = {name: each for name, each in self.of(witness).answers.get(stage, {}).items() if name.startswith(kind)}
        if not found:
            raise DisagreementError(f"{witness}: no answer of stage {stage!r}")
        return found
