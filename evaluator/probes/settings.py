"""Settings that probes read: formats, seeds, lengths, widths. The defaults are the paper's (The Benchmark Illusion,
arXiv 2606.17609)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, field_validator

from evaluator.core.config import Frozen
from evaluator.core.records import Format
from evaluator.engine.distributions import RANKS

Seed = Annotated[int, Field(ge=0, lt=2**63)]  # the records' column has 64 bits: more would end an engine at each item


def each_once(names: Sequence[object] | None) -> None:
    """Raises ValueError for an empty list and for one that repeats an entry; None is no list."""
    if names is not None and (not names or len(set(names)) != len(names)):
        raise ValueError(f"must name each one once, and at least one: {', '.join(map(str, names)) or '(empty)'}")


class Settings(Frozen):
    """The part of an evaluation's configuration that probes read."""

    formats: tuple[Format, ...] = ("open",)
    seed: Seed = 0
    max_new_tokens: int = Field(default=32, ge=1)
    beam_width: int = Field(default=5, ge=1, le=10)
    samples: int = Field(default=10, ge=1)
    sample_seeds: tuple[Seed, ...] | None = None  # of the sample probe; None: the run seed. It must be one of them
    top_p: float = Field(default=0.9, gt=0, le=1)
    temperature: float = Field(default=1.0, ge=0.01, le=2)  # vLLM refuses more, and silently raises less
    window: int = Field(default=2048, ge=2)  # tokens of a window of a text; at most what the model has positions for
    # Of the base's distributions keep the likeliest so many tokens, and the rest as one; 0: the whole vocabulary.
    fidelity_top: int = Field(default=0, ge=0)

    @field_validator("formats", "sample_seeds")
    @classmethod
    def _no_repeats(cls, value: tuple[object, ...] | None) -> tuple[object, ...] | None:
        each_once(value)
        return value

    @field_validator("fidelity_top")
    @classmethod
    def _ranks(cls, value: int) -> int:
        if 0 < value < RANKS:
            raise ValueError(f"{value}: the first {RANKS} ranks are compared, so {RANKS} or more, or 0 for all")
        return value

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the sample probe."""
        return (self.seed,) if self.sample_seeds is None else self.sample_seeds
