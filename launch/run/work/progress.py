"""What users see of a working run: one live line per stage on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars


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
            redirect_stdout=False,  # what libraries write goes to a log (quiet.py)
            redirect_stderr=False,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True  # an engine's thread may still have something to say
        self._bars.stop()

    def stage(self, text: str) -> None:
        self._print(f"[dim]{escape(text)}[/dim]")

    def noted(self, message: str) -> None:
        self._print(escape(message))

    def warned(self, message: str) -> None:
        self._print(f"[yellow]warning:[/yellow] {escape(message)}")

    def _print(self, markup: str) -> None:
        if not self._ended:
            self.console.print(markup, highlight=False, soft_wrap=True)

    def died(self, engine: int, reason: str) -> None:
        self._not_loading(engine)
        self.warned(f"engine {engine} died ({reason}); starting it again")

    def left(self, engine: int) -> None:
        self._not_loading(engine)

    def unplaced(self, engine: int, gpus: int) -> None:
        what = f"{gpus} free GPU{'s' if gpus > 1 else ''} on one node" if gpus else "a process"
        self.warned(f"engine {engine} waits for {what}")

    def _not_loading(self, engine: int) -> None:
        with self._lock:
            if engine in self._loading:
                self._bars.remove_task(self._loading.pop(engine))

    def pruning(self, done: int, total: int) -> None:
        if not total:
            return
        with self._lock:
            if self._prune is None:
                self._prune = self._bars.add_task("compressing", total=total, pace="")
            self._bars.update(self._prune, completed=done)
            if done == total:
                self._bars.remove_task(self._prune)
                self.stage(f"compressed {total} checkpoints")

    def loading(self, engine: int, checkpoint: str) -> None:
        with self._lock:
            self._loading[engine] = self._bars.add_task(escape(f"{checkpoint}: loading"), total=None, pace="")

    def loaded(self, engine: int, checkpoint: str, swapped: bool, seconds: float) -> None:
        self._not_loading(engine)
        how = "swapped in place" if swapped else "engine started"
        self.stage(f"{checkpoint}: {how} in {seconds:.2f} s (engine {engine})")

    def already_done(self, checkpoint: str, task: str, items: int) -> None:
        self.stage(f"{checkpoint} {task}: {items} items already done")

    def began(self, engine: int, checkpoint: str, task: str, items: int) -> None:
        with self._lock:
            name = f"{checkpoint} {task}"
            bar = self._bars.add_task(escape(name), total=items, pace="")
            self._engines[engine] = _Stage(bar, name, items)

    def advanced(self, engine: int, items: int) -> None:
        with self._lock:
            stage = self._engines[engine]
            stage.done += items
            seconds = time.monotonic() - stage.started
            left = timedelta(seconds=round((stage.items - stage.done) * seconds / stage.done))
            pace = f"{stage.done / seconds:.1f} items/s, {left} left"
            self._bars.update(stage.bar, completed=stage.done, pace=pace)

    def ended(self, engine: int) -> None:
        with self._lock:
            stage = self._engines.pop(engine)
            self._bars.remove_task(stage.bar)
            seconds = time.monotonic() - stage.started
            if stage.done:
                self.stage(f"{stage.name}: {stage.done} items in {seconds:.1f} s, {stage.done / seconds:.1f} items/s")
