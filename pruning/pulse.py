"""Signs that a job gets on, for whoever has to tell one that is slow from one that hangs.

Code that works for long says `PULSE.beat()` wherever a piece of bounded size is done: a chunk of a file, a batch that
went through a layer, a block of columns, a matrix. The count means nothing by itself: it only has to change.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pulse:
    """Of one process, which works on one job at a time. Threads may beat at once: one of them is heard."""

    beats: int = 0

    def beat(self) -> None:
        self.beats += 1


PULSE = Pulse()
