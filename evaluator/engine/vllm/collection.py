"""Python's search for cycles of dead objects, made rare while an engine runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS = 50_000  # new ones that are still alive


@contextmanager
def rare_collections() -> Iterator[None]:
    """Within, the youngest objects are searched after 50,000 of them, not after 700.

    Requests, responses and records form no cycles: with 256 requests in flight a search began at every other step, took
    a millisecond, which is an eighth of the driver's time, and found nothing. What a probe of somebody else's may leave
    is found later.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(_OBJECTS, before[0]) if before[0] else 0, *before[1:])  # 0: somebody has turned it off
    try:
        yield
    finally:
        gc.set_threshold(*before)
