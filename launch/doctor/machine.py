"""Describes this machine: processor, memory, GPUs, and the versions of the important packages."""

import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from evaluator.engine.processor import instruction_sets, usable_cores
from launch.provenance import provenance

_GPU_FIELDS = ("name", "memory.total", "driver_version", "compute_cap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    name: str
    memory_mib: int | None
    driver: str
    capability: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The facts that a result depends on, besides the code."""

    system: str
    processor: str
    cores: int  # that this process may use
    instructions: tuple[str, ...]  # the instruction sets that select a kernel
    memory_gib: float | None
    gpus: tuple[Gpu, ...]
    versions: dict[str, str]  # of the installed packages
    commit: str | None
    dirty: bool | None

    def lines(self) -> list[tuple[str, str]]:
        """The machine in words: (what, value)."""
        described = [
            ("system", self.system),
            ("processor", f"{self.processor or 'unknown'}, {self.cores} cores"),
            ("instructions", " ".join(self.instructions) or "none of those that kernels choose by"),
            ("memory", "unknown" if self.memory_gib is None else f"{self.memory_gib:.1f} GiB"),
        ]
        for number, gpu in enumerate(self.gpus):
            memory = "memory unknown" if gpu.memory_mib is None else f"{gpu.memory_mib / 1024:.0f} GiB"
            described.append((f"GPU {number}", f"{gpu.name}, {memory}, driver {gpu.driver}, sm {gpu.capability}"))
        if not self.gpus:
            described.append(("GPU", "none"))
        described.append(("versions", ", ".join(f"{name} {version}" for name, version in self.versions.items())))
        if self.commit is not None:
            described.append(("commit", self.commit[:12] + (" with changes" if self.dirty else "")))
        return described


def this_machine() -> Machine:
    """This machine's description. The function imports nothing heavy."""
    import psutil

    listing = ""  # without a driver
    with suppress(OSError, subprocess.CalledProcessError):
        command = ["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    origin = provenance()
    versions: Any = origin["versions"]
    commit, dirty = origin["commit"], origin["dirty"]
    return Machine(
        system=platform.platform(),
        processor=str(origin["processor"]),
        cores=usable_cores(),
        instructions=instruction_sets(),
        memory_gib=psutil.virtual_memory().total / 2**30,
        gpus=gpus(listing),
        versions={name: version for name, version in versions.items() if version is not None},
        commit=None if commit is None else str(commit),
        dirty=None if dirty is None else bool(dirty),
    )


def gpus(listing: str) -> tuple[Gpu, ...]:
    """The GPUs in nvidia-smi's CSV: one line each, with the fields `_GPU_FIELDS`."""
    found = []
    for line in listing.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == len(_GPU_FIELDS):
            name, memory, driver, capability = fields
            memory_mib = int(memory) if memory.isdecimal() else None
            found.append(Gpu(name=name, memory_mib=memory_mib, driver=driver, capability=capability))
    return tuple(found)
