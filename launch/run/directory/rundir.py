"""A run directory as a whole: its sweep and its state, and the damaged files that
are moved aside."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.core.document import digest
from evaluator.core.errors import (
    Document,
    InputError,
    Json,
    json_text,
    mapping_at,
    redacted,
    rows_at,
)
from evaluator.core.files import csv_bytes, move_into, need_unfenced, write_atomically
from evaluator.core.lease import Lease
from evaluator.probes.item import References
from evaluator.store.cells import Cells, Name
from evaluator.store.reading import damage_of, damaged
from evaluator.store.records import RecordStore
from evaluator.store.run_json import (
    Failure,
    Served,
    failure_frame,
    failures_of,
    need_own_folders,
    read_run,
    rows_as,
)
from evaluator.store.schema import VERDICT_COLUMNS
from launch.provenance import provenance
from launch.run.decide.assignments import BaseSource
from launch.run.directory.keys import Keys
from launch.run.directory.lock import nearest_existing
from launch.run.events import State, Tell
from launch.sweep.config import SCHEMA_VERSION

if TYPE_CHECKING:
    from launch.sweep.preflight import Prepared

REFERENCES = "references"
AGAIN = ".again"  # beside a folder of distributions that are made again
_NAMED = 3  # damaged parts in a warning


def open_run(
    prepared: Prepared, run_dir: Path, lock: Lease | None = None
) -> RunDirectory:
    """The directory of a run, while its `lock` is held; None: to check it alone.
    Raises InputError as RunDirectory does."""

    directory = RunDirectory(
        run_dir,
        lock,
        prepared.identity,
        prepared.config.model_dump(mode="json"),
        prepared.disk_bytes,
    )
    asked = {(name, t.name) for name, tasks in prepared.asked.items() for t in tasks}
    aside = {failure.checkpoint for failure in prepared.unusable}
    asked |= {cell.name for cell in directory.cells if cell.checkpoint in aside}
    directory.cells.begin(asked, Keys(prepared).ends())
    return directory


class RunDirectory:
    """The directory of one sweep, created or reopened, while its lock is held."""

    def __init__(
        self,
        path: Path,
        lock: Lease | None,
        identity: Document,
        config: Document,
        needed_bytes: int,
    ) -> None:
        """Writes nothing. `identity`: what run.json tells of the sweep's cells. Those
        of earlier calls stay as long as `cells` has them.

        Raises InputError if the directory belongs to something else or has the earlier
        layout, or if it is new and fewer than `needed_bytes` are free."""
        need_own_folders(path)
        self.path = path
        self._document: Json = {
            "schema_version": SCHEMA_VERSION,
            "digest": digest(identity),
            "identity": identity,
            "config": _hidden(config),
            "provenance": _hidden(provenance()),
            "state": "running",
        }
        self._lock = lock
        self._before = need_version(path)
        free = shutil.disk_usage(nearest_existing(path)).free
        if not self._before and free < needed_bytes:
            raise InputError(
                f"{path}: --out: the disk has {free / 2**20:,.0f} MiB free, the run"
                f" needs about {needed_bytes / 2**20:,.0f} MiB"
            )
        self.cells = Cells(path)
        self._served: Sequence[Served] = ()  # in this call
        self._earlier_rows = rows_at(self._before, "engine_stats")
        self.earlier_served = rows_as(self._before, "engine_stats", Served)
        self.earlier_failures = failures_of(self._before)
        self.reused = rows_at(self._before, "reused")
        if "measured" in self._before:
            self._document["measured"] = self._before["measured"]
        settings = mapping_at(self._before, "config")
        # a changed policy of the sweep is newer than that of the last `gate`
        if lock and mapping_at(settings, "gate") != mapping_at(config, "gate"):
            for name in ("gate.yaml", "gate.json"):
                (self.path / name).unlink(missing_ok=True)

    def mark(
        self, state: State, *, engine_stats: Sequence[Served] | None = None, **more: Any
    ) -> None:
        """Write run.json with this state and `more` fields; `engine_stats` follow
        those of earlier calls, and stay until this call gives others."""
        self._served = self._served if engine_stats is None else engine_stats
        if self._served:
            now = datetime.now(UTC)
            self._document["measured"] = now.isoformat(timespec="minutes")
        rows = [*self._earlier_rows, *self._served]
        self._document |= {"state": state, "engine_stats": rows}
        served = (*self.earlier_served, *self._served)
        able = {row.checkpoint: row.abilities for row in served}
        engines = [
            {"checkpoint": name, "abilities": found}
            for name, found in able.items()
            if found
        ]
        if engines:
            self._document["engines"] = engines
        for name, value in more.items():
            self._document[name] = redacted(value) if isinstance(value, str) else value
        planned = mapping_at(self._document, "planned")
        others = {
            cell.name
            for cell in self.cells
            if cell.task not in planned.get(cell.checkpoint, ())
        }
        document = with_cells(self._document, self._before, others)
        text = json_text(document, indent=2, default=_plain)
        write_atomically(self.path / "run.json", text.encode())

    def note_failures(self, failures: Sequence[Failure]) -> None:
        """Store all failures of the run in run.json and in failures.csv, which does not
        exist without any."""
        self.mark("running", failures=failures)
        table = self.path / "tables" / "failures.csv"
        if failures:
            write_atomically(table, csv_bytes(failure_frame(failures)))
        else:
            need_unfenced(table)
            table.unlink(missing_ok=True)

    def check(self) -> None:
        """Raises LeaseLost once this process knows that another driver has taken
        over the directory. Cheap."""
        assert self._lock is not None
        self._lock.need_unlost()


# sections of run.json, and of its identity, by checkpoint, and some by task
_SECTIONS = {"planned", "seeds", "differences"}, {"tasks", "task_settings", "bases"}


def with_cells(now: Json, before: Document, cells: Collection[Name]) -> Json:
    """run.json with what `before` says of other cells."""
    joined = {**now, "identity": {**mapping_at(now, "identity")}}
    places = (joined, before), (joined["identity"], mapping_at(before, "identity"))
    for names, (into, source) in zip(_SECTIONS, places, strict=True):
        for name in names & source.keys():
            section = _only(source[name], cells)
            for checkpoint, row in mapping_at(into, name).items():
                if isinstance(row, Mapping):
                    row = {**section.get(checkpoint, {}), **row}
                section[checkpoint] = row
            order = _joined_order([*into[name]], source[name])
            into[name] = {each: section[each] for each in order if each in section}
    most: Counter[str] = Counter()  # items of each task
    for tasks in mapping_at(now, "planned").values():
        most |= Counter(tasks)
    for name, task in cells:  # a control asks fewer
        if task in most and task in mapping_at(joined, "planned", name):
            row = joined["planned"][name]
            row[task] = min(row[task], most[task])
    names = {checkpoint for checkpoint, _ in cells} - {*mapping_at(now, "planned")}
    others = [row for row in rows_at(before, "checkpoints") if row.get("name") in names]
    return joined | {"checkpoints": [*now.get("checkpoints", ()), *others]}


def _joined_order(now: list[str], before: Iterable[str]) -> list[str]:
    """The names of now, with each other one behind the name that it followed."""
    place = 0
    for name in before:
        if name not in now:
            now.insert(place, name)
        place = now.index(name) + 1
    return now


def forget_left_out(run_dir: Path, cells: Cells) -> None:
    """Remove from run.json and keys.json what the last sweep does not name. Raises
    InputError for a run of another version."""
    document, gone = need_version(run_dir), cells.left_out
    kept = {
        (name, task)
        for name, tasks in mapping_at(document, "planned").items()
        for task in tasks
        if (name, task) not in gone
    }
    identity = document["identity"] = {**mapping_at(document, "identity")}
    for names, place in zip(_SECTIONS, (document, identity), strict=True):
        for name in names & place.keys():
            place[name] = _only(place[name], kept)
    names = {name for name, _ in kept}
    rows = rows_at(document, "checkpoints")
    document["checkpoints"] = [row for row in rows if row.get("name") in names]
    text = json_text(document, indent=2)
    write_atomically(run_dir / "run.json", text.encode())
    cells.drop_left_out()
    cells.save()


def _only(section: Document, cells: Collection[Name]) -> Json:
    """What a section says of some cells."""
    found: Json = {}
    for name, task in sorted(cells):
        row = section.get(name)
        if isinstance(row, Mapping):
            if task in row:
                found.setdefault(name, {})[task] = row[task]
        elif name in section:
            found[name] = row
    return found


def _hidden(document: Document) -> Json:
    """JSON without secrets."""
    hidden: Json = json.loads(redacted(json_text(document, default=str)))
    return hidden


def _plain(value: Any) -> Any:
    """What JSON has no form for, as a row or a text."""
    if isinstance(value, Failure | Served):
        return value.row
    return asdict(value) if is_dataclass(value) else str(value)  # type: ignore[arg-type]


def need_version(path: Path) -> Json:
    """run.json; empty if there is none. Raises InputError for that of another
    version."""
    file, found = path / "run.json", read_run(path)
    if file.exists() and not isinstance(found.get("digest"), str):
        raise InputError(
            f"{file}: digest: missing; this is not a run directory of Resurface"
        )
    if not found:
        return {}
    known = found.get("schema_version")
    if known == 1:
        raise InputError(
            f"{file}: schema_version: 1 is the layout of an earlier Resurface:"
            " `resurface report` reads it; evaluate into a new --out"
        )
    if known != SCHEMA_VERSION:
        raise InputError(
            f"{file}: schema_version: {known} was written by another version of"
            f" Resurface (this one writes {SCHEMA_VERSION}); use a new --out"
        )
    return found


def references_of(
    run_dir: Path, key: str, path: Path, base: BaseSource | None, kept: Collection[str]
) -> References:
    """The distributions of the cell under `key`, of the checkpoint at `path`. `base`:
    as in Assignment, with its directory; `kept`: the keys that are compared with."""

    def folder(key: str) -> str:
        return str(reference_folder(run_dir, key)) if key else ""

    if base is None:
        return References(compare=folder(key), keep=folder(key), base=str(path))
    return References(
        compare=folder(base.key),
        keep=folder(key) if key in kept else "",
        missing=base.missing,
        base=base.path,
    )


def reference_folder(run_dir: Path, key: str) -> Path:
    return (run_dir / REFERENCES / key).absolute()


def kept_whole(run_dir: Path, key: str) -> bool:
    """Whether the distributions of all records under a key are there."""
    folder = reference_folder(run_dir, key)
    return folder.is_dir() and not folder.with_suffix(AGAIN).exists()


def drop_references(run_dir: Path, *, all: bool) -> None:
    """Remove all distributions that can be removed, or the marks of those that were
    made again. Raises ResurfaceError if another driver has the directory."""
    folder = run_dir / REFERENCES
    need_unfenced(folder)
    if all:
        shutil.rmtree(folder, ignore_errors=True)
    for mark in folder.glob(f"*{AGAIN}"):
        mark.unlink(missing_ok=True)


def set_damaged_aside(
    store: RecordStore, run_dir: Path, warn: Tell = lambda text: None
) -> None:
    """Move unreadable parts aside, with a warning. Raises InputError, or
    ResurfaceError if another driver took over."""
    found = damaged(store)
    if not found:
        return
    for path in found:
        store.set_aside(path)
    named = [f"{path} ({why})" for path, why in list(found.items())[:_NAMED]]
    more = f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    parts, its = "1 part is", "its"
    if len(found) > 1:
        parts, its = f"{len(found)} parts are", "their"
    warn(
        f"{parts} damaged, and moved to {run_dir / 'damaged'}: {', '.join(named)}{more};"
        f" {its} items are evaluated again"
    )


def set_verdicts_aside(run_dir: Path, matcher: str, warn: Tell) -> None:
    """Move aside a matcher's unreadable verdicts, which it then judges again. Raises
    InputError on OSError."""
    for path in sorted((run_dir / "verdicts" / matcher).rglob("*.parquet")):
        if (why := damage_of(path, VERDICT_COLUMNS, VERDICT_COLUMNS)) is not None:
            target = move_into(
                run_dir / "damaged" / path.relative_to(run_dir).parent, path
            )
            warn(
                f"{path} is damaged ({why}), and moved to {target}; this command"
                " judges again"
            )
