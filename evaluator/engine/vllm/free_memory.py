"""Memory of a GPU whose last process has only just ended. The driver may take seconds to free it, in which Ray gives
the GPU to the next process; vLLM looks once, and does not start where it finds too little.
"""

from __future__ import annotations

import math
import time

import torch

_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.5


def wait_for_memory(share: float) -> None:
    """Wait until `share` of this process's GPU is free, a minute at most: vLLM says what it lacks then.

    It is for an engine that runs in this process, since asking takes some of the memory. Workers of their own are not
    so quick.
    """
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        free, total = torch.cuda.mem_get_info()
        if free >= math.ceil(total * share):
            return
        time.sleep(_LOOK_SECONDS)
