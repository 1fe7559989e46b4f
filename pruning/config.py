"""What a pruning job is told: frozen, checked when it is made, unknown keys are errors."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pruning.patterns import UNSTRUCTURED, NofM, Pattern, parse

Method = Literal["magnitude", "wanda", "sparsegpt", "ria"]
Group = Literal["row", "matrix"]
Allocation = Literal["uniform", "owl"]


def needs_calibration(method: str, allocation: str) -> bool:
    """Whether a job looks at text: every method but magnitude does, and so does whatever divides by outliers."""
    return method != "magnitude" or allocation == "owl"


class Frozen(BaseModel):
    """Base of every configuration: immutable, and a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class CalibrationConfig(Frozen):
    """The text whose activations decide what goes.

    `source` is `c4`, `c4:windows`, `wikipedia:LANG,...`, `balanced:LANG,...`, `text:FILE[,FILE]`, `jsonl:FILE[,FILE]`
    (plain or .gz), or a name that the caller supplies, such as `gazetteer`.
    """

    source: str
    samples: int = Field(default=128, ge=1)
    sequence_length: int = Field(default=2048, ge=1)  # tokens; a longer passage is cut

    @field_validator("source")
    @classmethod
    def _named(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("calibration source is empty")
        return value


class PruneConfig(Frozen):
    """One dense checkpoint, one method, one pattern."""

    source: Path  # directory of the dense checkpoint
    method: Method
    pattern: str = UNSTRUCTURED  # or "N:M"
    sparsity: float | None = None  # with pattern "unstructured", and only then
    group: Group | None = None  # what a weight is compared with; None: the method's own (see `comparison`)
    allocation: Allocation = "uniform"  # "owl": ratios by layer, from the share of outliers
    calibration: CalibrationConfig | None = None  # None where nothing is observed (see `needs_calibration`)
    seed: int = Field(default=0, ge=0)
    device: str = "auto"  # "auto", "cpu", "cuda" or "cuda:N"

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        name, _, index = value.partition(":")
        if value not in ("auto", "cpu", "cuda") and not (name == "cuda" and index.isdecimal()):
            raise ValueError(f"device: {value!r} is not one of auto, cpu, cuda, cuda:N")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        pattern = parse(self.pattern, self.sparsity)
        if self.calibration is None and needs_calibration(self.method, self.allocation):
            raise ValueError(f"calibration: method {self.method!r}, allocation {self.allocation!r} needs a source")
        if isinstance(pattern, NofM) and self.allocation != "uniform":
            raise ValueError(f"allocation: {self.allocation!r} varies the ratio, which pattern {self.pattern!r} fixes")
        if self.group is not None and (self.method == "sparsegpt" or isinstance(pattern, NofM)):
            raise ValueError(f"group: {self.group!r} means nothing with {self.method}, pattern {self.pattern!r}")
        return self

    @property
    def weights_pattern(self) -> Pattern:
        return parse(self.pattern, self.sparsity)

    @property
    def comparison(self) -> Group:
        """The group within which scores are compared: a row for Wanda, as published; the matrix for the others."""
        return self.group or ("row" if self.method == "wanda" else "matrix")
