"""What kernels choose by on a CPU: its cores and the instructions that it knows."""

import os
import re
from pathlib import Path

# Those that torch, oneDNN and vLLM's CPU kernels choose between, x86 and Arm.
_CHOSEN_BY = (
    "avx2",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "asimdhp",
    "bf16",
    "i8mm",
    "sve",
)


def instruction_sets(listing: str | None = None) -> tuple[str, ...]:
    """The instruction sets that matter to kernels, as /proc/cpuinfo names them;
    `listing` is such a file's text."""
    if listing is None:
        try:
            listing = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        except OSError:
            return ()
    flags = re.search(r"^(?:flags|Features)\s*:(.*)", listing, re.MULTILINE)
    known = flags[1].split() if flags else []
    return tuple(name for name in _CHOSEN_BY if name in known)


def usable_cores() -> int:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
