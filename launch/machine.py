"""Describes this machine: processor, memory, GPUs, and the versions of the important
packages: the facts that a result depends on, besides the code."""

import subprocess
from contextlib import suppress

import psutil

from evaluator.core.errors import Document
from evaluator.core.gpus import nvidia_smi
from evaluator.engine.processor import instruction_sets, usable_cores
from launch.provenance import provenance

_GPU_FIELDS = "name,memory.total,driver_version,compute_cap"


def this_machine() -> dict[str, str]:
    """The facts in words. The function imports nothing heavy."""
    origin: Document = provenance()
    known = " ".join(instruction_sets()) or "none of those that kernels choose by"
    facts = {
        "system": origin["platform"],
        "processor": f"{origin['processor'] or 'unknown'}, {usable_cores()} cores",
        "instructions": known,
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
    }
    for number, gpu in enumerate(gpus()):
        facts[f"GPU {number}"] = gpu
    versions = origin["versions"].items()
    facts["versions"] = ", ".join(f"{name} {each}" for name, each in versions if each)
    if origin["commit"] is not None:
        changes = " with changes" if origin["dirty"] else ""
        facts["commit"] = f"{origin['commit'][:12]}{changes}"
    return facts


def gpus() -> list[str]:
    """Each GPU that the driver lists, in words; none without a driver."""
    with suppress(OSError, subprocess.CalledProcessError):
        return [gpu for line in nvidia_smi(_GPU_FIELDS, None) if (gpu := gpu_of(line))]
    return []


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
