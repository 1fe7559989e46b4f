"""Checkpoints that are inspected several at a time: one thread makes the digest of some GB a second at most, so that a
hundred of 16 GB would keep every GPU waiting for half an hour, at each start of a run again.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from evaluator.checkpoints.info import CheckpointInfo, inspect_checkpoint
from launch.sweep.jobs import CheckpointJob

_AT_ONCE = 8  # some 40 MB each

Inspections = Mapping[str, "Future[CheckpointInfo]"]  # by name of the checkpoint; `result` raises InputError


@contextmanager
def inspecting(jobs: Sequence[CheckpointJob], *, trust: bool) -> Iterator[Inspections]:
    """Within the block, the checkpoints of `jobs` are inspected, the first ones first. After it no more are begun.

    Threads of a pool would be waited for, a whole checkpoint long, by a process that is told to stop.
    """
    if any(job.path.is_dir() for job in jobs):
        # Here, not in several threads at once beside a tokenizer that the caller loads: transformers imports lazily.
        importlib.import_module("transformers").CONFIG_MAPPING  # noqa: B018
    found: dict[str, Future[CheckpointInfo]] = {job.name: Future() for job in jobs}
    waiting = deque(jobs)

    def inspect() -> None:
        while waiting:
            try:
                job = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                info = inspect_checkpoint(job.path, job.name, trust_remote_code=trust)
            except BaseException as error:  # it is raised where the result is asked for
                found[job.name].set_exception(error)
            else:
                found[job.name].set_result(info)

    for _ in range(min(len(jobs), _AT_ONCE, len(os.sched_getaffinity(0)))):
        threading.Thread(target=inspect, name="inspection", daemon=True).start()
    try:
        yield found
    finally:
        waiting.clear()
