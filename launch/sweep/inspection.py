"""Checkpoints that are inspected in the background, several at a time: one thread makes the digest of some GB a second
at most, so that a hundred of 16 GB would keep every GPU waiting for half an hour, at each start of a run again.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Self

from evaluator.checkpoints.info import CheckpointInfo, inspect_checkpoint
from launch.sweep.jobs import CheckpointJob

_AT_ONCE = 8  # some 40 MB each


class Inspections:
    """What is found of checkpoints, the first ones first. When its block ends, no more are begun.

    Threads of a pool would be waited for, a whole checkpoint long, by a process that is told to stop.
    """

    def __init__(self, jobs: Sequence[CheckpointJob] = (), *, trust: bool) -> None:
        self._trust = trust
        self._lock = threading.Lock()
        self._waiting: deque[CheckpointJob] = deque()
        self._ended: deque[CheckpointJob] = deque()
        self._found: dict[str, Future[CheckpointInfo]] = {}  # by name
        self._threads = 0
        self.begin(*jobs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._waiting.clear()

    def begin(self, *jobs: CheckpointJob) -> None:
        """Have these inspected when those before them are."""
        if any(job.path.is_dir() for job in jobs):
            # Here, not in several threads at once beside a tokenizer that the caller loads: it imports lazily.
            importlib.import_module("transformers").CONFIG_MAPPING  # noqa: B018
        with self._lock:
            self._found |= {job.name: Future() for job in jobs}
            self._waiting.extend(jobs)
            more = min(len(self._waiting), _AT_ONCE - self._threads, len(os.sched_getaffinity(0)) - self._threads)
            self._threads += max(0, more)
        for _ in range(more):
            threading.Thread(target=self._inspect, name="inspection", daemon=True).start()

    def result(self, name: str) -> CheckpointInfo:
        """What was found of one that was begun; waits for it. Raises InputError as `inspect_checkpoint` does."""
        return self._found[name].result()

    def ended(self) -> list[CheckpointJob]:
        """Those whose result is there and that no earlier call gave."""
        return [self._ended.popleft() for _ in range(len(self._ended))]

    def _inspect(self) -> None:
        while (job := self._next()) is not None:
            try:
                info = inspect_checkpoint(job.path, job.name, trust_remote_code=self._trust)
            except BaseException as error:  # it is raised where the result is asked for
                self._found[job.name].set_exception(error)
            else:
                self._found[job.name].set_result(info)
            self._ended.append(job)

    def _next(self) -> CheckpointJob | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None
