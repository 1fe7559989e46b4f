"""`resurface status`: the progress of a run, from its files alone; `stop`: a request to
its driver, by a file too."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from evaluator.core.errors import InputError, counted, lasting, printable
from evaluator.core.files import need_unfenced, write_atomically
from evaluator.store.run_json import need_run
from launch.commands.options import RunDirectory, TakeOver
from launch.commands.terminal import (
    AsJson,
    console,
    empty_table,
    print_json,
    print_plain,
    warn,
)
from launch.process import lost_output
from launch.run.directory.lock import STOP, hold

if TYPE_CHECKING:
    from launch.status import RunStatus

_LOOK_SECONDS = 2.0
# of tasks and checkpoints; a longer table shows only running and failed ones, and
# counts the rest
_ROWS = 24


def status(
    run: RunDirectory,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="repeat every two seconds until the run ends"),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what is done, running and failed, the time left, the engines and the last
    errors.

    Only reads the run's files, on any machine that sees them, also while the run
    works. "stale" means that the run did not end and its driver is gone: the same
    command resumes it."""
    from rich.live import Live

    from launch.status import read_status

    found = read_status(run)
    live = watch and console.is_terminal and not as_json
    with Live(console=console, auto_refresh=False) if live else nullcontext() as shown:
        while True:
            if as_json:
                print_json(found)
            elif shown is not None:
                shown.update(_page(found), refresh=True)
            else:
                console.print(_page(found))
            if not watch or found.state != "running" or lost_output():
                return
            try:
                time.sleep(_LOOK_SECONDS)
                found = read_status(run)
            except KeyboardInterrupt:  # ends a watch without an error
                return


def _page(found: RunStatus) -> RenderableType:
    page: list[RenderableType] = [*map(_plain, _summary(found))]
    parts = list(found.parts)
    if len(parts) > _ROWS:
        parts = [part for part in parts if part.state in ("running", "failed")][:_ROWS]
    if parts:
        columns = ("checkpoint", "task", "state", "done", "of")
        table = empty_table(columns, ("checkpoint", "task"))
        table.columns[2].justify = "left"
        for part in parts:
            of = "?" if part.total is None else part.total
            cells = (part.checkpoint, part.task, part.state, part.done, of)
            table.add_row(*map(_plain, cells))
        page.append(table)
    if (more := len(found.parts) - len(parts)) > 0:
        page.append(
            _plain(f"and {more} more tasks of checkpoints; --json has them all")
        )
    if found.engines:
        gpu = ("GPU",) if any(each.gpu for each in found.engines) else ()
        columns = (
            "engine",
            *gpu,
            "state",
            "checkpoint",
            "task",
            "items",
            "seconds",
            "idle",
            "waiting",
        )
        table = empty_table(columns, (*gpu, "checkpoint", "task"))
        table.columns[1 + len(gpu)].justify = "left"
        for each in found.engines:
            table.add_row(
                str(each.engine),
                *([_plain(each.gpu)] if gpu else ()),
                *(
                    _plain(text or "")
                    for text in (each.state, each.checkpoint, each.task)
                ),
                f"{each.done} of {each.items}" if each.items else "",
                f"{each.seconds:.0f}" if each.seconds else "",
                *(
                    "" if share is None else f"{100 * share:.0f} %"
                    for share in (each.idle_share, each.waiting_share)
                ),
            )
        page.append(table)
    if found.errors:
        page.append(_plain("last errors:"))
        page += [_plain(f"  {error}") for error in found.errors]
    return Group(*page)


def _summary(found: RunStatus) -> Iterator[str]:
    yield f"{found.run}: {found.state.replace('_', ' ')}" + (
        f": {found.why}" if found.why else ""
    )
    if found.driver is not None and found.state != "stale":
        yield f"driver: {found.driver}"
    if (past := found.history).began is not None:
        kinds = ("started", "died", "retried")
        calls, deaths, retries = (past.counts.get(kind, 0) for kind in kinds)
        yield (
            f"began {past.began}; calls {calls}, deaths of engines {deaths}, retries"
            f" {retries}"
        )
    if found.to_prune and found.pruned is not None and found.pruned < found.to_prune:
        yield f"compressed {found.pruned} of {found.to_prune} checkpoints"
    counts = [
        f"{found.count(state)} {state}"
        for state in ("done", "running", "failed", "waiting")
        if found.count(state)
    ]
    known = counted(found.checkpoints, "checkpoint")
    yield f"{known}; tasks: {', '.join(counts) or 'none'}"
    items = counted(found.done if found.total is None else found.total, "item")
    if found.total is not None:
        items = f"{found.done:,} of {items}"
    if found.items_per_second is not None:
        items += f", {found.items_per_second:.1f} items/s"
    if found.seconds_left is not None:
        items += f", {lasting(found.seconds_left)} left"
        if found.to_prune and found.pruned != found.to_prune:
            items += ", pruning not counted"
    if aside := sum(not part.task for part in found.parts):
        items += f", without {counted(aside, 'checkpoint')} set aside at the start"
    yield items
    if found.gpu_hours:
        cost = "" if found.cost is None else f", cost {found.cost:.2f}"
        yield f"{found.gpu_hours:.2f} GPU-hours{cost}"
    if found.unused_bytes:
        yield (
            f"{in_mib(found.unused_bytes)} of records that no cell of the sweep uses;"
            f" `resurface clean {found.run}` removes them"
        )
    if found.gate is not None:
        earlier = "" if found.state.startswith("finished") else " (before this call)"
        yield f"gate{earlier}: {found.gate.verdict}: {found.gate.summary}"


def _plain(value: object) -> Text:
    """A text without markup and control characters: its file may be anybody's."""
    return Text(printable(str(value)))


def stop(run: RunDirectory) -> None:
    """Stop a working run, as Ctrl-C does: finished items are kept, and its command
    resumes.

    Needs only the run directory, so it works from another machine."""
    from launch.status import read_status

    found = read_status(run)
    if found.state != "running":
        why = f" ({found.why})" if found.why else ""
        raise InputError(f"{run}: nothing to stop: the run is {found.state}{why}")
    write_atomically(run / STOP, b"")
    print_plain(f"{run}: its driver stops; the same command resumes")


def clean(
    run: RunDirectory,
    yes: Annotated[bool, typer.Option("--yes", help="without the question")] = False,
    take_over: TakeOver = False,
) -> None:
    """Remove the records that no cell of the last sweep uses: of checkpoints and tasks
    that it left out, and of earlier settings.

    Nothing else ever removes records."""
    from evaluator.store.cells import Cells
    from launch.run.directory.rundir import forget_left_out

    need_run(run)
    with hold(run, warn, take_over=take_over):
        cells = Cells(run)
        unused = cells.unused()
        named = [" ".join(each) for each in sorted(cells.left_out)]
        asked = {cell.checkpoint for cell in cells if not cell.left_out}
        for folder in sorted((run / "checkpoints").glob("*")):
            if folder.is_dir() and folder.name not in asked:
                size = sum(file.stat().st_size for file in folder.glob("*"))
                print_plain(f"{folder}: {in_mib(size)}, outside the sweep: stays")
        if not unused and not named:
            print_plain(f"{run}: no record is unused")
            return
        what = (
            f"{in_mib(sum(unused.values()))} of records that no cell of the sweep uses"
        )
        print_plain(": ".join(filter(None, [what, ", ".join(named)])))
        if not yes and not _agreed(f"Remove them from {run}?"):
            print_plain(f"{run}: nothing was removed")
            return
        forget_left_out(run, cells)
        for folder in unused:
            need_unfenced(folder)
            shutil.rmtree(folder)
        print_plain(f"{run}: removed; `resurface report {run}` writes the tables again")


def _agreed(question: str) -> bool:
    """Raises InputError where nobody can answer."""
    try:
        return typer.confirm(question)
    except typer.Abort:
        raise InputError("no answer: --yes goes without the question") from None


def in_mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
