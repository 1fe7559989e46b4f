"""The peak of a process's memory, which psutil does not know on Linux."""

import resource
from contextlib import suppress
from pathlib import Path


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
