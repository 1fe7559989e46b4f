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


def physical_cores(node: int = -1) -> tuple[frozenset[int], ...]:
    """The processors of each physical core that this process may run on, of one NUMA
    node or (-1) of all: siblings of hyperthreads share a core."""
    allowed = set(os.sched_getaffinity(0))
    system = Path("/sys/devices/system")
    if node >= 0:
        allowed = {
            cpu for cpu in allowed if (system / f"node/node{node}/cpu{cpu}").exists()
        }
    cores: dict[str, set[int]] = {}
    for cpu in sorted(allowed):
        try:
            file = system / f"cpu/cpu{cpu}/topology/thread_siblings_list"
            siblings = file.read_text(encoding="ascii")
        except OSError:
            siblings = str(cpu)
        cores.setdefault(siblings, set()).add(cpu)
    return tuple(frozenset(each) for each in cores.values())
