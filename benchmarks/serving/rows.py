"""How full an engine's batch is during a pass, and in the pass's tail."""

from collections.abc import Sequence
from typing import Any

from evaluator.engine.base import Cancel, Request


class Rows:
    """Hands on a source, and counts how many rows of each step hold no request: until its last item begins, and in the
    tail after that."""

    def __init__(self, rows: int) -> None:
        self.source: Any = None
        self.held: set[str] = set()  # the requests that the engine has
        self.tail = False
        self._rows = rows
        self._steps, self._idle = [0, 0], [0, 0]

    def take(self, limit: int) -> Sequence[Request | Cancel]:
        """The engine takes before each step."""
        taken: Sequence[Request | Cancel] = self.source.take(limit)
        for each in taken:
            (self.held.discard if isinstance(each, Cancel) else self.held.add)(each.request_id)
        self._steps[self.tail] += 1
        self._idle[self.tail] += max(0, self._rows - len(self.held))
        return taken

    def facts(self) -> dict[str, float | None]:
        """Shares in [0, 1]: of rows that are idle before the tail and in it; and the tail's share of the steps."""
        before, tail = (  # None: the last item began at once
            round(idle / (steps * self._rows), 4) if steps else None
            for idle, steps in zip(self._idle, self._steps, strict=True)
        )
        return {"idle_rows": before, "tail_idle_rows": tail, "tail_steps": round(self._steps[1] / sum(self._steps), 4)}
