"""The events of a run: one `Event` for each, passed to every listener (the terminal, `live.json`, a tracker)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "loading",  # an engine loads `checkpoint`
    "loaded",  # in `seconds`; `swapped` in place, or by a new engine
    "began",  # an engine begins `items` items of `task` on `checkpoint`
    "advanced",  # `items` of them are finished
    "ended",  # an engine has ended its turn: a checkpoint may be done
    "unplaced",  # an engine waits for `gpus` GPUs; 0: for a process
    "died",  # an engine's process ended; `text`: why
    "left",  # an engine is gone for good
    "made",  # `items` of `total` checkpoints are pruned or quantised
    "warned",  # `text`
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A kind and its fields; the other fields keep their defaults."""

    kind: Kind
    engine: int = -1
    checkpoint: str = ""
    task: str = ""
    items: int = 0
    total: int = 0
    gpus: int = 0
    swapped: bool = False
    seconds: float = 0.0
    text: str = ""


Listener = Callable[[Event], None]
