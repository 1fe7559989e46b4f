"""How a sweep stops early: `screen:` in a sweep file, the options of `resurface screen`.

    screen: {items: 100}

The gate looks at a checkpoint's first items, then at more of them, and stops where its verdict is sure. A screened
sweep writes fewer records; it changes none of them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from evaluator.core.config import Frozen


class Screen(Frozen):
    """How many items the first look has, and in which order items come."""

    items: Annotated[int, Field(ge=10)] = Field(
        default=100, description="items of each task at the gate's first look; each later look has a fifth more"
    )
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="seed of the items' order")
