"""`resurface gate`: a verdict per checkpoint and task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.markup import escape

from evaluator.core.config import validated
from evaluator.core.errors import Document, InputError
from evaluator.core.files import write_atomically
from evaluator.deciding.policy import Policy, absent, need_known, policy_of, small
from evaluator.deciding.thresholds import FEWEST, Thresholds, Tolerances
from evaluator.store.run_json import need_run
from launch.commands.options import RunDirectories, as_option, each_known, with_fields
from launch.commands.terminal import (
    AsJson,
    console,
    empty_table,
    errors,
    print_json,
    print_plain,
    warn,
)

if TYPE_CHECKING:
    from rich.table import Table

    from evaluator.deciding.decision import Verdict
    from evaluator.report.gate_formats import Judged


BLOCKED = 4  # exit code
_STYLES = {"PASS": "green", "WARN": "yellow", "ANOMALOUS": "magenta", "BLOCK": "red"}
_LEGEND = (
    "said, picked, sample (of single samples): accuracy lost, in points; picked only,"
    " lost: % of the known answers; all languages together. worst: the language or group"
    " furthest beyond its tolerance (said, or what it names).\n! beyond its tolerance; ?"
    " undecided; + what exceeds the noise floor; ~ its tolerance is below that."
)


_TOLERANCES = [name for name in Thresholds.model_fields if name != "languages"]


@with_fields("Tolerances", Thresholds, *_TOLERANCES)
def gate(
    run: RunDirectories = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="YAML: tolerances by task, advisory tasks, required tasks",
        ),
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format", help="table, json, markdown (for a merge request), junit"
        ),
    ] = "table",
    languages: Annotated[
        bool | None,
        typer.Option(
            "--per-language/--no-per-language",
            help="judge each language too (default: yes)",
        ),
    ] = None,
    plan: Annotated[
        int | None,
        typer.Option(
            "--plan",
            min=FEWEST,
            metavar="QUESTIONS",
            help="what so many would decide, and how many a tolerance needs",
        ),
    ] = None,
    only_try: Annotated[
        bool, typer.Option("--try", help="write nothing: page and report stay")
    ] = False,
    as_json: AsJson = False,
    **typed: Any,
) -> None:
    """Judge each compressed checkpoint against its base. Exit code 4 if one is
    BLOCK, else 0. Or judge the second of two logs of lm-eval, inspect, lighteval or
    NeMo Evaluator against the first.

    PASS: every loss is surely within its tolerance. BLOCK: a loss is surely beyond
    it, or settings differ. WARN: undecided. ANOMALOUS: the base only guesses, or the
    checkpoint surely gains over 5 points. Without --policy the last policy counts, else
    `gate:` of the run's sweep file. Options replace tolerances of its `default`, and
    stay. A tolerance without a default is judged only if it is set. Known answers: the
    base says and picks them. Writes RUN/gate.json and RUN/gate.yaml, the policy; page
    and report show the same verdict."""
    typed |= {} if languages is None else {"languages": languages}
    validated(Tolerances, typed, "resurface gate", as_option)
    each_known("--format", [format], ("table", "json", "markdown", "junit"))
    if plan is not None:
        if run:
            raise InputError(f"{run[0]}: --plan takes no run, but --policy FILE")
        _planned(plan, policy_of(policy, typed), as_json=as_json)
        return
    if not run:
        raise InputError("RUN is missing: a run directory, two logs, or --plan N")
    if as_json:
        format = "json"
    if len(run) == 2 and not any(map(_may_be_run, run)):
        judged = [_judged_logs(run[0], run[1], policy, typed)]
    else:
        for path in sorted(run, key=Path.exists):  # a misspelled one first
            need_run(path)
        judged = _judged(run, policy, typed, pages=not only_try)
    from evaluator.report.gate_formats import FORMATS, worst_of

    for each in judged if not only_try else ():
        _write(each)
    worst = worst_of(judged)
    if format != "table":
        print(FORMATS[format](judged))
    else:
        for each in judged:
            _print(each, written=not only_try)
        if len(judged) > 1:
            print_plain(f"{worst}: {len(judged)} runs")
    if worst == "BLOCK":
        raise typer.Exit(BLOCKED)


def _planned(questions: int, policy: Policy, *, as_json: bool) -> None:
    from evaluator.deciding.reach import CHANGED, PLANNED, plan
    from launch.documents import Plan

    _tell(small(policy))
    rows = plan(policy.default, questions)
    for group, own in policy.groups.items():
        rows += [each | {"group": group} for each in plan(own, questions)]
    for each in rows:
        over = f"more than {PLANNED:,}" if each["percent"] else "no number of"
        equal, changed = (
            over if needs is None else f"{needs:,}"
            for needs in (each["equal_needs"], each["changed_needs"])
        )
        where = f" in {each['group']}" if "group" in each else ""
        print_plain(
            f"{each['tolerance']} {each['percent']:g}{where}: {equal} questions"
            f" if no answer changes ({questions:,} decide {_up(each['equal_shows'])}),"
            f" {changed} if {CHANGED:.0%} are lost and as many gained"
            f" ({questions:,} decide {_up(each['changed_shows'])})"
        )
    print_plain(
        "Each alone, in 9 of 10 runs. max_drop_language takes as many questions of each"
        " language, a group as many of its own; max_mc_only and max_lost take as many"
        " known answers, which the base says and picks. Questions on one context count"
        " once."
    )
    every = (policy.default, *policy.groups.values())
    left = {name for own in every for name, value in own if value is not None}
    left -= {each["tolerance"] for each in rows} | {"languages", "max_drop_language"}
    if left:
        print_plain(f"not planned: {', '.join(sorted(left))}")
    if as_json:
        print_json(Plan(questions=questions, tolerances=rows))


def _up(percent: float) -> str:
    """Rounded up: less is not decided."""
    return f"{math.ceil(10 * percent - 1e-6) / 10:.1f}"


def _may_be_run(path: Path) -> bool:
    names = ("records", "run.json")
    return not path.exists() or any((path / name).exists() for name in names)


def _judged_logs(
    base: Path, candidate: Path, file: Path | None, typed: Document
) -> Judged:
    """The logs of two models. Raises InputError if they cannot be paired."""
    from evaluator.deciding.comparison import compare
    from evaluator.deciding.log_verdicts import document_of, judge_logs
    from evaluator.deciding.logged import side_of_logged
    from evaluator.logs import read_logged
    from evaluator.report.gate_formats import Judged

    policy = policy_of(file, typed)
    _tell(small(policy))
    ours = side_of_logged(read_logged(base), str(base))
    theirs = side_of_logged(read_logged(candidate), str(candidate))
    known = set[str]()
    for side in (ours, theirs):
        known = known.union(side.names("task"), side.groups, *side.groups.values())
    need_known(policy, known, str(file))
    found = judge_logs(ours, theirs, policy)
    document = document_of(found, compare(ours, theirs, found.models), policy)
    document["not_in_this_run"] = absent(policy, known)
    return Judged(candidate, policy, found.verdicts, document)


def _judged(
    paths: Sequence[Path], file: Path | None, typed: Document, *, pages: bool
) -> list[Judged]:
    """Each run under its policy, read for its page too if it has one and `pages`.
    Raises InputError, also for a misspelled task of the policy."""
    from evaluator.report.gate_formats import Judged
    from evaluator.report.item_view import ItemView
    from evaluator.report.notebook import OpenRun

    runs = []
    for path in paths:
        shown = pages and (path / "report" / "index.html").is_file()
        runs.append(OpenRun(path, view=ItemView() if shown else None))
    if file is not None:
        known = {name for run in runs for name in run.tasks | run.groups}
        need_known(runs[0].policy(file, **typed), known, str(file))
    judged = []
    for run in runs:
        policy = run.policy(file, **typed)
        judged.append(Judged(run, policy, *run.judged(policy)))
        for note in (small(policy), *run.inputs.notes):
            _tell(note)
    return judged


def _tell(note: str) -> None:
    if note:
        warn(note, errors)


def _write(judged: Judged) -> None:
    from evaluator.report import write_report, write_verdicts

    if isinstance(judged.run, Path):  # others' logs stay as they are
        return
    policy = yaml.safe_dump(judged.policy.document, sort_keys=False)
    folder, view = judged.run.path, judged.run.view
    write_atomically(folder / "gate.yaml", policy.encode())
    write_verdicts(folder, judged.document)
    if view is not None:  # the page shows the verdicts too
        write_report(folder, inputs=judged.run.inputs, view=view)


def _print(judged: Judged, *, written: bool) -> None:
    """The table of verdicts, and the reasons."""
    document = judged.document
    console.print(_table(judged.verdicts))
    lines = [
        _LEGEND,
        f"tolerances: {judged.tolerances}",
        f"\n{document['summary']}",
        document["words"],
    ]
    for each in document["not_judged"]:
        what = " on ".join(filter(None, (each["checkpoint"], each["task"])))
        lines.append(f"not judged: {what}: {each['why']}")
    for note in document.get("notes", ()):
        lines.append(f"note: {note}")
    if absent := document.get("not_in_these_logs"):
        lines.append(f"not in these logs: {', '.join(absent)}")
    where = judged.path
    if written and not isinstance(judged.run, Path):
        policy = where / "gate.yaml"
        lines.append(f"page and `report` use these tolerances from now on ({policy})")
        where /= "gate.json"
    for line in (*lines, f"{document['verdict']}: {where}"):
        print_plain(line)


def _table(verdicts: Sequence[Verdict]) -> Table:
    from evaluator.report.gate_formats import table_of

    headings, rows = table_of(verdicts)
    table = empty_table(headings, ("checkpoint", "verdict", "worst"))
    for name, outcome, *cells in rows:
        style = _STYLES[outcome]
        table.add_row(escape(name), f"[{style}]{outcome}[/]", *map(escape, cells))
    return table
