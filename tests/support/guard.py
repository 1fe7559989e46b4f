"""Starting Ray or an engine is for tests that are marked slow: any other that does
so fails. In the test's own process `ray.init` and the building of a vLLM engine
raise; commands that a test runs (`runs.py`) find modules in place of Ray and vLLM
that raise when they are imported."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evaluator.engine.vllm import engine as vllm_engine

UNSTARTED = Path(__file__).with_name("unstarted")


class StartedError(Exception):
    """A test that is not marked slow has started an engine or Ray."""


class Guard:
    """Whether the current test may start engines and Ray. Fixtures of a module
    belong to its first test."""

    def __init__(self) -> None:
        self.permits = True
        self._guarded: set[Callable[..., Any]] = set()

    def next_test(self, *, slow: bool) -> None:
        """Guard what has been imported so far, and permit it if the next test is
        slow."""
        self.permits = slow
        self._guard(vllm_engine, "start", "a vLLM engine")
        if "ray" in sys.modules:
            self._guard(sys.modules["ray"], "init", "Ray")

    def _guard(self, owner: Any, name: str, what: str) -> None:
        original = getattr(owner, name)
        if original in self._guarded:
            return

        def guarded(*arguments: Any, **named: Any) -> Any:
            if not self.permits:
                raise StartedError(
                    f"{what} was started by a test that is not marked slow"
                )
            return original(*arguments, **named)

        self._guarded.add(guarded)
        setattr(owner, name, guarded)


GUARD = Guard()
