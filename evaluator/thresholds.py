"""What a compressed checkpoint may lose: the thresholds of `resurface gate`, `gate:` in a sweep file.

    gate: {max_drop: 1, min_recovery: 99, max_lost: null}      # null: not looked at

Defaults are what is usually called "no visible loss" of a quantised model, in its own language mix: two points of
accuracy, 98 % of the base's accuracy, and few enough changed answers that the accuracy is not an exchange of right
answers for other right ones. None of them follows from a theory; set your own. They change no record and no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError

from evaluator.config import Frozen
from evaluator.errors import InputError

Percent = Annotated[float, Field(ge=0, le=100)]
Amount = Annotated[float, Field(ge=0)]


class Thresholds(Frozen):
    """Each is a bound; null: this is not looked at."""

    max_drop: Percent | None = Field(
        default=2.0, description="percentage points of accuracy, open and choice, that may be lost against the base"
    )
    max_drop_language: Percent | None = Field(
        default=5.0, description="the same within one language, which has fewer items"
    )
    max_mc_only: Percent | None = Field(
        default=5.0, description="percent of the known answers that may be picked and no longer said"
    )
    max_lost: Percent | None = Field(
        default=2.0, description="percent of the known answers that may be neither said nor picked"
    )
    min_recovery: Annotated[float, Field(ge=0)] | None = Field(
        default=98.0, description="percent of the base's accuracy, open and choice, that must be left"
    )
    max_flips: Percent | None = Field(
        default=5.0, description="percent of the items that may go from right to wrong or back, open and choice"
    )
    max_delta_pr: Amount | None = Field(
        default=0.1, description="by how much open may fall more than choice, each relative to its headroom (Delta_PR)"
    )
    max_kld: Amount | None = Field(
        default=0.1, description="mean KL divergence from the base in nats, where the probe fidelity was asked"
    )
    min_ear: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=0.9, description="expected acceptance rate, 0 to 1, where the probe fidelity was asked"
    )
    power: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.8, description="probability with which a drop as large as the tolerance must be found"
    )
    languages: bool = Field(default=True, description="whether each language is looked at too")


def thresholds_of(run: Mapping[str, Any], place: str) -> Thresholds:
    """The thresholds that run.json states, or the usual ones. Raises InputError naming `place`, field and value."""
    config = run.get("config")
    stated = config.get("gate") if isinstance(config, Mapping) else None
    try:
        return Thresholds.model_validate({} if stated is None else stated)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(["config.gate", *map(str, problem["loc"])])
        raise InputError(f"{place}: {field}: {problem['input']!r}: {problem['msg']}") from error
