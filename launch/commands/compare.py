"""`resurface compare`: compares two runs, or another program's logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from evaluator.core.errors import InputError, meant
from launch.commands.options import runs
from launch.commands.terminal import (
    AsJson,
    console,
    empty_table,
    print_json,
    print_plain,
)

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from evaluator.deciding.comparison import Compared

_STYLES = {"moved": "red", "noise": "yellow", "same": "green"}
_NULL = ("<NA>", "nan", "None")


def compare(
    run_a: Annotated[
        Path,
        typer.Argument(
            metavar="A",
            help="a run directory, or logs of lm-eval, inspect, lighteval or NeMo"
            " Evaluator: a file, or a folder",
            autocompletion=runs,
        ),
    ],
    run_b: Annotated[
        Path, typer.Argument(metavar="B", help="another run, as A", autocompletion=runs)
    ],
    pair: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A=B",
            help="a checkpoint of A and its partner in B; default: equal names",
        ),
    ] = None,
    pair_task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A=B", help="a task of A and its partner in B; default: equal names"
        ),
    ] = None,
    as_json: AsJson = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="write every row to this file")
    ] = None,
) -> None:
    """Compare two runs item by item: what moved, and is it more than noise?

    Items pair by language and by what was asked: changed questions never pair.
    McNemar's exact test compares scores of 0 or 1; a paired t-test compares other
    numbers and repeated questions, and counts the items of one context as a group. The p values of two
    models' comparisons are corrected for their number (Holm). Also lists settings
    and data that differ. Exit code 0 whatever it finds."""
    for path in (run_a, run_b):
        if not path.exists():
            raise InputError(f"{path}: no such file or directory{meant(path)}")
    pairs = _pairs("--pair", pair or [])
    task_pairs = _pairs("--pair-task", pair_task or [])
    from evaluator.deciding.comparison import compare as compared
    from evaluator.report.notebook import side_at

    found = compared(side_at(run_a), side_at(run_b), pairs, task_pairs)
    if csv is not None:
        from evaluator.core.files import csv_bytes, write_atomically

        write_atomically(csv, csv_bytes(found.frame), named=True)
    if as_json:
        from evaluator.metrics.columns import plain_rows
        from launch.documents import Compared as Document

        document = Document(
            moved=len(found.moved),
            differences=found.stated,
            notes=found.notes,
            rows=plain_rows(found.frame),
        )
        print_json(document)
        return
    _print(found)


def _pairs(option: str, typed: Sequence[str]) -> Mapping[str, str]:
    """Raises InputError for anything but A=B."""
    pairs = dict[str, str]()
    for each in typed:
        name, equals, other = each.partition("=")
        if not (name and equals and other):
            raise InputError(f"{option}: {each!r} is not of the form A=B")
        if pairs.setdefault(name, other) != other:
            raise InputError(f"{option}: {name!r} is in two pairs")
    return pairs


def _print(found: Compared) -> None:
    about: dict[str, list[str]] = {}  # each different setting, with its checkpoints
    for (checkpoint, _), settings in found.differences.items():
        for name, (ours, theirs) in settings.items():
            about.setdefault(f"{name}: {ours} | {theirs}", []).append(checkpoint)
    for what, names in about.items():
        if len(names) < len(found.differences):
            what = f"{what} ({', '.join(dict.fromkeys(names))})"
        print_plain(what)
    if not about:
        console.print("no setting that both state differs")
    for note in found.notes:
        print_plain(note)
    pooled = found.frame[found.frame["language"] == "all"]
    console.print(_table(pooled))
    apart = found.moved[found.moved["language"] != "all"]
    if not apart.empty:
        console.print("languages that moved:")
        console.print(_table(apart))
    other = pooled[pooled["other_prompt"].fillna(0) > 0]
    if not other.empty:
        asked = [*other["measure"].unique()]
        what = "prompts or options" if "choice" in asked else "prompts"
        most = int(other["other_prompt"].max())
        print_plain(f"{what} differ on up to {most} items of {', '.join(asked)}")
    if not found.moved.empty:
        rows = found.moved[found.moved["language"] == "all"].to_dict("records")
        moved = ", ".join(f"{row['checkpoint']} {row['measure']}" for row in rows)
        moved = moved or "single languages only"
        holm = ", Holm" if found.moved["holm_p"].notna().any() else ""
        print_plain(
            f"Moved by more than noise: {moved} (paired tests{holm}; B minus A)."
        )
    elif (found.frame["verdict"] == "noise").any():
        print_plain("Nothing moved by more than noise.")
    else:
        print_plain("Nothing differs: every score is the same.")


def _table(frame: pd.DataFrame) -> Table:
    from evaluator.metrics.columns import P_VALUE, rows_of

    texts = ("checkpoint", "measure", "where")
    table = empty_table([*texts, "n", "A", "B", "only A", "only B", "p", ""], texts)
    for row in rows_of(frame):
        where = row["task"]
        if row["language"] != "all":
            where = f"{where}, {row['language']}"
        cells = [
            escape(str(each)) for each in (row["checkpoint"], row["measure"], where)
        ]
        scores = [f"{float(str(row[name])):.3f}" for name in ("a", "b")]
        for each in (row["n"], *scores, row["only_a"], row["only_b"]):
            cells.append("" if str(each) in _NULL else str(each))
        ps = [float(str(row[name])) for name in ("holm_p", "mcnemar_p", "t_p")]
        # the first that is not missing
        p = next((each for each in ps if each == each), None)
        cells.append("" if p is None else P_VALUE.shown(p))
        table.add_row(*cells, f"[{_STYLES[str(row['verdict'])]}]{row['verdict']}[/]")
    return table
