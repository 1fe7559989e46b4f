"""`resurface screen`: what screening would have saved on a finished run, and decided otherwise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evaluator.errors import InputError
from evaluator.screen import Screen
from evaluator.thresholds import thresholds_of
from launch.commands.options import as_option
from launch.commands.report import need_records
from launch.commands.terminal import console
from launch.sweep.config import validated

if TYPE_CHECKING:
    from rich.table import Table

    from evaluator.metrics.screening import Replay

_FIELDS = Screen.model_fields
_MOST = 100_000  # draws


def _option(name: str, metavar: str | None = None) -> Any:
    default = _FIELDS[name].default
    shown = "" if default is None else f" (default {default})"
    return typer.Option(metavar=metavar, help=f"{_FIELDS[name].description}{shown}")


def screen(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run directory that asked everything")],
    items: Annotated[int | None, _option("items")] = None,
    confidence: Annotated[float | None, _option("confidence")] = None,
    against: Annotated[str | None, _option("against", "best|gate")] = None,
    measure: Annotated[str | None, _option("measure", "open|choice")] = None,
    seed: Annotated[int | None, _option("seed")] = None,
    repeats: Annotated[int, typer.Option(min=1, max=_MOST, help="draws of anchors that are tried")] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
) -> None:
    """What `screen:` in a sweep would have saved on a finished run, and how often it decides as the full run did.

    Takes the run's records, pretends that only a few items had been asked first, decides, and looks up the rest; over
    many draws of these items. Starts no engine and writes nothing. Settings come from the options, then from `screen:`
    of the run's sweep file.
    """
    typed = {name: value for name, value in locals().items() if name in _FIELDS and value is not None}
    need_records(run)
    from evaluator.store.reading import read_run

    state = read_run(run)
    stated = state["config"].get("screen") if isinstance(state.get("config"), dict) else None
    rule = validated(Screen, {**(stated if isinstance(stated, dict) else {}), **typed}, "resurface screen", as_option)
    thresholds = thresholds_of(state, str(run / "run.json"))
    if rule.against == "gate" and thresholds.max_drop is None:
        raise InputError(f"{run / 'run.json'}: config.gate.max_drop: null: --against gate needs a bound")
    from evaluator.metrics import judge
    from evaluator.metrics.screening import replay
    from evaluator.report import read_inputs

    inputs = read_inputs(run)
    verdicts = judge(inputs, thresholds) if rule.against == "gate" else ()
    found = replay(inputs, rule, thresholds, verdicts, repeats)
    if not found:
        least = "two compressed checkpoints" if rule.against == "best" else "a compressed checkpoint"
        raise InputError(
            f"{run}: nothing to screen: no task has {least} of one base with all its items, and a measure "
            f"({rule.measure or 'open or choice'})"
        )
    if as_json:
        tasks = [_document(each) for each in found]
        print(json.dumps({"schema_version": 1, "screen": rule.model_dump(), "tasks": tasks}))
        return
    _print(found, rule)


def _document(found: Replay) -> dict[str, Any]:
    counted = {name: getattr(found, name) for name in ("whole", "out", "mistakes", "blocked")}
    return (
        asdict(found) | counted | {"saved_share": found.saved / found.whole, "same_share": found.same / found.repeats}
    )


def _print(found: Sequence[Replay], rule: Screen) -> None:
    for each in found:
        measures = " and ".join(each.measures)
        console.print(
            f"{each.task}, base {each.base}: {each.anchors} of {each.items} items first, against the {rule.against} by "
            f"{measures}, confidence {rule.confidence:g}, {each.repeats:,} draws",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        console.print(_table(each, rule))
        for line in _lines(each, rule):
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def _table(found: Replay, rule: Screen) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("checkpoint", overflow="fold")
    behind = "behind the best" if rule.against == "best" else "lost"
    verdict = ("gate",) if rule.against == "gate" else ()
    for name in (f"{found.measures[0]} %", f"{behind}, pp", *verdict, "screened out"):
        table.add_column(name, justify="right", no_wrap=True)
    for fate in found.fates:
        numbers = [f"{100 * fate.accuracy:.1f}", f"{100 * fate.loss:.1f}", *([fate.outcome] if verdict else [])]
        table.add_row(escape(fate.checkpoint), *numbers, f"{fate.out:,} of {found.repeats:,}")
    return table


def _lines(found: Replay, rule: Screen) -> list[str]:
    lines = [
        f"items saved: {found.saved:,.0f} of {found.whole:,} ({100 * found.saved / found.whole:.1f} %), in the mean",
        f"same decision as the full run: {found.same:,} of {found.repeats:,} draws "
        f"({100 * found.same / found.repeats:.1f} %)",
        f"screened out by mistake: {found.mistakes:,} of {found.out:,}",
    ]
    if rule.against == "gate":
        lines.append(f"screened out, and BLOCK in the full run: {found.blocked:,} of {found.out:,}")
    if found.left_out:
        lines.append(f"not in this, as asked less than their base: {', '.join(found.left_out)}")
    return lines
