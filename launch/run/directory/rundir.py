"""A run directory as a whole: its sweep and its state, and the damaged files that
are moved aside."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.core.document import digest
from evaluator.core.errors import (
    Document,
    InputError,
    Json,
    ResurfaceError,
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
from evaluator.store.run_json import failure_frame, need_own_folders, read_run
from evaluator.store.schema import VERDICT_COLUMNS
from launch.provenance import provenance
from launch.run.decide.assignments import BaseSource
from launch.run.directory.keys import Keys
from launch.run.directory.lock import nearest_existing
from launch.run.events import End, Evaluated, Event, Planned, Tell
from launch.run.state import RunState
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
        # what the sweep states in run.json
        self.stated: Json = {
            "schema_version": SCHEMA_VERSION,
            "digest": digest(identity),
            "identity": identity,
            "config": _hidden(config),
            "provenance": _hidden(provenance()),
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
        settings = mapping_at(self._before, "config")
        # a changed policy of the sweep is newer than that of the last `gate`
        if lock and mapping_at(settings, "gate") != mapping_at(config, "gate"):
            for name in ("gate.yaml", "gate.json"):
                (self.path / name).unlink(missing_ok=True)

    def write(self, state: RunState) -> None:
        """Write run.json and failures.csv, which does not exist without any."""
        planned = mapping_at(self.stated, "planned")
        others = {
            cell.name
            for cell in self.cells
            if cell.task not in planned.get(cell.checkpoint, ())
        }
        document = with_cells(self.stated | state.document, self._before, others)
        text = json_text(document, indent=2, default=_plain)
        write_atomically(self.path / "run.json", text.encode())
        table = self.path / "tables" / "failures.csv"
        if state.failures:
            write_atomically(table, csv_bytes(failure_frame(state.failures)))
        else:
            need_unfenced(table)
            table.unlink(missing_ok=True)

    def on(self, event: Event, state: RunState) -> None:
        """Write how a sweep begins and ends; how its call ends, if that is possible."""
        match event:
            case End():
                with suppress(OSError, ResurfaceError):
                    self.write(state)
            case Planned() | Evaluated():
                self.write(state)

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
    """What a section says of some cells, in its order."""
    found: Json = {}
    names = {name for name, _ in cells}
    for name, row in section.items():
        if not isinstance(row, Mapping):
            if name in names:
                found[name] = row
        elif kept := {task: row[task] for task in row if (name, task) in cells}:
            found[name] = kept
    return found


def _hidden(document: Document) -> Json:
    """JSON without secrets."""
    hidden: Json = json.loads(redacted(json_text(document, default=str)))
    return hidden


def _plain(value: Any) -> Any:
    """What JSON has no form for, as a row or a text."""
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
