"""What the witnesses of an examination answered. Plain records; nothing here needs an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evaluator.engine.base import Response
from evaluator.engine.beam import Hypothesis

Answers = Mapping[str, Response]  # by request id


class DisagreementError(Exception):
    """Two sides whose answers cannot even be compared; the text says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What one witness answered."""

    dtype: str = ""  # what it computed in
    facts: Mapping[str, str] = field(default_factory=dict)  # what it is, in words
    warning: str | None = None  # what its engine says of itself, if it found a fault
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
        """Raises DisagreementError where the witness said nothing, or found a fault in itself."""
        said = self.heard.get(witness, "it was not asked")
        if isinstance(said, str):
            raise DisagreementError(f"{witness}: {said}")
        if said.warning is not None:
            raise DisagreementError(f"{witness}: {said.warning}")
        return said

    def answers(self, witness: str, stage: str, kind: str = "") -> Answers:
        """A stage's answers to the requests whose ids begin with `kind`. Raises DisagreementError without any."""
        found = {name: each for name, each in self.of(witness).answers.get(stage, {}).items() if name.startswith(kind)}
        if not found:
            raise DisagreementError(f"{witness}: no answer of stage {stage!r}")
        return found
