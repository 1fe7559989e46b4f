"""The output of a working run: one live line per stage on a terminal, plain lines
elsewhere."""

import threading
import time
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from evaluator.core.errors import counted, lasting
from launch.run import events
from launch.run.directory.event_log import time_of_day
from launch.run.events import Event, OfEngine, Tell
from launch.run.state import RunState

# between two lines of an engine's work, where there is no terminal
_SECONDS, _PART = 60, 0.1
_SILENCE = 4.0  # seconds without a line of what is done
_WARNINGS = events.Warned, events.GaveUp, events.Retried, events.Unplaced, events.Died


class Progress:
    """A context manager around a run; thread-safe."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._lock = threading.Lock()
        self._ended = False
        self._working: dict[int, TaskID] = {}  # by engine
        self._compress: TaskID | None = None
        self._bars = Bars(
            TextColumn("{task.description:<34}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
            console=console,
            transient=True,
            # libraries write to a log instead (launch/process.py)
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True  # a thread may still have output
        self._bars.stop()

    def on(self, event: Event, state: RunState) -> None:
        with self._lock:
            if self._ended:
                return
            if isinstance(event, OfEngine):
                self._draw(event, state)
            if isinstance(event, events.Made):
                self._draw_compressed(event.items, event.total)
            text = _line(event)
            if not text:
                return
            markup = f"[dim]{escape(text)}[/dim]"
            if isinstance(event, _WARNINGS) or getattr(event, "warning", False):
                markup = f"[yellow]warning:[/yellow] {escape(text)}"
            self._print(markup)

    def _print(self, markup: str) -> None:
        line = f"[dim]{time_of_day()}[/dim] {markup}"
        self.console.print(line, highlight=False, soft_wrap=True)

    def _draw(self, event: OfEngine, state: RunState) -> None:
        """The bar of an engine's current work."""
        bar = self._working.get(event.engine)
        match event:
            case events.Loading():
                self._begin(event.engine, f"{event.checkpoint}: loading", None)
            case events.Began():
                name = f"{event.checkpoint} {event.task}"
                self._begin(event.engine, name, event.items)
            case events.Advanced() if bar is not None:
                done = state.engines[event.engine].done
                if not done:
                    return  # a shard of another task came first
                task = next(each for each in self._bars.tasks if each.id == bar)
                elapsed = task.elapsed or 0.0
                pace = done / max(elapsed, 1e-3)
                rest = ((task.total or 0) - done) / pace
                shown = f"{pace:.1f} items/s, {lasting(rest)} left"
                self._bars.update(bar, completed=done, pace=shown)
                seconds, before = task.fields["told"]
                late = elapsed - seconds >= _SECONDS
                far = done - before >= (task.total or 0) * _PART
                if late and far and rest and not self.console.is_terminal:
                    task.fields["told"] = elapsed, done
                    line = f"{task.description}: {done} of {task.total} items, {shown}"
                    self._print(f"[dim]{line}[/dim]")
            case events.Ended() if state.engines[event.engine].task:
                pass  # another task of its checkpoint
            case _ if bar is not None:
                self._bars.remove_task(self._working.pop(event.engine))

    def _begin(self, engine: int, name: str, items: int | None) -> None:
        bar = self._bars.add_task(escape(name), total=items, pace="", told=(0, 0))
        self._working[engine] = bar

    def _draw_compressed(self, done: int, total: int) -> None:
        if self._compress is None:
            self._compress = self._bars.add_task("compressing", total=total, pace="")
        self._bars.update(self._compress, completed=done)
        if done == total:
            self._bars.remove_task(self._compress)


class Steps:
    """Tells what a check or a report does: some steps at once, each one that lasts now
    and then. A context manager around it."""

    def __init__(
        self,
        tell: Tell,
        what: str = "checking",
        text: str = "models, tasks and settings",
    ) -> None:
        self._tell, self._what, self._text = tell, what, text
        self._told = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def __call__(self, text: str, aloud: bool = False) -> None:
        self._text = text
        if aloud:
            self._say()

    def _say(self) -> None:
        self._told = time.monotonic()
        self._tell(f"{self._what} {self._text}")

    def _repeat(self) -> None:
        while not self._ended.wait(_SILENCE / 8):
            if time.monotonic() - self._told >= _SILENCE:
                self._say()


def _line(event: Event) -> str:
    """The line that a terminal shows of an event; empty for none."""
    match event:
        case events.Loaded():
            how = "swapped in place" if event.swapped else "engine started"
            seconds = f"{event.seconds:.2f} s (engine {event.engine})"
            return f"{event.checkpoint}: {how} in {seconds}"
        case events.Ended() if event.items:
            pace = event.items / max(event.seconds, 1e-3)
            did = f"{counted(event.items, 'item')} in {lasting(event.seconds)}, {pace:.1f} items/s"
            return f"{event.checkpoint} {event.task}: {did}"
        case events.Unplaced():
            return f"engine {event.engine} waits for {event.text}"
        case events.Died():
            return f"engine {event.engine} died ({event.text}); starting it again"
        case events.Made() if event.items == event.total:
            return f"compressed {counted(event.total, 'checkpoint')}"
        case events.GaveUp():
            return event.failure.text
        case events.Placed():
            return ""
        case _:
            return getattr(event, "text", "")
