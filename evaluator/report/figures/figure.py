"""A table's figure as one object: the table's name, and how it is painted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd


@dataclass(frozen=True, eq=False)
class Figure:
    """`name` is that of its table. `paint` makes a matplotlib figure of the table's frame, or None where the frame has
    nothing to show."""

    name: str
    paint: Callable[[pd.DataFrame], Any]
