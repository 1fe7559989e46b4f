"""`resurface gate`: a verdict per checkpoint; `resurface screen`: the cost and
verdicts of a screened sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel
from rich.markup import escape

from evaluator.core.errors import InputError, json_text, mapping_at
from evaluator.deciding.thresholds import Screen, Thresholds, spelled, thresholds_of
from evaluator.store.run_json import need_run
from launch.commands.options import RunDirectory, as_option, grouped
from launch.commands.terminal import console, empty_table, print_plain
from launch.sweep.document import validated

if TYPE_CHECKING:
    from rich.table import Table

    from evaluator.deciding.decision import Check, Verdict


BLOCKED = 4  # exit code
_MOST_REPEATS = 100_000  # tries of a screened sweep
_MARKS = {"beyond": "!", "undecided": "?"}
_STYLES = {"PASS": "green", "WARN": "yellow", "ANOMALOUS": "magenta", "BLOCK": "red"}
_LEGEND = (
    "open, choice: accuracy lost, in percentage points; mc_only, lost: % of the known"
    " answers; all languages together. worst: the language that lost most.\n! beyond"
    " its tolerance; ? undecided."
)


def _option(model: type[BaseModel], name: str) -> Any:
    field = model.model_fields[name]
    default = "" if field.default is None else f" (default: {field.default:g})"
    return grouped("Tolerances" if model is Thresholds else "Options")(
        help=f"{field.description}{default}"
    )


def gate(
    run: RunDirectory,
    max_drop: Annotated[float | None, _option(Thresholds, "max_drop")] = None,
    max_drop_language: Annotated[
        float | None, _option(Thresholds, "max_drop_language")
    ] = None,
    max_mc_only: Annotated[float | None, _option(Thresholds, "max_mc_only")] = None,
    max_lost: Annotated[float | None, _option(Thresholds, "max_lost")] = None,
    min_recovery: Annotated[float | None, _option(Thresholds, "min_recovery")] = None,
    max_flips: Annotated[float | None, _option(Thresholds, "max_flips")] = None,
    max_delta_pr: Annotated[float | None, _option(Thresholds, "max_delta_pr")] = None,
    max_kld: Annotated[float | None, _option(Thresholds, "max_kld")] = None,
    min_ear: Annotated[float | None, _option(Thresholds, "min_ear")] = None,
    languages: Annotated[
        bool | None,
        typer.Option(
            "--per-language/--no-per-language",
            help="judge each language too (default: yes)",
        ),
    ] = None,
) -> None:
    """Judge each compressed checkpoint against its base. Exit code 4 if one is
    BLOCK, else 0.

    PASS: every loss is surely within its tolerance. BLOCK: a loss is surely beyond
    it, or settings differ. WARN: undecided. ANOMALOUS: the base only guesses, or the
    checkpoint gains over 5 points. Tolerances come from the options, then from
    `gate:` of the run's sweep file. One without a default is judged only if it is
    set. Known answers: the base says and picks them. Writes RUN/gate.json; page and
    report show the same verdict."""
    typed = {
        name: value
        for name, value in locals().items()
        if name in Thresholds.model_fields and value is not None
    }
    need_run(run)
    from evaluator.store.reading import read_run

    stated = thresholds_of(read_run(run), str(run / "run.json")).model_dump()
    if languages is False:
        stated.pop("max_drop_language", None)
    thresholds = validated(Thresholds, {**stated, **typed}, "resurface gate", as_option)
    from evaluator.core.files import write_atomically
    from evaluator.report import write_report
    from evaluator.report.notebook import OpenRun

    verdicts, told = OpenRun(run).judged(thresholds)
    write_atomically(run / "gate.json", json_text(told, indent=2).encode())
    console.print(_table(verdicts))
    lines = [
        _LEGEND,
        f"tolerances: {spelled(thresholds)}",
        f"\n{told['summary']}",
        told["words"],
    ]
    for each in told["not_judged"]:
        what = (
            f"{each['checkpoint']} on {each['task']}"
            if each["task"]
            else each["checkpoint"]
        )
        lines.append(f"not judged: {what}: {each['why']}")
    for line in (*lines, f"{told['verdict']}: {run / 'gate.json'}"):
        print_plain(line)
    if (run / "report" / "index.html").is_file():  # it shows the verdicts too
        write_report(run)
    if told["verdict"] == "BLOCK":
        raise typer.Exit(BLOCKED)


def _table(verdicts: Sequence[Verdict]) -> Table:
    """A row per checkpoint and task: each criterion over all items, and the worst
    language."""
    pooled = [
        {check.criterion.name: _shown(check) for check in each.checks if check.pooled}
        for each in verdicts
    ]
    shown = list(
        dict.fromkeys(name for each in pooled for name, value in each.items() if value)
    )
    texts = ("checkpoint", "verdict", "worst")
    table = empty_table(
        [*texts[:2], *(name.removesuffix("_drop") for name in shown), texts[2]], texts
    )
    several = len({verdict.task for verdict in verdicts}) > 1
    for verdict, values in zip(verdicts, pooled, strict=True):
        name = (
            f"{verdict.checkpoint} ({verdict.task})" if several else verdict.checkpoint
        )
        outcome = f"[{_STYLES[verdict.outcome]}]{verdict.outcome}[/]"
        table.add_row(
            escape(name),
            outcome,
            *(values.get(each, "") for each in shown),
            escape(_worst(verdict)),
        )
    return table


def _shown(check: Check) -> str:
    """A value, with a mark unless it is within its tolerance; empty if there is
    none."""
    if check.value is None:
        return ""
    return check.criterion.kind.shown(check.value, unit=False) + _MARKS.get(
        check.state, ""
    )


def _worst(verdict: Verdict) -> str:
    """The language with the largest loss of open accuracy, or of choice if the run
    has no open answers."""
    for name in ("open_drop", "choice_drop"):
        apart = [
            check
            for check in verdict.of(name)
            if not check.pooled and check.value is not None
        ]
        if apart:
            worst = max(apart, key=lambda check: check.value or 0.0)
            return f"{worst.language} {_shown(worst)}"
    return ""


def screen(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="a run directory that evaluated everything"),
    ],
    items: Annotated[int | None, _option(Screen, "items")] = None,
    seed: Annotated[int | None, _option(Screen, "seed")] = None,
    repeats: Annotated[
        int, typer.Option(min=1, max=_MOST_REPEATS, help="how often it is resampled")
    ] = 200,
    as_json: Annotated[
        bool, typer.Option("--json", help="print JSON instead of a table")
    ] = False,
) -> None:
    """Show on a finished run how many items `screen:` would have saved, and which
    verdicts it would have given.

    Resamples the run's contexts in random order and stops when the gate is sure.
    Starts no engine and writes nothing. Settings come from the options, then from
    `screen:` of the run's sweep file."""
    typed = {
        name: value
        for name, value in locals().items()
        if name in Screen.model_fields and value is not None
    }
    need_run(run)
    from evaluator.store.reading import read_run

    state = read_run(run)
    rule = validated(
        Screen,
        {**mapping_at(state, "config", "screen"), **typed},
        "resurface screen",
        as_option,
    )
    thresholds = thresholds_of(state, str(run / "run.json"))
    from evaluator.deciding.criteria import paired_of
    from evaluator.deciding.decision import replay
    from evaluator.deciding.verdicts import judge
    from evaluator.report import read_inputs

    inputs = read_inputs(run)
    rows: list[dict[str, Any]] = []
    for verdict in judge(inputs, thresholds):
        comparison = inputs.comparisons()[verdict.task, verdict.checkpoint]
        if (
            comparison.reason is not None
            or (verdict.task, verdict.checkpoint) in inputs.decided_early
        ):
            continue
        tries = replay(
            paired_of(inputs, comparison),
            thresholds,
            first=rule.items,
            repeats=repeats,
            seed=rule.seed,
        )
        row: dict[str, Any] = {
            "task": verdict.task,
            "checkpoint": verdict.checkpoint,
            "gate": verdict.outcome,
            "items": verdict.planned,
            "median_items": float(median(items for _, items in tries)),
        }
        outcomes = [outcome for outcome, _ in tries]
        for name in ("PASS", "BLOCK", "WARN"):
            row[name.lower()] = outcomes.count(name) / repeats
        rows.append(row)
    if not rows:
        raise InputError(
            f"{run}: nothing to screen: no task has a base and a compressed checkpoint"
            " with all its items"
        )
    if as_json:
        settings = {"screen": rule.model_dump(), "repeats": repeats}
        print(json_text({"schema_version": 2, **settings, "checkpoints": rows}))
        return
    numbers = ("items", "median", "PASS %", "BLOCK %", "undecided %")
    names = ("checkpoint", "gate", *numbers)
    table = empty_table(names, {"checkpoint"}, between=1)
    several = len({row["task"] for row in rows}) > 1
    for row in rows:
        name = f"{row['checkpoint']} ({row['task']})" if several else row["checkpoint"]
        counts = (f"{row['items']:,}", f"{row['median_items']:,.0f}")
        shares = (f"{100 * row[each]:.1f}" for each in ("pass", "block", "warn"))
        table.add_row(escape(name), row["gate"], *counts, *shares)
    console.print(table)
    needed = sum(row["median_items"] for row in rows)
    saved = 1 - needed / sum(row["items"] for row in rows)
    print_plain(
        f"gate: the verdict on all items; median: items that half of {repeats:,} draws"
        f" need; first look {rule.items:,} items.\nAt the median, screening saves"
        f" {100 * saved:.0f} % of the compressed checkpoints' items."
    )
