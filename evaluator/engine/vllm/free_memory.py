"""Memory of a GPU whose last process has only just ended. The driver may take seconds to free it, in which Ray gives
the GPU to the next process; vLLM looks once, and does not start where it finds too little.
"""

from __future__ import annotations

import functools
import math
import os
import subprocess
import time

import torch

_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.5


def wait_for_memory(share: float, gpus: int = 1) -> None:
    """Wait until `share` of each of an engine's GPUs is free, a minute at most: vLLM says what it lacks then."""
    # To ask CUDA takes some of the memory. An engine in this process takes it anyway, and workers of their own must not
    # be kept from theirs.
    look = _of_this_process if gpus == 1 else functools.partial(_of_workers, gpus)
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        if all(free >= math.ceil(total * share) for free, total in look()):
            return
        time.sleep(_LOOK_SECONDS)


def _of_this_process() -> list[tuple[int, int]]:
    return [torch.cuda.mem_get_info()]


def _of_workers(gpus: int) -> list[tuple[int, int]]:
    """What is free of the first visible GPUs, and what they have, in MiB; empty where nvidia-smi does not tell."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(number) for number in range(gpus)] if visible is None else visible.split(",")[:gpus]
    command = ["nvidia-smi", "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run([*command, "-i", ",".join(names)], capture_output=True, text=True, check=True)
        rows = [line.split(",") for line in done.stdout.splitlines() if line.strip()]
        return [(int(free), int(total)) for free, total in rows]
    except (OSError, subprocess.CalledProcessError, ValueError):
        return []
