"""A probe's error is the probe's: it ends the run in one line that names probe and item, and no engine is restarted."""

from __future__ import annotations

import logging
from types import TracebackType

from evaluator.errors import ResurfaceError, one_line
from evaluator.records import Item

_log = logging.getLogger(__name__)


class Blaming:
    """Within, what `probe` raises on `item` becomes a ResurfaceError that names both; its traceback goes to the log.

    A ResurfaceError is passed on: it says itself what is wrong. Not a generator of contextlib, since it is entered for
    every token that is streamed.
    """

    __slots__ = ("_item", "_probe")

    def __init__(self, probe: str, item: Item) -> None:
        self._probe = probe
        self._item = item

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not isinstance(error, Exception) or isinstance(error, ResurfaceError):
            return
        line = (
            f"probe {self._probe!r} failed on item {self._item.item_id!r} ({self._item.language}) of task "
            f"{self._item.task!r}: {type(error).__name__}: {one_line(error)}"
        )
        _log.error(line, exc_info=error)
        raise ResurfaceError(line) from error
