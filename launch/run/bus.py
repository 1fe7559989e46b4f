"""The way of a run's events: each advances the state, and all listeners get both."""

import threading
import time
from collections.abc import Callable

from launch.run.events import Advanced, Completed, Decided, Event
from launch.run.state import RunState, advance

Listener = Callable[[Event, RunState], None]


class Bus:
    """Thread-safe. Listeners are called in the thread that reports."""

    def __init__(
        self, *listeners: Listener, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.listeners = list(listeners)
        self.clock = clock
        self.state = RunState()
        self._lock = threading.Lock()

    def report(self, event: Event) -> None:
        now = self.clock()
        with self._lock:
            self.state = state = advance(self.state, event, now)
        for listener in list(self.listeners):
            listener(event, state)
        match event:
            case Advanced():
                name = state.engines[event.engine].checkpoint
            case Decided():
                name = event.checkpoint
            case _:
                return
        if name is not None and state.is_complete(name):
            seconds = now - state.began.get(name, state.started)
            self.report(Completed(checkpoint=name, seconds=round(seconds, 3)))
