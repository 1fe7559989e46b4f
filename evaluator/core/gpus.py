"""What NVIDIA's driver says of the GPUs, without CUDA, which would occupy memory."""

import os
import subprocess
from pathlib import Path


def nvidia_smi(fields: str, visible: str | None) -> list[str]:
    """A line for each GPU, or each `visible` one. Raises as `subprocess.run` does,
    OSError without nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    command += ["-i", visible] if visible else []
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [value for value in map(str.strip, listing.split("\n")) if value]


def mps_runs() -> bool:
    """Whether NVIDIA's multi-process service runs here: its clients' kernels run on a
    GPU at once. Without it, processes take turns."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"  # noqa: S108
    return (Path(folder) / "control").exists()


def uses_mps(pid: int) -> bool | None:
    """Whether a process is a client of the service. One that misses the folder of its
    pipes falls back to taking turns, without an error. None: unknown."""
    try:
        servers = _mps("get_server_list").split()
        clients = [_mps(f"get_client_list {server}").split() for server in servers]
    except (OSError, subprocess.SubprocessError):
        return None
    return any(str(pid) in pids for pids in clients)


def _mps(command: str) -> str:
    return subprocess.run(
        ["nvidia-cuda-mps-control"],
        input=f"{command}\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    ).stdout


def numa_nodes() -> list[int]:
    """The NUMA node of each GPU that the driver lists; -1 if the system does not say.
    Raises as `nvidia_smi` does, ValueError for a file without a number."""
    nodes = []
    for bus in nvidia_smi("pci.bus_id", None):
        domain, _, rest = bus.lower().partition(":")
        file = Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node")
        nodes.append(int(file.read_text(encoding="ascii")))
    return nodes
