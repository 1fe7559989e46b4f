"""The configuration of a pruning job: frozen, checked when it is made, unknown keys
are errors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from evaluator.core.config import Frozen
from pruning.methods import METHODS
from pruning.methods.base import Removal
from pruning.methods.patterns import (
    UNSTRUCTURED,
    Group,
    Pattern,
    Removed,
    Unstructured,
    parse,
)

Allocation = Literal["uniform", "owl"]

MethodName = Annotated[str, AfterValidator(METHODS.checked)]


def needs_calibration(method: str, allocation: str | None) -> bool:
    """Whether method or allocation by outliers looks at text. Raises InputError for
    an unknown method."""
    return METHODS[method].needs_calibration or allocation == "owl"


class CalibrationConfig(Frozen):
    """The text whose activations decide which weights go.

    `source` is `c4`, `c4:windows`, `wikipedia:LANG,...`, `balanced:LANG,...`,
    `text:FILE[,FILE]`, `jsonl:FILE[,FILE]` (plain or .gz), or a name that the caller
    supplies, such as `gazetteer`."""

    source: str
    samples: int = Field(default=128, ge=1, le=10**6, description="passages")
    # a longer passage is cut
    sequence_length: int = Field(
        default=2048, ge=1, le=10**7, description="tokens per passage at most"
    )
    # Where relative files are looked for; None: the process's own directory. It is no
    # part of the settings: manifests, records and a run's identity name a file as the
    # user did.
    _directory: Path | None = PrivateAttr(default=None)

    @field_validator("source")
    @classmethod
    def _named(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("calibration source is empty")
        return value

    @property
    def files(self) -> list[tuple[str, Path]]:
        """The files that a `text:` or `jsonl:` source names, else none: the name of
        each, and its path."""
        kind, _, rest = self.source.partition(":")
        names = rest.split(",") if kind in ("text", "jsonl") else []
        return [(str(Path(name)), (self._directory or Path()) / name) for name in names]

    def absolute(self) -> CalibrationConfig:
        """The same settings, which find their files from any directory."""
        found = self.model_copy()
        found._directory = (self._directory or Path()).absolute()
        return found


USUAL = CalibrationConfig(source="c4")


class JobConfig(Frozen):
    """What the configurations of pruning and quantising share."""

    source: Path  # directory of the checkpoint, dense or pruned
    # needed only where text is looked at (see `needs_calibration`)
    calibration: CalibrationConfig | None = Field(
        default=None,
        description=(
            f"{USUAL.source} (default), text:FILE (each line is a text); see `resurface"
            " list methods`"
        ),
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="of the choice of passages"
    )

    def absolute(self) -> Self:
        """The same job for a process in another directory: it finds the checkpoint
        and the calibration files there."""
        calibration = None if self.calibration is None else self.calibration.absolute()
        return self.model_copy(
            update={"source": self.source.absolute(), "calibration": calibration}
        )


class Selection(Frozen):
    """How a pruning chooses what goes."""

    method: MethodName = Field(
        description="required to prune; see `resurface list methods`"
    )
    # "owl": a ratio for each layer, from its share of outliers
    allocation: Allocation = Field(
        default="uniform",
        description=f"{', '.join(get_args(Allocation))} (spares layers with outliers)",
    )
    # what a weight is compared with; None: the method's own
    group: Group | None = Field(
        default=None,
        description=(
            f"remove the least of each: {', '.join(get_args(Group))}; default: the"
            " method's"
        ),
    )


class PruneConfig(Selection, JobConfig):
    """One dense checkpoint, one method, one pattern."""

    # "unstructured", "N:M"; of a method that takes layers out "layers", or the list of
    # them ("20-25")
    pattern: str = Field(
        default=UNSTRUCTURED,
        description=(
            "N:M, e.g. 2:4 zeroes 2 of every 4; for drop the layers, e.g. 20-25,28"
        ),
    )
    # unless the pattern says it
    sparsity: float | None = Field(
        default=None, description="share of zeros, or of removed layers, as 0.5"
    )
    device: str = "auto"  # "auto", "cpu", "cuda" or "cuda:N"

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        name, _, index = value.partition(":")
        if value not in ("auto", "cpu", "cuda") and not (
            name == "cuda" and index.isdecimal()
        ):
            raise ValueError(f"device: {value!r} is not one of auto, cpu, cuda, cuda:N")
        return value

    @model_validator(mode="before")
    @classmethod
    def _pattern_of_method(cls, given: Any) -> Any:
        name = given.get("method") if isinstance(given, dict) else None
        if isinstance(name, str) and name in METHODS:
            method = METHODS[name]
            if isinstance(method, Removal):
                return given | {"pattern": method.spelled(given.get("pattern"))}
        return given

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        pattern = self.removed if self.removes else self.weights_pattern
        looks = needs_calibration(self.method, self.allocation)
        if self.calibration is None and looks:
            raise ValueError(
                f"calibration: method {self.method!r}, allocation"
                f" {self.allocation!r} needs a source"
            )
        idle = []  # fields that mean nothing in this job
        if self.allocation != "uniform" and not isinstance(pattern, Unstructured):
            idle.append(f"allocation: {self.allocation!r}")
        takes_group = METHODS[self.method].takes_group
        if self.group is not None and not (
            takes_group and isinstance(pattern, Unstructured)
        ):
            idle.append(f"group: {self.group!r}")
        if idle:
            sparsity = "" if self.sparsity is None else f", sparsity {self.sparsity}"
            raise ValueError(
                f"{idle[0]} means nothing with {self.method}, pattern"
                f" {self.pattern!r}{sparsity}"
            )
        return self

    @property
    def removes(self) -> bool:
        """Whether whole layers are taken out, and not weights set to zero."""
        return isinstance(METHODS[self.method], Removal)

    @property
    def weights_pattern(self) -> Pattern:
        return parse(self.pattern, self.sparsity)

    @property
    def removed(self) -> Removed:
        method = METHODS[self.method]
        assert isinstance(method, Removal)
        return method.removed(self.pattern, self.sparsity)

    @property
    def comparison(self) -> Group:
        """The group within which weights are compared: the job's, or else the
        method's own."""
        return self.group or METHODS[self.method].group
