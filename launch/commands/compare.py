"""`resurface compare`: compares two runs, or a run and lm-eval's samples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evaluator.core.errors import InputError
from launch.commands.report import need_records
from launch.commands.terminal import console

if TYPE_CHECKING:
    from rich.table import Table

    from evaluator.deciding.comparison import Compared
    from evaluator.deciding.sides import Side

_STYLES = {"moved": "red", "noise": "yellow", "same": "green"}


def compare(
    run_a: Annotated[
        Path, typer.Argument(metavar="A", help="a run directory, or samples_*.jsonl of lm-eval, or a folder of them")
    ],
    run_b: Annotated[Path, typer.Argument(metavar="B", help="the same")],
    pair: Annotated[
        list[str] | None,
        typer.Option(metavar="A=B", help="a checkpoint of A and its partner in B; default: equal names"),
    ] = None,
    pair_task: Annotated[
        list[str] | None, typer.Option(metavar="A=B", help="a task of A and its partner in B; default: equal names")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="write every row to this file")] = None,
) -> None:
    """Compare two runs item by item: what moved, and is it more than noise?

    Items pair by language and id. McNemar's exact test compares scores of 0 or 1; a paired t-test that is robust to
    shared contexts compares other numbers. Holm's correction covers all comparisons of two models. Also lists settings
    that differ. Exit code 0 whatever it finds.
    """
    for path in (run_a, run_b):
        if not path.exists():
            raise InputError(f"{path}: no such file or directory")
    pairs, task_pairs = _pairs("--pair", pair or []), _pairs("--pair-task", pair_task or [])
    from evaluator.deciding.comparison import compare as compared

    found = compared(_side(run_a), _side(run_b), pairs, task_pairs)
    if csv is not None:
        from evaluator.store.csv_files import csv_bytes
        from evaluator.store.files import write_atomically

        write_atomically(csv, csv_bytes(found.frame))
    if as_json:
        print(json.dumps(_document(found)))
        return
    _print(found)


def _pairs(option: str, typed: Sequence[str]) -> Mapping[str, str]:
    """Raises InputError for anything but A=B."""
    pairs = {}
    for each in typed:
        name, equals, other = each.partition("=")
        if not (name and equals and other):
            raise InputError(f"{option}: {each!r} is not of the form A=B")
        pairs[name] = other
    return pairs


def _side(path: Path) -> Side:
    from evaluator.deciding.sides import side_of_logged, side_of_run
    from evaluator.store.lm_eval import is_logged, read_logged

    if not (path / "records").is_dir() and is_logged(path):  # a run may hold an export of itself
        return side_of_logged(read_logged(path), str(path))
    if not path.is_dir():
        raise InputError(f"{path}: neither a run directory nor a file of lm-eval's (samples_*.jsonl)")
    need_records(path)
    from evaluator.report import read_inputs

    return side_of_run(read_inputs(path), str(path))


def _document(found: Compared) -> dict[str, object]:
    rows = json.loads(found.frame.to_json(orient="records"))
    differences = [
        {"checkpoint": checkpoint, "task": task, "settings": {name: list(values) for name, values in settings.items()}}
        for (checkpoint, task), settings in found.differences.items()
    ]
    moved = {"schema_version": 1, "moved": len(found.moved), "differences": differences}
    return moved | {"notes": list(found.notes), "rows": rows}


def _print(found: Compared) -> None:
    from evaluator.metrics.columns import rows_of

    _print_differences(found)
    pooled = found.frame[found.frame["language"] == "all"]
    console.print(_table(rows_of(pooled)))
    apart = found.moved[found.moved["language"] != "all"]
    if not apart.empty:
        console.print("languages that moved:")
        console.print(_table(rows_of(apart)))
    prompts = pooled["other_prompt"].fillna(0).max()
    if prompts:
        console.print(f"prompts differ on up to {int(prompts)} items of a measure")
    console.print(_sentence(found), highlight=False, markup=False, soft_wrap=True)


def _print_differences(found: Compared) -> None:
    """Print each different setting once, with its checkpoints if they are not all."""
    about: dict[str, list[str]] = {}
    for (checkpoint, _), settings in found.differences.items():
        for name, (ours, theirs) in settings.items():
            about.setdefault(f"{name}: {ours} | {theirs}", []).append(checkpoint)
    for what, names in about.items():
        where = "" if len(names) == len(found.differences) else f" ({', '.join(dict.fromkeys(names))})"
        console.print(f"{what}{where}", highlight=False, markup=False, soft_wrap=True)
    if not about:
        console.print("no setting that both state differs")
    for note in found.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def _table(rows: Sequence[Mapping[str, object]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 0), pad_edge=False)
    for name in ("checkpoint", "measure", "where"):
        table.add_column(name, overflow="fold")
    for name in ("n", "A", "B", "only A", "only B", "p", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        verdict = str(row["verdict"])
        where = str(row["task"]) if row["language"] == "all" else f"{row['task']}, {row['language']}"
        numbers = (
            row["n"],
            *(_number(row[name]) for name in ("a", "b")),
            *(row[name] for name in ("only_a", "only_b")),
        )
        table.add_row(
            *(escape(str(each)) for each in (row["checkpoint"], row["measure"], where)),
            *(_cell(each) for each in numbers),
            _p(*(row[name] for name in ("holm_p", "mcnemar_p", "t_p"))),
            f"[{_STYLES[verdict]}]{verdict}[/]",
        )
    return table


def _number(value: object) -> str:
    return f"{float(str(value)):.3f}"


def _cell(value: object) -> str:
    return "" if str(value) in ("<NA>", "nan") else str(value)


def _p(*values: object) -> str:
    """The first number that is not missing."""
    number = next((each for each in map(float, map(str, values)) if each == each), None)
    return "" if number is None else f"{number:.3f}" if number >= 0.001 else f"{number:.0e}"


def _sentence(found: Compared) -> str:
    pooled = found.moved[found.moved["language"] == "all"]
    if found.moved.empty:
        noise = (found.frame["verdict"] == "noise").any()
        return "Nothing moved by more than noise." if noise else "Nothing differs: every score is the same."
    names = [f"{row['checkpoint']} {row['measure']}" for row in pooled.to_dict("records")]
    moved = ", ".join(names) or "single languages only"
    return f"Moved by more than noise: {moved} (McNemar exact, Holm; B minus A)."
