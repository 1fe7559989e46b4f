"""`resurface gate`: PASS, WARN or BLOCK for each compressed checkpoint of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evaluator.thresholds import Thresholds, thresholds_of
from launch.commands.options import as_option
from launch.commands.report import need_records
from launch.commands.terminal import console
from launch.sweep.config import validated

if TYPE_CHECKING:
    from rich.table import Table

    from evaluator.metrics.gate import Verdict

BLOCKED = 4  # exit code
_FIELDS = Thresholds.model_fields
_MARKS = {"crossed": "!", "over": "?", "underpowered": "~"}
# The terminal's columns: heading, criterion.
_SHOWN = {
    "drop": "open_drop",
    "choice": "choice_drop",
    "left": "open_recovery",
    "flips": "open_flips",
    "mc_only": "mc_only",
    "lost": "lost",
}
_STYLES = {"PASS": "green", "WARN": "yellow", "BLOCK": "red"}


def _bound(name: str) -> Any:
    return typer.Option(help=f"{_FIELDS[name].description} (default {_FIELDS[name].default:g})")


def gate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run directory")],
    max_drop: Annotated[float | None, _bound("max_drop")] = None,
    max_drop_language: Annotated[float | None, _bound("max_drop_language")] = None,
    max_mc_only: Annotated[float | None, _bound("max_mc_only")] = None,
    max_lost: Annotated[float | None, _bound("max_lost")] = None,
    min_recovery: Annotated[float | None, _bound("min_recovery")] = None,
    max_flips: Annotated[float | None, _bound("max_flips")] = None,
    max_delta_pr: Annotated[float | None, _bound("max_delta_pr")] = None,
    max_kld: Annotated[float | None, _bound("max_kld")] = None,
    min_ear: Annotated[float | None, _bound("min_ear")] = None,
    power: Annotated[float | None, _bound("power")] = None,
    languages: Annotated[
        bool | None, typer.Option("--languages/--no-languages", help="whether each language is looked at too")
    ] = None,
) -> None:
    """Judge each compressed checkpoint against its base: exit code 0, or 4 if one is BLOCK.

    A threshold is crossed when the whole 95 % interval is beyond it. WARN: a value is beyond it and may be chance, or
    there are too few items to see a drop of the tolerance ("underpowered", never PASS). Thresholds come from the
    options, then from `gate:` of the run's sweep file. Writes RUN/gate.json.
    """
    typed = {name: value for name, value in locals().items() if name in _FIELDS and value is not None}
    need_records(run)
    from evaluator.store.reading import read_run

    state = read_run(run)
    stated = thresholds_of(state, str(run / "run.json"))
    thresholds = validated(Thresholds, {**stated.model_dump(), **typed}, "resurface gate", as_option)
    from evaluator.errors import InputError
    from evaluator.metrics import judge
    from evaluator.metrics.gate import document, paragraph
    from evaluator.report import read_inputs
    from evaluator.store.failures import failures_of
    from evaluator.store.files import write_atomically

    verdicts = judge(read_inputs(run), thresholds)
    if not verdicts:
        raise InputError(
            f"{run}: no checkpoint names a base on a task of questions: evaluate dense and compressed together (--base)"
        )
    failures = [each for each in failures_of(state) if each.lost]
    told = document(verdicts, thresholds, failures)
    write_atomically(run / "gate.json", json.dumps(told, indent=2).encode())
    console.print(_table(verdicts))
    console.print(_legend(), highlight=False, markup=False, soft_wrap=True)
    console.print(f"\n{paragraph(verdicts)}", highlight=False, markup=False, soft_wrap=True)
    for each in failures:
        what = f"{each.checkpoint} on {each.task}" if each.task else each.checkpoint
        console.print(f"not judged: {what}: {each.reason}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"{told['verdict']}: {run / 'gate.json'}", highlight=False, markup=False, soft_wrap=True)
    if told["verdict"] == "BLOCK":
        raise typer.Exit(BLOCKED)


def _table(verdicts: Sequence[Verdict]) -> Table:
    """A row per checkpoint and task, with the pooled values, and the worst language's drop."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 0), pad_edge=False)
    table.add_column("checkpoint", overflow="fold")
    table.add_column("verdict")
    shown = {heading: name for heading, name in _SHOWN.items() if any(_value(each, name) for each in verdicts)}
    for heading in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("worst", overflow="fold")
    several = len({verdict.task for verdict in verdicts}) > 1
    for verdict in verdicts:
        name = f"{verdict.checkpoint} ({verdict.task})" if several else verdict.checkpoint
        outcome = f"[{_STYLES[verdict.outcome]}]{verdict.outcome}[/]"
        table.add_row(
            escape(name), outcome, *(_value(verdict, each) for each in shown.values()), escape(_worst(verdict))
        )
    return table


def _value(verdict: Verdict, name: str) -> str:
    """The pooled value of a criterion, with a mark where it is not well."""
    for check in verdict.of(name):
        if check.pooled and check.value is not None:
            return check.criterion.kind.shown(check.value, unit=False) + _MARKS.get(check.state, "")
    return ""


def _worst(verdict: Verdict) -> str:
    """The language that lost most open accuracy, or most of choice where open was not measured."""
    for name in ("open_drop", "choice_drop"):
        apart = [check for check in verdict.of(name) if not check.pooled and check.value is not None]
        if apart:
            worst = max(apart, key=lambda check: check.value or 0.0)
            shown = worst.criterion.kind.shown(worst.value, unit=False)
            return f"{worst.language} {shown}{_MARKS.get(worst.state, '')}"
    return ""


def _legend() -> str:
    return (
        "drop, choice: open and choice accuracy lost, in percentage points; left: open accuracy in % of the base's; "
        "flips: % of items; mc_only, lost: % of the known answers; worst: the language with the largest drop.\n"
        "! beyond its threshold; ? beyond it, perhaps by chance; ~ too few items to exclude it."
    )
