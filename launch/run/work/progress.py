"""The output of a working run: one live line per stage on a terminal, plain lines elsewhere."""

import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from launch.run.decide.assignments import Event
from launch.run.directory.events import time_of_day

_WARNINGS, _NOTES = ("warned", "gave_up", "retried"), ("phase", "noted", "joined", "decided")  # which have a text


@dataclass(slots=True)
class _Stage:
    bar: TaskID
    name: str
    items: int
    started: float = field(default_factory=time.monotonic)
    done: int = 0


class Progress:
    """A context manager around a run; thread-safe."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._lock = threading.Lock()
        self._ended = False
        self._engines: dict[int, _Stage] = {}
        self._loading: dict[int, TaskID] = {}
        self._prune: TaskID | None = None
        self._bars = Bars(
            TextColumn("{task.description:<34}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
            console=console,
            transient=True,
            redirect_stdout=False,  # libraries write to a log instead (launch/process.py)
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
            self.console.print(f"[dim]{time_of_day()}[/dim] {markup}", highlight=False, soft_wrap=True)

    def on(self, event: Event) -> None:
        engine = event.engine
        with self._lock:
            if event.kind in ("loaded", "died", "left") and engine in self._loading:
                self._bars.remove_task(self._loading.pop(engine))
            match event.kind:
                case "loading":
                    text = escape(f"{event.checkpoint}: loading")
                    self._loading[engine] = self._bars.add_task(text, total=None, pace="")
                case "loaded":
                    how = "swapped in place" if event.swapped else "engine started"
                    self.stage(f"{event.checkpoint}: {how} in {event.seconds:.2f} s (engine {engine})")
                case "began":
                    name = f"{event.checkpoint} {event.task}"
                    bar = self._bars.add_task(escape(name), total=event.items, pace="")
                    self._engines[engine] = _Stage(bar, name, event.items)
                case "advanced":
                    stage = self._engines[engine]
                    stage.done += event.items
                    seconds = time.monotonic() - stage.started
                    left = timedelta(seconds=round((stage.items - stage.done) * seconds / stage.done))
                    pace = f"{stage.done / seconds:.1f} items/s, {left} left"
                    self._bars.update(stage.bar, completed=stage.done, pace=pace)
                case "ended":
                    stage = self._engines.pop(engine)
                    self._bars.remove_task(stage.bar)
                    if done := event.items:
                        pace = f"{done / max(event.seconds, 1e-3):.1f} items/s"
                        self.stage(f"{stage.name}: {done} items in {event.seconds:.1f} s, {pace}")
                case "unplaced":
                    self.warned(f"engine {engine} waits for {event.text}")
                case "died":
                    self.warned(f"engine {engine} died ({event.text}); starting it again")
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
