"""`resurface status`: the progress of a run, from its files alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from evaluator.core.errors import json_text
from launch.commands.options import RunDirectory
from launch.commands.terminal import console, empty_table
from launch.process import lost_output

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
    as_json: Annotated[
        bool, typer.Option("--json", help="print JSON; with --watch, a line each time")
    ] = False,
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
                print(json_text(asdict(found), indent=None if watch else 2), flush=True)
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
    page: list[RenderableType] = [_plain(line) for line in _summary(found)]
    parts = list(found.parts)
    if len(parts) > _ROWS:
        parts = [part for part in parts if part.state in ("running", "failed")][:_ROWS]
    if parts:
        table = empty_table(
            ("checkpoint", "task", "state", "done", "of"), ("checkpoint", "task")
        )
        table.columns[2].justify = "left"
        for part in parts:
            of = "?" if part.total is None else str(part.total)
            table.add_row(
                _plain(part.checkpoint),
                _plain(part.task),
                part.state,
                str(part.done),
                of,
            )
        page.append(table)
    if len(parts) < len(found.parts):
        page.append(
            _plain(
                f"and {len(found.parts) - len(parts)} more tasks of checkpoints; --json"
                " has them all"
            )
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
        page += [
            _plain("last errors:"),
            *(_plain(f"  {error}") for error in found.errors),
        ]
    return Group(*page)


def _summary(found: RunStatus) -> Iterator[str]:
    yield f"{found.run}: {found.state.replace('_', ' ')}" + (
        f": {found.why}" if found.why else ""
    )
    if found.driver is not None and found.state == "running":
        yield f"driver: {found.driver}"
    if (past := found.history).began is not None:
        calls, deaths, retries = (
            past.counts.get(kind, 0) for kind in ("started", "died", "retried")
        )
        yield (
            f"began {past.began}; calls {calls}, deaths of engines {deaths}, retries"
            f" {retries}"
        )
    if found.to_prune and found.pruned is not None and found.pruned < found.to_prune:
        yield f"compressed {found.pruned} of {found.to_prune} checkpoints"
    counts = [
        f"{found.count(state)} {state}"
        for state in ("done", "running", "failed", "waiting", "decided early")
        if found.count(state)
    ]
    yield f"{found.checkpoints} checkpoints; tasks: {', '.join(counts) or 'none'}"
    items = (
        f"{found.done} items"
        if found.total is None
        else f"{found.done} of {found.total} items"
    )
    if found.items_per_second is not None:
        items += f", {found.items_per_second:.1f} items/s"
    if found.seconds_left is not None:
        unpruned = (
            ", pruning not counted"
            if found.to_prune and found.pruned != found.to_prune
            else ""
        )
        items += f", {timedelta(seconds=round(found.seconds_left))} left{unpruned}"
    yield items


def _plain(text: str) -> Text:
    """A text without markup and control characters: its file may be anybody's."""
    return Text(
        "".join(
            each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text
        )
    )
