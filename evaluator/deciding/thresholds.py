"""The tolerances for a compressed checkpoint: the thresholds of `resurface gate`, or
`gate:` in a sweep file.

    gate: {max_drop: 1, max_flips: 5, max_lost: null}      # null: not judged

The default criteria are open and choice accuracy, mc_only and lost. The gate judges
the others only if they are set. The defaults do not follow from a theory: set them
to a loss that your users would notice. Thresholds do not change records or tables."""

from typing import Annotated

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from evaluator.core.config import Frozen
from evaluator.core.errors import Json

FEWEST = 10  # contexts that a decision requires
# strict: YAML's `yes` is no 1
Percent = Annotated[float, Field(ge=0, le=100, strict=True)] | None
Amount = Annotated[float, Field(ge=0, strict=True)] | None
Share = Annotated[float, Field(ge=0, le=1, strict=True)] | None


class Tolerances(Frozen):
    """Each is a tolerance; null: the gate does not judge it."""

    max_drop: Percent = Field(
        2.0,
        description="percentage points of accuracy that it may lose, said and picked",
    )
    max_drop_language: Percent = Field(
        5.0,
        description="points of accuracy within one language; never less than max_drop",
    )
    max_sample_drop: Percent = Field(
        None,
        description=(
            "points of accuracy that the samples of several seeds may lose (--seeds)"
        ),
    )
    max_mc_only: Percent = Field(
        5.0, description="percent of the known answers that may be picked only"
    )
    max_lost: Percent = Field(
        2.0,
        description="percent of the known answers that may be neither said nor picked",
    )
    min_recovery: Percent = Field(
        None,
        description=(
            "percent of the base's accuracy, said and picked, that must be left"
        ),
    )
    max_flips: Percent = Field(
        None,
        description=(
            "percent of the items that may go from right to wrong or back, said and"
            " picked"
        ),
    )
    max_delta_pr: Amount = Field(
        None,
        description=(
            "how much more said may fall than picked, as shares above guessing"
            " (Delta_PR)"
        ),
    )
    max_kld: Amount = Field(
        None,
        description="mean KL divergence from the base in nats a token (probe fidelity)",
    )
    min_ear: Share = Field(
        None,
        description="least expected acceptance rate (EAR), 0 to 1 (probe fidelity)",
    )
    languages: bool = Field(True, description="judge each language too")

    @field_validator("min_recovery")
    @classmethod
    def _is_percent(cls, given: float | None) -> float | None:
        if given is not None and 0 < given <= 1:
            raise ValueError(
                f"is {given:g} %, or {given:.0%} if it is a share: write"
                f" {100 * given:g} for the share"
            )
        return given

    @model_serializer(mode="wrap")
    def _stated(self, written: SerializerFunctionWrapHandler) -> Json:
        """Only the fields that were set. A written default would count as a setting
        when it is read again."""
        return {
            name: value
            for name, value in written(self).items()
            if name in self.model_fields_set
        }

    @property
    def drop_language(self) -> float | None:
        """The tolerance within one language: `max_drop_language`, and at least
        `max_drop`."""
        total, apart = self.max_drop, self.max_drop_language
        return apart if apart is None or total is None else max(apart, total)


class GroupTolerances(Tolerances):
    """The tolerances within one of the user's groups: only those that are stated."""

    max_drop: Percent = None
    max_drop_language: Percent = Field(None, exclude=True)  # refused
    languages: bool = Field(True, exclude=True)
    max_mc_only: Percent = None
    max_lost: Percent = None

    @model_validator(mode="after")
    def _state_any(self) -> "GroupTolerances":
        for name in self.model_fields_set & {"languages", "max_drop_language"}:
            raise ValueError(f"{name}: a group is not divided into languages")
        if all(value is None or value is True for value in dict(self).values()):
            raise ValueError("a tolerance is needed, as max_drop: 3")
        return self


class Thresholds(Tolerances):
    """All tolerances of a task. Raises ValueError where two contradict each other."""

    @property
    def sample_drop_language(self) -> float | None:
        """The same of samples, if they are judged."""
        total, apart = self.max_sample_drop, self.max_drop_language
        return None if apart is None or total is None else max(apart, total)

    @model_validator(mode="after")
    def _agree(self) -> "Thresholds":
        apart, total = self.max_drop_language, self.max_drop
        if apart is not None and "max_drop_language" in self.model_fields_set:
            if not self.languages:
                raise ValueError(
                    f"max_drop_language: {apart:g} contradicts languages: false"
                )
            if total is not None and apart < total:
                raise ValueError(
                    f"max_drop_language: {apart:g} contradicts max_drop: {total:g}:"
                    " it must be at least as large"
                )
        judged = dict(self)
        del judged["languages"], judged["max_drop_language"]
        if set(judged.values()) == {None}:
            raise ValueError("every threshold is null: there is nothing to judge")
        return self
