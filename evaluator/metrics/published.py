"""The paper's published numbers beside ours, if the setting is the same; always
marked as the paper's.

`paper_values.yaml` holds the numbers, each with its setting and the cell of our tables
that it belongs to. It also has the rule that decides whether a setting of ours is the
paper's. A number from another setting is no comparison, and is not shown."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import PurePath

import pandas as pd
import yaml

from evaluator.core.errors import Document, Json, rows_at
from evaluator.metrics.columns import COUNT, TEXT, Kind, Row, rows_with, typed_frame
from evaluator.metrics.comparable import settings_of
from evaluator.metrics.items import ALL, MEAN

# Each row has its own kind: that of the column `quantity` in the table `table` (see
# `report.cells`).
QUANTITY = Kind("quantity", lambda value: f"{float(value):.3g}")
COLUMNS = (
    *TEXT("table", "task", "checkpoint", "language", "cell", "quantity"),
    *QUANTITY("paper"),
    *QUANTITY.estimates("ours"),
    *COUNT("n"),
    *TEXT("source"),
)


def published(tables: Mapping[str, Sequence[Row]], run: Document) -> pd.DataFrame:
    """One row per number of the paper with the setting of `run` (its run.json) and
    of a row of `tables`."""
    rows: list[Row] = []
    for entry in paper()["values"]:
        setting = paper()["settings"][entry["setting"]]
        equal = {"task": setting["task"], **entry["where"]}
        for row in rows_with(tables.get(entry["table"], ()), equal):
            known = row[entry["column"]] is not None
            if known and is_paper_setting(row, entry["side"], setting, run):
                rows.append(_beside(entry, row))
    return typed_frame(COLUMNS, rows)


def _beside(entry: Row, row: Row) -> Row:
    """The paper's number and ours."""
    column, source = entry["column"], entry["source"]
    cell = [
        str(value)
        for name, value in entry["where"].items()
        if name not in ("language", "kind")
    ]
    n = row.get("n", row.get("n_max"))
    return {
        "table": entry["table"],
        "task": row["task"],
        "checkpoint": row["checkpoint"],
        "language": row["language"],
        "cell": ", ".join(cell),
        "quantity": column,
        "paper": float(entry["value"]),
        "ours": float(row[column]),
        "ours_low": row.get(f"{column}_low"),
        "ours_high": row.get(f"{column}_high"),
        "n": row["known"] if column.endswith("_dissociation") else n,
        "source": (
            f"{paper()['paper']}, {'section ' if source[0].isdigit() else ''}{source}"
        ),
    }


@cache
def paper() -> Json:
    """The content of paper_values.yaml, which lies beside the recipes."""
    file = files("launch").joinpath("recipes", "paper_values.yaml")
    content: Json = yaml.safe_load(file.read_text(encoding="utf-8"))
    return content


def is_paper_setting(row: Row, side: str, setting: Row, run: Document) -> bool:
    """Whether a table's row was measured in a setting of the paper."""
    dense = row["base"] is None
    if dense != (side == "dense") or not (dense or _same_pruning(row, setting)):
        return False
    pattern = re.compile(paper()["models"][setting["model"]], re.IGNORECASE)
    model = str(row["checkpoint"] if dense else row["base"])
    if not any(pattern.fullmatch(name) for name in model_names(run, model)):
        return False
    if settings_of(run, model, row["task"]).get("options", "any") != "any":
        return False
    asked = []
    for sweep in _sweeps_of(run, model):
        for task in rows_at(sweep, "tasks"):
            if str(task.get("task", "")).partition(":")[0] == setting["task"]:
                asked.append(task)
    pooled = row["language"] in (ALL, MEAN)
    for task in asked:
        if pooled and task.get("languages") is not None:
            return False
        if (task.get("items"), task.get("chat")) != (setting["items"], setting["chat"]):
            return False
    return bool(asked)


def _same_pruning(row: Row, setting: Row) -> bool:
    sparsity = row["requested_sparsity"]
    if sparsity is None:
        sparsity = row["sparsity"]
    names = ("method", "pattern", "sparsity")
    if (row["method"], row["pattern"], sparsity) != tuple(
        setting[name] for name in names
    ):
        return False
    calibration = str(row["calibration"] or "")
    return re.fullmatch(setting["calibration"], calibration) is not None


def model_names(run: Document, checkpoint: str) -> set[str]:
    """The names of a dense checkpoint in run.json: its key, and the last part of its
    path or hub id."""
    paths = [sweep["models"][checkpoint] for sweep in _sweeps_of(run, checkpoint)]
    names = {checkpoint} if paths else set()
    for row in rows_at(run, "checkpoints"):
        if row.get("name") == checkpoint:
            paths.append(row.get("path"))
    for path in filter(None, paths):
        path = PurePath(str(path))
        names.add(path.name)
        for part in path.parts:
            if part.startswith("models--"):
                names.add(part.rsplit("--", 1)[-1])
    return names


def _sweeps_of(run: Document, model: str) -> list[Document]:
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
