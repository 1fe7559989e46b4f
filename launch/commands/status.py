"""`resurface status`: the progress of a run, from its files alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launch.commands.terminal import console

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from launch.status import EngineStatus, PartStatus, RunStatus

_LOOK_SECONDS = 2.0
_ROWS = 24  # of tasks and checkpoints; a longer table shows only running and failed ones, and counts the rest


def status(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run directory")],
    watch: Annotated[bool, typer.Option("--watch", help="repeat every two seconds until the run ends")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON; with --watch, a line each time")] = False,
) -> None:
    """Show what is done, running and failed, the time left, the engines and the last errors.

    Reads files alone, on any machine that sees them, also while the run works. "stale" means that the run did not end
    and its driver is gone: the same command resumes it.
    """
    from launch.status import read_status

    found = read_status(run)
    if as_json:
        _print_json(found, watch)
    elif not (watch and console.is_terminal):
        console.print(_page(found))
    if not watch:
        return
    if console.is_terminal and not as_json:
        from rich.live import Live

        with Live(_page(found), console=console, auto_refresh=False) as shown:
            for later in _until_ended(run, found):
                shown.update(_page(later), refresh=True)
    else:
        for later in _until_ended(run, found):
            _print_json(later, watch) if as_json else console.print(_page(later))


def _until_ended(run: Path, found: RunStatus) -> Iterator[RunStatus]:
    """Later states of a run. Ctrl-C ends a watch without an error."""
    from launch.status import read_status

    while found.state == "running":
        try:
            time.sleep(_LOOK_SECONDS)
            found = read_status(run)
        except KeyboardInterrupt:
            return
        yield found


def _print_json(found: RunStatus, line: bool) -> None:
    print(json.dumps(asdict(found), indent=None if line else 2), flush=True)


def _page(found: RunStatus) -> RenderableType:
    from rich.console import Group

    return Group(*map(_plain, _summary(found)), *_tables(found))


def _summary(found: RunStatus) -> Iterator[str]:
    yield f"{found.run}: {found.state.replace('_', ' ')}" + (f": {found.why}" if found.why else "")
    if found.driver is not None and found.state == "running":
        yield f"driver: {found.driver}"
    if found.to_prune and found.pruned is not None and found.pruned < found.to_prune:
        yield f"compressed {found.pruned} of {found.to_prune} checkpoints"
    counts = [
        f"{found.count(state)} {state}"
        for state in ("done", "running", "failed", "waiting", "decided early")
        if found.count(state)
    ]
    yield f"{found.checkpoints} checkpoints; tasks: {', '.join(counts) or 'none'}"
    items = f"{found.done} items" if found.total is None else f"{found.done} of {found.total} items"
    if found.items_per_second is not None:
        items += f", {found.items_per_second:.1f} items/s"
    if found.seconds_left is not None:
        unpruned = ", pruning not counted" if found.to_prune and found.pruned != found.to_prune else ""
        items += f", {timedelta(seconds=round(found.seconds_left))} left{unpruned}"
    yield items


def _tables(found: RunStatus) -> Iterator[RenderableType]:
    shown = _shown(found)
    if shown:
        yield _parts(shown)
    if len(shown) < len(found.parts):
        yield _plain(f"and {len(found.parts) - len(shown)} more tasks of checkpoints; --json has them all")
    if found.engines:
        yield _engines(found.engines)
    if found.errors:
        yield _plain("last errors:")
        yield from (_plain(f"  {error}") for error in found.errors)


def _shown(found: RunStatus) -> list[PartStatus]:
    if len(found.parts) <= _ROWS:
        return list(found.parts)
    return [part for part in found.parts if part.state in ("running", "failed")][:_ROWS]


def _parts(parts: list[PartStatus]) -> Table:
    table = _table("checkpoint", "task", "state", "done", "of")
    for part in parts:
        of = "?" if part.total is None else str(part.total)
        table.add_row(_plain(part.checkpoint), _plain(part.task), part.state, str(part.done), of)
    return table


def _engines(engines: tuple[EngineStatus, ...]) -> Table:
    table = _table("engine", "state", "checkpoint", "task", "items", "seconds", "idle", "waiting")
    for each in engines:
        table.add_row(
            str(each.engine),
            _plain(each.state),
            _plain(each.checkpoint or ""),
            _plain(each.task or ""),
            f"{each.done} of {each.items}" if each.items else "",
            f"{each.seconds:.0f}" if each.seconds else "",
            "" if each.idle_share is None else f"{100 * each.idle_share:.0f} %",
            "" if each.waiting_share is None else f"{100 * each.waiting_share:.0f} %",
        )
    return table


def _table(*columns: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 0), pad_edge=False)  # eight columns fit into 80 characters
    for name in columns:
        name_of_something = name in ("checkpoint", "task")
        right = not name_of_something and name != "state"
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=not name_of_something)
    return table


def _plain(text: str) -> Text:
    """A text without markup and control characters: its file may be anybody's."""
    from rich.text import Text

    return Text("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text))
