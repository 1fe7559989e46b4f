"""Inspects several checkpoints at a time in the background.

One thread digests at most a few GB a second. With a hundred checkpoints of 16 GB, every GPU would wait for half an hour
at each start.
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
    """The results of inspections, started in order. The end of its block starts no more.

    Its threads are daemons, so a process that must stop does not wait for them. It would wait for a pool's threads.
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
        """Inspect these after the earlier ones."""
        if any(job.path.is_dir() for job in jobs):
            # transformers imports lazily, which several threads must not do at once.
            importlib.import_module("transformers").CONFIG_MAPPING  # noqa: B018
        with self._lock:
            self._found |= {job.name: Future() for job in jobs}
            self._waiting.extend(jobs)
            more = min(len(self._waiting), _AT_ONCE - self._threads, len(os.sched_getaffinity(0)) - self._threads)
            self._threads += max(0, more)
        for _ in range(more):
            threading.Thread(target=self._inspect, name="inspection", daemon=True).start()

    def result(self, name: str) -> CheckpointInfo:
        """Wait for a checkpoint's result. Raises InputError as `inspect_checkpoint` does."""
        return self._found[name].result()

    def ended(self) -> list[CheckpointJob]:
        """The checkpoints that ended since the last call."""
        return [self._ended.popleft() for _ in range(len(self._ended))]

    def _inspect(self) -> None:
        while (job := self._next()) is not None:
            try:
                info = inspect_checkpoint(job.path, job.name, trust_remote_code=self._trust)
            except BaseException as error:  # `result` raises it
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
