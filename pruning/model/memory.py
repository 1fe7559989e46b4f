"""Memory of this process: its peak, and returning free memory."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from evaluator.core.memory import peak_resident

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_LARGEST = 32 << 20  # bytes that glibc takes from its heap at most


@contextmanager
def kept_when_freed() -> Iterator[None]:
    """Within, glibc keeps freed memory for the next batch: clearing returned pages
    was a tenth of a job's time."""
    before = 2 * _LARGEST  # where glibc's own adjustment ends
    _set_thresholds(1 << 30)
    try:
        yield
    finally:
        _set_thresholds(before)


def _set_thresholds(trim: int) -> None:
    with suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(_TRIM_THRESHOLD, trim)
        library.mallopt(_MMAP_THRESHOLD, _LARGEST)


def give_back() -> None:
    """Return memory that glibc keeps in fragments: else a job grew by one layer for
    every two that it pruned."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def reset_peak(device: torch.device) -> None:
    """Reset the high-water mark, so that earlier work of the process does not count."""
    if device.type == "cuda":
        # With "cuda:1", nothing before this has started CUDA.
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats(device)
        return
    # not Linux, or a kernel that does not allow it: the mark is then the process's own
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak(device: torch.device) -> int:
    """Bytes: of the GPU's memory, or resident in the whole process, interpreter and
    libraries included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_resident()
