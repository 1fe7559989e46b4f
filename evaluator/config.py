"""The base of every configuration: frozen, checked when it is made, unknown keys are errors."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Immutable; a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
