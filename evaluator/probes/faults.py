"""A probe's error is the probe's: it ends the run in one line that names probe and item, and no engine is restarted."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import NoReturn

from evaluator.core.errors import ResurfaceError, one_line
from evaluator.core.records import Item

_log = logging.getLogger(__name__)


class Blaming:
    """Within, what `probe` raises on `item` becomes a ResurfaceError that names both; its traceback goes to the log.

    A ResurfaceError is passed on: it says itself what is wrong. Where every streamed token passes, `blame` is called
    from an `except` instead, which costs nothing until it is needed.
    """

    __slots__ = ("_item", "_probe")

    def __init__(self, probe: str, item: Item) -> None:
        self._probe = probe
        self._item = item

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, Exception):
            blame(self._probe, self._item, error)


def blame(probe: str, item: Item, error: Exception) -> NoReturn:
    """Raise what `probe` raised on `item` as a ResurfaceError that names both."""
    if isinstance(error, ResurfaceError):
        raise error
    line = (
        f"probe {probe!r} failed on item {item.item_id!r} ({item.language}) of task {item.task!r}: "
        f"{type(error).__name__}: {one_line(error)}"
    )
    _log.error(line, exc_info=error)
    raise ResurfaceError(line) from error
