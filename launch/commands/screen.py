"""`resurface screen`: what a screened sweep would have cost and decided on a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluator.core.errors import InputError
from evaluator.screen import Screen
from evaluator.thresholds import thresholds_of
from launch.commands.options import as_option
from launch.commands.report import need_records
from launch.commands.terminal import console
from launch.sweep.config import validated

_FIELDS = Screen.model_fields
_MOST = 100_000  # tries


def _option(name: str) -> Any:
    return typer.Option(help=f"{_FIELDS[name].description} (default {_FIELDS[name].default})")


def screen(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run directory that evaluated everything")],
    items: Annotated[int | None, _option("items")] = None,
    seed: Annotated[int | None, _option("seed")] = None,
    repeats: Annotated[int, typer.Option(min=1, max=_MOST, help="how many times the run is drawn anew")] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """What `screen:` in a sweep would have saved on a finished run, and which verdicts it would have given.

    Draws the run's contexts anew, with replacement and in random order, and stops where the gate is sure. Starts no
    engine and writes nothing. Settings come from the options, then from `screen:` of the run's sweep file.
    """
    typed = {name: value for name, value in locals().items() if name in _FIELDS and value is not None}
    need_records(run)
    from evaluator.store.reading import read_run

    state = read_run(run)
    stated = state["config"].get("screen") if isinstance(state.get("config"), dict) else None
    rule = validated(Screen, {**(stated if isinstance(stated, dict) else {}), **typed}, "resurface screen", as_option)
    thresholds = thresholds_of(state, str(run / "run.json"))
    from evaluator.metrics import judge
    from evaluator.metrics.gate import paired_of, replay
    from evaluator.report import read_inputs

    inputs = read_inputs(run)
    rows = []
    for verdict in judge(inputs, thresholds):
        comparison = inputs.comparisons()[verdict.task, verdict.checkpoint]
        if comparison.reason is not None or (verdict.task, verdict.checkpoint) in inputs.decided_early:
            continue
        tried = replay(paired_of(inputs, comparison), thresholds, first=rule.items, repeats=repeats, seed=rule.seed)
        rows.append(
            {
                "task": verdict.task,
                "checkpoint": verdict.checkpoint,
                "gate": verdict.outcome,
                "items": verdict.planned,
                "median_items": tried.median,
                **{name.lower(): tried.share(name) for name in ("PASS", "BLOCK", "WARN")},
            }
        )
    if not rows:
        raise InputError(f"{run}: nothing to screen: no task has a base and a compressed checkpoint with all its items")
    if as_json:
        print(json.dumps({"schema_version": 2, "screen": rule.model_dump(), "repeats": repeats, "checkpoints": rows}))
        return
    _print(rows, rule, repeats)


def _print(rows: list[dict[str, Any]], rule: Screen, repeats: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("checkpoint", overflow="fold")
    for name in ("gate", "items", "median", "PASS %", "BLOCK %", "undecided %"):
        table.add_column(name, justify="right", no_wrap=True)
    several = len({row["task"] for row in rows}) > 1
    for row in rows:
        name = f"{row['checkpoint']} ({row['task']})" if several else row["checkpoint"]
        shares = (f"{100 * row[each]:.1f}" for each in ("pass", "block", "warn"))
        table.add_row(escape(name), row["gate"], f"{row['items']:,}", f"{row['median_items']:,.0f}", *shares)
    console.print(table)
    saved = 1 - sum(row["median_items"] for row in rows) / sum(row["items"] for row in rows)
    console.print(
        f"gate: the verdict on all items; median: items that half of {repeats:,} draws need; first look {rule.items:,} "
        f"items.\nAt the median, screening saves {100 * saved:.0f} % of the compressed checkpoints' items.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
