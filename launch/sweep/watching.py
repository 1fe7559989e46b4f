"""Checkpoints that appear under a pattern of `models` (`resurface sweep --watch`).

A checkpoint is taken once it is whole: each tensor that its index or header names is
there, and no file changed between two looks. Each is a model `<name>-<folder>`. Once a
file of it changes, it is left out, until it is whole again and taken anew."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from glob import glob, has_magic
from pathlib import Path

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.files import FileStates, file_states
from evaluator.core.errors import InputError, one_line
from launch.sweep.config import SweepConfig

LOOK_SECONDS = 10.0  # between two looks
_HOUR = 3600.0
Tell = Callable[[str], None]


def patterns_of(config: SweepConfig) -> dict[str, str]:
    """The models that are patterns, by name."""
    return {
        name: value
        for name, value in config.models.items()
        if isinstance(value, str) and has_magic(value)
    }


class Watch:
    """What appears under the patterns of one sweep."""

    def __init__(
        self, config: SweepConfig, beside: Path, tell: Tell, *, newest_first: bool
    ) -> None:
        """Patterns are relative to `beside`, or to the working directory. Raises
        InputError for a sweep that cannot be watched."""
        self._config, self._beside, self._tell = config, beside, tell
        self._patterns = patterns_of(config)
        self._newest_first = newest_first
        self._alone = newest_first  # take one at a time
        self._looks = 0
        self._names: dict[Path, str] = {}  # of all that were ever ready
        self._taken: dict[Path, FileStates] = {}
        self._last: list[Path] = []  # taken by the last look
        self._seen: dict[Path, FileStates] = {}
        self._refused: dict[Path, FileStates] = {}
        self._told: set[tuple[Path, str]] = set()
        plain = config.models.keys() - self._patterns.keys()
        if not self._patterns:
            raise InputError("--watch: no model is a pattern, such as ckpts/step-*")
        if config.base in self._patterns or config.only:
            raise InputError(
                "--watch: base and --only name single models, and no pattern"
            )
        if (config.prune or config.compress) and not plain:
            raise InputError(
                "--watch: prune and compress need a model beside the patterns, since a"
                " single model's checkpoints have other names"
            )

    @property
    def fresh(self) -> list[str]:
        """The models that the last look took."""
        return [self._names[path] for path in self._last]

    @property
    def at_start(self) -> bool:
        """Whether what the last look took was there from the start."""
        return self._looks == 2

    def look(self) -> SweepConfig | None:
        """The sweep with all whole checkpoints; None if none is new."""
        self._looks += 1
        before, self._seen = self._seen, {}
        ready: list[Path] = []
        for path, pattern in self._found().items():
            states = self._whole(path)
            if states is None or states == self._refused.get(path):
                continue
            self._seen[path] = states
            new = states != self._taken.get(path)
            if new and states == before.get(path) and self._named(path, pattern):
                ready.append(path)
        for path in self._taken:
            if not path.is_dir():
                self._once(path, "has vanished; its records stay")
        if self._alone and ready:
            ready = [max(ready, key=self._newest)]
        self._last = ready
        self._taken |= {path: self._seen[path] for path in ready}
        return self._sweep() if ready else None

    def refuse(self, reason: str) -> None:
        """Leave out what the last look has taken, until its files change. If these are
        several, the next looks take them one by one."""
        self._alone = len(self._last) > 1 or self._newest_first
        for path in self._last:
            states = self._taken.pop(path)
            if len(self._last) == 1:
                self._refused[path] = states
                self._tell(f"{path}: left out until it changes: {reason}")

    def _sweep(self) -> SweepConfig:
        models = {**self._config.models}
        for name in self._patterns:
            del models[name]
        for path in sorted(self._taken, key=_in_order):
            if self._taken[path] == self._seen.get(path):
                models[self._names[path]] = str(path)
        return self._config.model_copy(update={"models": models})

    def _found(self) -> dict[Path, str]:
        """The folders under the patterns, each with its pattern's name."""
        found: dict[Path, str] = {}
        for name, pattern in self._patterns.items():
            for root in (self._beside, Path()):
                for path in map(Path, glob(str(root.absolute() / pattern))):
                    if path.is_dir():
                        found.setdefault(path, name)
        return found

    def _whole(self, path: Path) -> FileStates | None:
        """The states of a whole checkpoint's files; None, which is told once."""
        try:
            states = file_states(path)
            checkpoint = Checkpoint(path)
            checkpoint.check_directory()
            _ = checkpoint.config, checkpoint.tensors
        except (InputError, OSError) as error:
            self._once(path, "not whole yet", one_line(error))
            return None
        return states

    def _newest(self, path: Path) -> int:
        """When its newest file was written."""
        return max(modified for _, modified in self._seen[path].values())

    def _named(self, path: Path, pattern: str) -> bool:
        """Give a checkpoint its name, unless another has it, which is told once."""
        if path not in self._names:
            name = re.sub(r"[^A-Za-z0-9._-]", "-", f"{pattern}-{path.name}")
            if name in {*self._names.values(), *self._config.models}:
                self._once(path, f"left out: another checkpoint is named {name!r}")
                return False
            self._names[path] = name
        return True

    def _once(self, path: Path, what: str, why: str = "") -> None:
        if (path, what) not in self._told:
            self._told.add((path, what))
            self._tell(": ".join(filter(None, [str(path), what, why])))


def rounds(
    watch: Watch, ended: Callable[[], bool], idle_hours: float | None
) -> Iterator[SweepConfig]:
    """The sweep each time that it has grown, until it has `ended`, or nothing new came
    for `idle_hours`."""
    seconds = math.inf if idle_hours is None else idle_hours * _HOUR
    since = time.monotonic()
    while not ended():
        if config := watch.look():
            yield config
            since = time.monotonic()
        elif time.monotonic() - since >= seconds:
            return
        else:
            time.sleep(LOOK_SECONDS)


def _in_order(path: Path) -> list[tuple[int, str]]:
    """step-9 before step-10."""
    pieces = re.split(r"(\d+)", path.name)
    return [(int(each), "") if each.isdecimal() else (0, each) for each in pieces]
