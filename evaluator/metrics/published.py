"""The paper's published numbers beside ours, if the setting is the same; always
marked as the paper's.

`paper.json` holds the numbers, each with its setting and the cell of our tables that
it belongs to. It also has the rule that decides whether a setting of ours is the
paper's. A number from another setting is no comparison, and is not shown."""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Any

import pandas as pd

import evaluator.metrics.columns as col
from evaluator.core.errors import rows_at
from evaluator.metrics.columns import Column, Kind, Row, typed_frame
from evaluator.metrics.inputs import ALL, MEAN, rows_where, settings_of

# Each row has its own kind: that of the column `quantity` in the table `table` (see
# `report.cells`).
QUANTITY = Kind("quantity", lambda value: f"{float(value):.3g}")
COLUMNS = (
    *col.TEXT("table", "task", "checkpoint", "language", "cell", "quantity"),
    Column("paper", QUANTITY),
    Column("ours", QUANTITY, interval=True),
    Column("n", col.COUNT),
    Column("source", col.TEXT),
)


def published(
    tables: Mapping[str, pd.DataFrame], run: Mapping[str, Any]
) -> pd.DataFrame:
    """One row per number of the paper with the setting of `run` (its run.json) and
    of a row of `tables`."""
    rows: list[Row] = []
    for entry in paper()["values"]:
        setting, column, source = (
            paper()["settings"][entry["setting"]],
            entry["column"],
            entry["source"],
        )
        if entry["table"] not in tables:
            continue
        named = [
            str(value)
            for name, value in entry["where"].items()
            if name not in ("language", "kind")
        ]
        for _, row in rows_where(
            tables[entry["table"]], {"task": setting["task"], **entry["where"]}
        ).iterrows():
            if pd.isna(row[column]) or not _same(row, entry["side"], setting, run):
                continue
            found = {
                "table": entry["table"],
                **{name: row[name] for name in ("task", "checkpoint", "language")},
                "cell": ", ".join(named),
                "quantity": column,
                "paper": float(entry["value"]),
                "ours": float(row[column]),
                **{
                    f"ours_{end}": row.get(f"{column}_{end}") for end in ("low", "high")
                },
                "n": (
                    row["known"]
                    if column.endswith("_dissociation")
                    else row.get("n", row.get("n_max"))
                ),
                "source": (
                    f"{paper()['paper']},"
                    f" {'section ' if source[0].isdigit() else ''}{source}"
                ),
            }
            rows.append(found)
    return typed_frame(COLUMNS, rows)


@cache
def paper() -> dict[str, Any]:
    """The content of paper.json."""
    content: dict[str, Any] = json.loads(
        files("evaluator.metrics").joinpath("paper.json").read_text(encoding="utf-8")
    )
    return content


def _same(row: pd.Series, side: str, setting: Row, run: Mapping[str, Any]) -> bool:
    """Whether a table's row was measured in a setting of the paper."""
    dense = pd.isna(row["base"])
    if row["task"] != setting["task"] or dense != (side == "dense"):
        return False
    requested = (
        row["sparsity"]
        if pd.isna(row["requested_sparsity"])
        else row["requested_sparsity"]
    )
    if not dense and not (
        (row["method"], row["pattern"], requested)
        == (setting["method"], setting["pattern"], setting["sparsity"])
        and pd.notna(row["calibration"])
        and re.fullmatch(setting["calibration"], str(row["calibration"]))
    ):
        return False
    pattern = re.compile(paper()["models"][setting["model"]], re.IGNORECASE)
    model = str(row["checkpoint"] if dense else row["base"])
    named = any(pattern.fullmatch(name) for name in model_names(run, model))
    if not named or settings_of(run, model, row["task"]).get("options", "any") != "any":
        return False
    asked = [
        task
        for sweep in _sweeps_of(run, model)
        for task in rows_at(sweep, "tasks")
        if str(task.get("task", "")).partition(":")[0] == setting["task"]
    ]
    whole = row["language"] not in (ALL, MEAN) or all(
        task.get("languages") is None for task in asked
    )
    wanted = (setting["items"], setting["chat"])
    return (
        bool(asked)
        and whole
        and all((task.get("items"), task.get("chat")) == wanted for task in asked)
    )


def model_names(run: Mapping[str, Any], checkpoint: str) -> set[str]:
    """The names of a dense checkpoint in run.json: its key, and the last part of its
    path or hub id."""
    named = [sweep["models"][checkpoint] for sweep in _sweeps_of(run, checkpoint)]
    names = {checkpoint} if named else set()
    named += [
        each.get("path")
        for each in rows_at(run, "checkpoints")
        if each.get("name") == checkpoint
    ]
    for path in filter(None, named):
        names.add(PurePath(str(path)).name)
        names |= {
            part.rsplit("--", 1)[-1]
            for part in PurePath(str(path)).parts
            if part.startswith("models--")
        }
    return names


def _sweeps_of(run: Mapping[str, Any], model: str) -> list[Mapping[str, Any]]:
    """The sweep and its included sweeps, if they name this model."""
    found, waiting = [], [run.get("config")]
    while waiting:
        sweep = waiting.pop()
        if isinstance(sweep, Mapping):
            waiting += rows_at(sweep, "include")
            models = sweep.get("models")
            if isinstance(models, Mapping) and model in models:
                found.append(sweep)
    return found
