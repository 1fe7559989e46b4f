"""Describes this machine: processor, memory, GPUs, and the versions of the important
packages."""

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from evaluator.core.gpus import nvidia_smi
from evaluator.engine.processor import instruction_sets, usable_cores
from launch.provenance import provenance

_GPU_FIELDS = "name,memory.total,driver_version,compute_cap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The facts that a result depends on, besides the code."""

    facts: tuple[tuple[str, str], ...]  # in words: (what, value)
    gpus: tuple[str, ...]  # that the driver lists, each as the facts have it
    versions: Mapping[str, str]  # of the installed packages


def this_machine() -> Machine:
    """This machine's description. The function imports nothing heavy."""
    origin: Mapping[str, Any] = provenance()
    versions = {
        name: version
        for name, version in origin["versions"].items()
        if version is not None
    }
    gpus: list[str] = []  # without a driver
    with suppress(OSError, subprocess.CalledProcessError):
        gpus = [
            gpu
            for line in nvidia_smi(_GPU_FIELDS, None)
            if (gpu := gpu_of(line)) is not None
        ]
    commit = (
        []
        if origin["commit"] is None
        else [f"{origin['commit'][:12]}{' with changes' * bool(origin['dirty'])}"]
    )
    facts = [
        ("system", origin["platform"]),
        ("processor", f"{origin['processor'] or 'unknown'}, {usable_cores()} cores"),
        (
            "instructions",
            " ".join(instruction_sets()) or "none of those that kernels choose by",
        ),
        ("memory", f"{psutil.virtual_memory().total / 2**30:.1f} GiB"),
        *((f"GPU {number}", gpu) for number, gpu in enumerate(gpus)),
        *(() if gpus else (("GPU", "none"),)),
        (
            "versions",
            ", ".join(f"{name} {version}" for name, version in versions.items()),
        ),
        *(("commit", each) for each in commit),
    ]
    return Machine(facts=tuple(facts), gpus=tuple(gpus), versions=versions)


def gpu_of(line: str) -> str | None:
    """A GPU in words, from a line of nvidia-smi's CSV with the fields `_GPU_FIELDS`;
    None for any other line."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != 1 + _GPU_FIELDS.count(","):
        return None
    name, mebibytes, driver, capability = fields
    memory = (
        f"{int(mebibytes) / 1024:.0f} GiB"
        if mebibytes.isdecimal()
        else "memory unknown"
    )
    return f"{name}, {memory}, driver {driver}, sm {capability}"
