"""A process's memory: its peak, which psutil does not know on Linux, and how often
Python searches for dead cycles of objects.

Imports, requests and records make many objects and few cycles. After every 700 new
objects, as by default, the search takes a tenth of an engine's start and of a report,
and an eighth of the driver's time with 256 requests in flight.
"""

import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OBJECTS = 50_000  # new and alive, before a search


def peak_resident() -> int:
    """Bytes that were resident in this process at most, interpreter and libraries
    included."""
    with suppress(OSError):
        for line in (
            Path("/proc/self/status")
            .read_text(encoding="ascii", errors="replace")
            .splitlines()
        ):
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def collect_rarely() -> None:
    """Search only after 50,000 new objects from now on; not at all if somebody has
    turned the search off."""
    first, *others = gc.get_threshold()
    gc.set_threshold(max(_OBJECTS, first) if first else 0, *others)


@contextmanager
def rare_collections() -> Iterator[None]:
    """The same within the block. Cycles of a third-party probe are freed later."""
    before = gc.get_threshold()
    collect_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*before)
