"""The output of a working run: one live line per stage on a terminal, plain lines
elsewhere."""

import threading
from datetime import timedelta
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from launch.run.decide.assignments import Event
from launch.run.directory.events import time_of_day

# which have a text
_WARNINGS, _NOTES = (
    ("warned", "gave_up", "retried"),
    ("phase", "noted", "joined", "decided"),
)


class Progress:
    """A context manager around a run; thread-safe."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._lock = threading.Lock()
        self._ended = False
        self._working: dict[int, TaskID] = {}  # by engine
        self._prune: TaskID | None = None
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
        self._ended = True  # an engine's thread may still have output
        self._bars.stop()

    def stage(self, text: str) -> None:
        self._print(f"[dim]{escape(text)}[/dim]")

    def warned(self, message: str) -> None:
        self._print(f"[yellow]warning:[/yellow] {escape(message)}")

    def _print(self, markup: str) -> None:
        if not self._ended:
            self.console.print(
                f"[dim]{time_of_day()}[/dim] {markup}", highlight=False, soft_wrap=True
            )

    def on(self, event: Event) -> None:
        engine = event.engine
        with self._lock:
            if (
                event.kind in ("loaded", "ended", "died", "left")
                and engine in self._working
            ):
                self._bars.remove_task(self._working.pop(engine))
            match event.kind:
                case "loading":
                    text = escape(f"{event.checkpoint}: loading")
                    self._working[engine] = self._bars.add_task(
                        text, total=None, pace=""
                    )
                case "loaded":
                    how = "swapped in place" if event.swapped else "engine started"
                    self.stage(
                        f"{event.checkpoint}: {how} in {event.seconds:.2f} s (engine"
                        f" {engine})"
                    )
                case "began":
                    text = escape(f"{event.checkpoint} {event.task}")
                    self._working[engine] = self._bars.add_task(
                        text, total=event.items, pace=""
                    )
                case "advanced":
                    bar = self._working[engine]
                    self._bars.advance(bar, event.items)
                    task = next(each for each in self._bars.tasks if each.id == bar)
                    pace = task.completed / max(task.elapsed or 0.0, 1e-3)
                    left = timedelta(seconds=round((task.remaining or 0.0) / pace))
                    self._bars.update(bar, pace=f"{pace:.1f} items/s, {left} left")
                case "ended" if event.items:
                    pace = event.items / max(event.seconds, 1e-3)
                    told = (
                        f"{event.items} items in {event.seconds:.1f} s,"
                        f" {pace:.1f} items/s"
                    )
                    self.stage(f"{event.checkpoint} {event.task}: {told}")
                case "unplaced":
                    self.warned(f"engine {engine} waits for {event.text}")
                case "died":
                    self.warned(
                        f"engine {engine} died ({event.text}); starting it again"
                    )
                case "made":
                    self._made(event.items, event.total)
                case kind if event.text and kind in (*_WARNINGS, *_NOTES):
                    (self.warned if kind in _WARNINGS else self.stage)(event.text)

    def _made(self, done: int, total: int) -> None:
        if not total:
            return
        if self._prune is None:
            self._prune = self._bars.add_task("compressing", total=total, pace="")
        self._bars.update(self._prune, completed=done)
        if done == total:
            self._bars.remove_task(self._prune)
            self.stage(f"compressed {total} checkpoints")
