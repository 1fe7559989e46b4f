"""How checkpoints are screened: `screen:` in a sweep file, the options of `resurface screen`.

    screen: {items: 100, confidence: 0.99, against: best}

A few items are asked first; what is surely worse than the best compressed checkpoint, or than the gate allows, is asked
no more. None of it changes a record: it decides which are made.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from evaluator.config import Frozen

Against = Literal["best", "gate"]
Measure = Literal["open", "choice"]


class Screen(Frozen):
    """Which items are asked first, and what is then surely worse."""

    items: Annotated[int, Field(ge=1)] = Field(
        default=100, description="items of each task that a checkpoint is asked first: its anchors"
    )
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = Field(
        default=0.99, description="how sure it must be: the share of draws of anchors in which no drop is a mistake"
    )
    against: Against = Field(
        default="best",
        description="best: drop what is surely worse than another compressed checkpoint; gate: what has surely lost "
        "more than the gate's max_drop",
    )
    measure: Measure | None = Field(
        default=None, description="open or choice accuracy (default: open where it is asked; with gate both)"
    )
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="of the draw of the anchors")
