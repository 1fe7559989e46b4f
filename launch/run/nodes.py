"""What the processes of a run need of a cluster's nodes: decided here, without Ray."""

from __future__ import annotations

from typing import Any


def prune_options(*, gpu: bool) -> dict[str, Any]:
    """The arguments of `ray.remote` for a prune task.

    A process that had a GPU ends with its task: idle, it would keep its CUDA context and torch's cache, and an engine
    refuses to start where less memory is free than it asks for. Ray would see to that by itself, but looks at
    `num_gpus` in `ray.remote` only: all of this must be given there, not to `.options`.
    """
    return {
        "num_cpus": 1,
        "num_gpus": 1 if gpu else 0,
        "max_calls": 1 if gpu else 0,  # 0: any number
        "max_retries": 2,  # after a death of the process, not after an exception
        "retry_exceptions": False,
    }
