"""Describes this machine: processor, memory, GPUs, and the versions of the important
packages."""

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil

from evaluator.core.errors import Document
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
    origin: Document = provenance()
    versions = {
        name: version
        for name, version in origin["versions"].items()
        if version is not None
    }
    gpus: list[str] = []  # without a driver
    with suppress(OSError, subprocess.CalledProcessError):
        gpus = list(filter(None, map(gpu_of, nvidia_smi(_GPU_FIELDS, None))))
    known = " ".join(instruction_sets()) or "none of those that kernels choose by"
    facts = [
        ("system", origin["platform"]),
        ("processor", f"{origin['processor'] or 'unknown'}, {usable_cores()} cores"),
        ("instructions", known),
        ("memory", f"{psutil.virtual_memory().total / 2**30:.1f} GiB"),
    ]
    facts += [(f"GPU {number}", gpu) for number, gpu in enumerate(gpus)]
    if not gpus:
        facts.append(("GPU", "none"))
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    facts.append(("versions", named))
    if origin["commit"] is not None:
        changes = " with changes" if origin["dirty"] else ""
        facts.append(("commit", f"{origin['commit'][:12]}{changes}"))
    return Machine(facts=tuple(facts), gpus=tuple(gpus), versions=versions)


def gpu_of(line: str) -> str | None:
    """A GPU in words, from a line of nvidia-smi's CSV with the fields `_GPU_FIELDS`;
    None for another line, such as "No devices were found"."""
    fields = line.split(", ")
    if len(fields) != len(_GPU_FIELDS.split(",")):
        return None
    name, mebibytes, driver, capability = fields
    memory = "memory unknown"  # it may be the processor's
    if mebibytes.isdecimal():
        memory = f"{int(mebibytes) / 1024:.0f} GiB"
    return f"{name}, {memory}, driver {driver}, sm {capability}"
