"""The lines under `prune:` in a sweep file, and the bundled calibration passages.

The source `gazetteer` alternates nine languages; `gazetteer:LANG` uses one, given by name or code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from evaluator.core.config import Frozen
from evaluator.core.text import name_of
from evaluator.tasks.gazetteer import LANGUAGES, gazetteer_passages
from pruning.calibration import passages
from pruning.calibration.passages import PassageSource
from pruning.config import Allocation, CalibrationConfig, MethodName, PruneConfig, Repair
from pruning.patterns import Group

_Value = TypeVar("_Value")
_SOME = CalibrationConfig(source="c4")  # in place of the sweep's


def _listed(value: object) -> object:
    return value if isinstance(value, list | tuple) else (value,)


OneOrMany = Annotated[tuple[_Value, ...], BeforeValidator(_listed)]  # a single value is a list of one


class PruneSetting(Frozen):
    """One line of the grid: a method with sparsities or patterns, and with repairs."""

    method: MethodName
    sparsity: OneOrMany[float] = ()
    pattern: OneOrMany[str] = ()
    allocation: Allocation = "uniform"
    group: Group | None = None  # None: the method's own
    # Left out of the sweep's document by default, which keeps older digests.
    repair: OneOrMany[Repair] = Field(default=("none",), min_length=1, exclude_if=lambda value: value == ("none",))
    calibration: CalibrationConfig | None = None  # None: the sweep's
    # The end of its checkpoints' names; None: the calibration's source, unless it is the usual one.
    label: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._]*$")

    @model_validator(mode="after")
    def _is_complete(self) -> PruneSetting:
        if not self.sparsity and not self.pattern:
            raise ValueError("needs a sparsity (0.5) or a pattern (2:4; for method drop 20-25)")
        return self

    @model_validator(mode="after")
    def _is_consistent(self) -> PruneSetting:
        """Raises ValueError for an impossible pruning. A later check could not name the line of the file."""
        for cell in self.cells():
            try:
                PruneConfig(source=Path(), calibration=self.calibration or _SOME, **cell)
            except ValidationError as error:
                problem = error.errors()[0]
                field = ".".join(map(str, problem["loc"]))
                message = problem["msg"].removeprefix("Value error, ")
                raise ValueError(f"{field}: {message}" if field else message) from error
        return self

    def cells(self) -> Iterator[dict[str, Any]]:
        """The settings of each pruning, without the calibration."""
        patterns: list[dict[str, Any]] = [{"sparsity": share} for share in self.sparsity]
        patterns += [{"pattern": pattern} for pattern in self.pattern]
        shared = {"method": self.method, "allocation": self.allocation, "group": self.group}
        for pattern, repair in product(patterns, self.repair):
            yield {**shared, "repair": repair, **pattern}


# The names of calibration sources, for help texts.
KINDS = (*passages.KINDS, "gazetteer", "gazetteer:LANG")


def gazetteer(samples: int, seed: int, languages: Sequence[str] = LANGUAGES) -> Iterator[str]:
    """`samples` bundled passages in alternating languages. No passage is a bundled item, or another seed's passage."""
    each = -(-samples // len(languages))
    streams = [gazetteer_passages(language, start=seed * each, count=each) for language in languages]
    for number in range(samples):
        yield next(streams[number % len(streams)])


SOURCES: Mapping[str, PassageSource] = {
    "gazetteer": gazetteer,
    **{f"gazetteer:{language}": partial(gazetteer, languages=(language,)) for language in LANGUAGES},
}


def spelled_source(calibration: CalibrationConfig) -> CalibrationConfig:
    """The settings with the language's name in `gazetteer:LANG`, as SOURCES lists it."""
    kind, colon, language = calibration.source.partition(":")
    if kind != "gazetteer" or not colon:
        return calibration
    return calibration.model_copy(update={"source": f"{kind}:{name_of(language)}"})
