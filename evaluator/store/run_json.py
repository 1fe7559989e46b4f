"""Rows of run.json: the failures of a run, the checkpoints' sizes and the engines'
counters.

A checkpoint, one of its tasks or one item can fail. Each failure stays listed, in
`failures` and in tables/failures.csv, until the same command succeeds with it."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from evaluator.core.config import day
from evaluator.core.errors import (
    Document,
    InputError,
    Json,
    mapping_at,
    meant,
    of_kind,
    parse,
    read_bytes,
    rows_at,
)
from evaluator.core.records import Amount, EngineStats, Seconds

if TYPE_CHECKING:
    from datetime import date
    from pathlib import Path

    import pandas as pd

Row = TypeVar("Row")
Stage = Literal["prune", "load", "evaluate", "item"]


def need_run(path: Path) -> None:
    """Raises InputError, which lists the runs beside it, if `path` is not a
    directory with records, or has folders of others."""
    if (path / "records").is_dir():
        need_own_folders(path)
        return
    if (path / "run.json").is_file():
        raise InputError(f"{path}: the run has no records yet: repeat its command")
    raise no_run(path, "records/")


def need_own_folders(run_dir: Path) -> None:
    """Raises InputError for a folder of a run that is a link to one elsewhere: what is
    written or removed there would be another's."""
    home = run_dir.resolve()
    for folder in (*run_dir.glob("*"), *run_dir.glob("*/*")):
        if folder.is_symlink() and folder.is_dir():
            target = folder.resolve()
            if not target.is_relative_to(home):
                raise InputError(
                    f"{folder}: is a link to {target}, outside the run; put the folder"
                    " itself there"
                )


def no_run(path: Path, lacking: str) -> InputError:
    """The error for what is no run directory. It suggests the run around it or of its
    name, and lists the runs in it or beside it."""
    problem, beside = f"not a run directory: it has no {lacking}", path
    if path.is_file():
        problem, beside = "a file, not a run directory", path.parent
    elif not path.is_dir():
        problem, beside = f"no such directory{meant(path)}", path.parent
    named = (
        path.parent.glob(f"*/{glob.escape(path.name)}/run.json") if path.name else ()
    )
    for file in (path.parent / "run.json", *named):
        if file.is_file():
            problem += f"; did you mean {str(file.parent)!r}?"
    runs = sorted(each.parent.name for each in beside.glob("*/run.json"))
    listed = f" (runs in {beside}: {', '.join(runs)})" if runs else ""
    return InputError(f"{path}: {problem}{listed}")


def read_run(run_dir: Path) -> Json:
    """run.json; empty if there is none. Raises InputError if it is not a JSON
    object."""
    path = run_dir / "run.json"
    if not path.exists():
        return {}
    if not path.is_file():
        raise InputError(f"{path}: is no file")
    run: Json = of_kind(parse(read_bytes(path), str(path)), dict, str(path))
    return run


def day_of(run_dir: Path) -> date | None:
    """The date that a run's prompts hold; None where none reads a date. Raises
    InputError for an unreadable one."""
    stated = mapping_at(read_run(run_dir), "config").get("date")
    try:
        return None if stated is None else day(stated)
    except ValueError as error:
        place = f"{run_dir / 'run.json'}: config.date"
        raise InputError(f"{place}: {stated!r}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Work that failed, and a row of tables/failures.csv if the run gave it up.
    Fields that do not apply are empty: a failed checkpoint has no task."""

    checkpoint: str
    stage: Stage  # the last stage that failed
    task: str = ""
    language: str = ""  # of the item
    item: str = ""
    engine: str = ""  # numbers of the engines that failed, "0, 2"
    node: str = ""  # the hosts of these engines
    attempts: int = 1
    reason: str
    mendable: bool = False  # the user can correct the cause; not in the row

    @property
    def row(self) -> Json:
        return {name: getattr(self, name) for name in COLUMNS}

    @property
    def text(self) -> str:
        name, task = self.checkpoint, self.task
        match self.stage:
            case "item":
                what = (
                    f"{name}: item {self.item!r} of {task} is recorded as engine_error"
                )
            case "prune":
                what = f"{name} could not be made"
            case "load":
                what = f"{name} cannot be used, and was set aside"
            case "evaluate":
                what = f"{name}, {task}" if task else name
                what += ": was set aside"
        return f"{what}: {self.reason}"

    @property
    def lost(self) -> bool:
        """Whether the run gave up a checkpoint or a whole task, not just one item."""
        return self.stage != "item"


COLUMNS = tuple(each.name for each in fields(Failure) if each.name != "mendable")


def failures_of(run: Document) -> list[Failure]:
    """The failures in run.json. Rows without checkpoint, stage and reason are left
    out."""
    found = []
    for row in rows_at(run, "failures"):
        if {"checkpoint", "stage", "reason"} <= row.keys():
            texts = {
                name: str(row.get(name) or "") for name in COLUMNS if name != "attempts"
            }
            attempts = row.get("attempts")
            attempts = attempts if isinstance(attempts, int) else 1
            found.append(Failure(**texts, attempts=attempts))  # type: ignore[arg-type]
    return found


def failure_frame(failures: Sequence[Failure]) -> pd.DataFrame:
    """The failures as a table, one row each."""
    import pandas as pd  # late: checking a sweep file does not need it

    return pd.DataFrame([each.row for each in failures], columns=list(COLUMNS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A checkpoint's size; None: not known."""

    name: str
    bytes: Amount  # of all tensors
    disk_bytes: Amount | None = None  # of the files that hold them
    parameters: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Served(EngineStats):
    """What one engine did for one checkpoint and task in one call, with its counters
    and its load (`LoadReport`); None: not measured."""

    engine: int = 0
    checkpoint: str
    task: str = ""  # empty: all of them, in a run of an earlier version
    seconds: Seconds | None = None  # that it worked at it, its start and load apart
    node: str = ""
    node_id: str = ""
    device: str
    gpu: str = ""
    items: Amount | None = None
    scoring: str = ""
    notes: list[str] = field(default_factory=list)
    setup: dict[str, str] = field(default_factory=dict)
    abilities: Document = field(default_factory=dict)  # of a server
    kv_scales: str | None = None

    @property
    def spent(self) -> float:
        return max(self.seconds or 0.0, 0.0)

    @property
    def gpus(self) -> int:
        """How many GPUs its engine has."""
        numbers = self.gpu.partition(": ")[2]
        return len(numbers.split(",")) if numbers else 0

    @property
    def row(self) -> Json:
        row = {each.name: getattr(self, each.name) for each in fields(self)}
        row["notes"] = [*self.notes, *self.remarks.values()]
        few = ("kv_scales", "abilities", "replaced", "repeated", "changed")
        for name in few:  # of engines
            if row[name] in (None, {}, 0):
                del row[name]
        return row


def gpu_hours(some: Sequence[Served], every: Sequence[Served]) -> float:
    """The GPU-hours of some rows. A GPU is held as long as its engine of most hours;
    `every` engine that shares it has a part of them."""
    spent: dict[str, dict[int, float]] = {}
    for each in every:
        engines = spent.setdefault(each.gpu, {})
        engines[each.engine] = engines.get(each.engine, 0.0) + each.spent
    seconds = 0.0
    for each in some:
        if each.gpus and each.spent:
            shared = spent[each.gpu].values()
            seconds += each.spent * each.gpus * max(shared) / sum(shared)
    return seconds / 3600


def price_of_hour(run: Document) -> float | None:
    """What a GPU costs in an hour, as run.json has it; None: it has no number there."""
    price = mapping_at(run, "config", "resources").get("price_per_gpu_hour")
    return price if isinstance(price, int | float) else None


def rows_as(run: Document, key: str, kind: type[Row]) -> list[Row]:
    """The rows of a list in run.json; the function skips rows that it cannot read."""
    found, reader = [], TypeAdapter(kind)
    for row in rows_at(run, key):
        with suppress(ValidationError):
            found.append(reader.validate_python(dict(row)))
    return found
