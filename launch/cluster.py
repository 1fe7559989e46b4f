"""Ray: a local one by default, the cluster of RAY_ADDRESS when that is set; quiet either way."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Read when ray is imported: nothing is reported home, and its C++ side keeps to its own files.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

import ray

from evaluator.errors import ResurfaceError

_OBJECT_STORE_BYTES = 256 * 2**20  # shards and questions are small; Ray's own default takes 30 % of the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    cpus: int
    gpus: int
    local: bool


@contextlib.contextmanager
def cluster(log_dir: Path) -> Iterator[Cluster]:
    """Connect to Ray, and leave it on the way out; a local one's logs are kept in `log_dir`/ray.

    Raises ResurfaceError when no Ray can be started or reached.
    """
    address = os.environ.get("RAY_ADDRESS")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
    try:
        if address:
            context = ray.init(address=address, **quiet)
        else:
            # "local" starts one of our own even where somebody else's is running on this machine.
            context = ray.init(
                address="local", include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES, **quiet
            )
    except Exception as error:
        where = f"cannot reach the Ray cluster at RAY_ADDRESS={address}" if address else "cannot start a local Ray"
        raise ResurfaceError(f"{where}: {' '.join(str(error).split())[:300]}") from error
    try:
        resources = ray.cluster_resources()
        yield Cluster(cpus=int(resources.get("CPU", 1)), gpus=int(resources.get("GPU", 0)), local=not address)
    finally:
        session = None if address else context.address_info.get("session_dir")
        with contextlib.suppress(Exception):  # Ray may be the very thing that died
            ray.shutdown()
        if session:
            _keep_logs(Path(session) / "logs", log_dir / "ray")


def _keep_logs(source: Path, target: Path) -> None:
    """Copy what is small and not empty: the session's directory goes away with the machine's next clean-up."""
    with contextlib.suppress(OSError):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True, exist_ok=True)
        for path in source.glob("*"):
            if path.is_file() and 0 < path.stat().st_size < 2**22:
                shutil.copyfile(path, target / path.name)
