"""The lines under `prune:` in a sweep file, and the bundled calibration passages.

The source `gazetteer` takes nine languages in turn, `gazetteer:LANG` only one, by name or code.
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
    """One line of the grid: a method at one or several sparsities or patterns, with or without a repair, or both."""

    method: MethodName
    sparsity: OneOrMany[float] = ()
    pattern: OneOrMany[str] = ()
    allocation: Allocation = "uniform"
    group: Group | None = None  # None: the method's own
    # Unsaid where there is none, so that a sweep without it is what it was.
    repair: OneOrMany[Repair] = Field(default=("none",), min_length=1, exclude_if=lambda value: value == ("none",))
    calibration: CalibrationConfig | None = None  # None: the sweep's
    # What the names of its checkpoints end in; None: the calibration's source, if that is not the usual one.
    label: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._]*$")

    @model_validator(mode="after")
    def _asks_for_something(self) -> PruneSetting:
        if not self.sparsity and not self.pattern:
            raise ValueError("needs a sparsity (0.5) or a pattern (2:4; of method drop 20-25)")
        return self

    @model_validator(mode="after")
    def _is_consistent(self) -> PruneSetting:
        """Each of its prunings can be done. Where it is said so late, nobody knows the line of the file any more."""
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
        """Of each of its prunings all that the setting says but the calibration."""
        patterns: list[dict[str, Any]] = [{"sparsity": share} for share in self.sparsity]
        patterns += [{"pattern": pattern} for pattern in self.pattern]
        shared = {"method": self.method, "allocation": self.allocation, "group": self.group}
        for pattern, repair in product(patterns, self.repair):
            yield {**shared, "repair": repair, **pattern}


# What a calibration source may be called, for help texts.
KINDS = (*passages.KINDS, "gazetteer", "gazetteer:LANG")


def gazetteer(samples: int, seed: int, languages: Sequence[str] = LANGUAGES) -> Iterator[str]:
    """`samples` bundled passages, the languages in turn, disjoint from the bundled items; every seed has its own."""
    each = -(-samples // len(languages))
    streams = [gazetteer_passages(language, start=seed * each, count=each) for language in languages]
    for number in range(samples):
        yield next(streams[number % len(streams)])


SOURCES: Mapping[str, PassageSource] = {
    "gazetteer": gazetteer,
    **{f"gazetteer:{language}": partial(gazetteer, languages=(language,)) for language in LANGUAGES},
}


def spelled_source(calibration: CalibrationConfig) -> CalibrationConfig:
    """The same settings with the language of `gazetteer:LANG` by its name, under which SOURCES has it."""
    kind, colon, language = calibration.source.partition(":")
    if kind != "gazetteer" or not colon:
        return calibration
    return calibration.model_copy(update={"source": f"{kind}:{name_of(language)}"})
