"""A run directory as a whole: its sweep and its state, and the damaged files that
are moved aside."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

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
from evaluator.probes import PROBES
from evaluator.probes.item import References
from evaluator.store.reading import damage_of
from evaluator.store.records import RecordStore
from evaluator.store.run_json import (
    Failure,
    Served,
    failure_frame,
    failures_of,
    need_own_folders,
    rows_as,
)
from evaluator.store.schema import VERDICT_COLUMNS
from launch.provenance import provenance
from launch.run.decide.assignments import BaseSource, key_of
from launch.run.directory.identity import continued
from launch.run.directory.lock import nearest_existing
from launch.run.events import Part, State, Tell
from launch.sweep.config import SCHEMA_VERSION
from launch.sweep.jobs import CheckpointJob, Jobs

if TYPE_CHECKING:
    from launch.sweep.preflight import Prepared
    from launch.sweep.prepared_tasks import Asked

REFERENCES = "references"
_NAMED = 3  # damaged parts in a warning


def open_run(
    prepared: Prepared, run_dir: Path, lock: Lease | None = None
) -> RunDirectory:
    """The directory of a run, while its `lock` is held; None: to check it alone.
    Raises InputError as RunDirectory does."""

    return RunDirectory(
        run_dir,
        lock,
        prepared.identity,
        prepared.config.model_dump(mode="json"),
        prepared.disk_bytes,
        store=RecordStore(run_dir),
        asked=prepared.asked,
    )


class RunDirectory:
    """The directory of one sweep, created or reopened, while its lock is held."""

    def __init__(
        self,
        path: Path,
        lock: Lease | None,
        identity: Document,
        config: Document,
        needed_bytes: int,
        *,
        store: RecordStore | None = None,
        asked: Asked = MappingProxyType({}),
    ) -> None:
        """Writes nothing. `identity` is all that the records depend on; `asked` are
        its tasks. Cells of earlier calls stay (`identity.py`), from their first record
        on: a checkpoint's task without one is forgotten.

        A model's weights may differ from an earlier call only if the model failed
        and none of its items is measured in `store`: it is then `mended`.

        Raises InputError if a cell of an earlier call has other settings, if the
        directory belongs to something else, or if it is new and fewer than
        `needed_bytes` are free."""
        need_own_folders(path)
        self.path = path
        self._document: Json = {
            "schema_version": SCHEMA_VERSION,
            "digest": digest(identity),
            "identity": identity,
            "config": _hidden(config),
            "provenance": _hidden(provenance()),
            "state": "running",
            "started": datetime.now(UTC).isoformat(timespec="minutes"),
        }
        self._lock = lock
        self.mended: tuple[str, ...] = ()
        before = _read(self.path)
        if before is None:
            self._need_room(needed_bytes)
            before = {}
        else:
            if store is not None:
                _forget_unbegun(before, store.holds)
            self._go_on_from(before, store, asked)
        self._served: Sequence[Served] = ()  # in this call
        self._earlier_rows = rows_at(before, "engine_stats")
        self.earlier_served = rows_as(before, "engine_stats", Served)
        self.earlier_failures = failures_of(before)
        self.was_ended = before.get("state") == "finished_with_failures"
        for name in (
            "started",
            "planned",
            "seeds",
            "differences",
            "checkpoints",
            "reused",
        ):
            if name in before:
                self._document[name] = before[name]
        settings = mapping_at(before, "config")
        # a changed policy of the sweep is newer than that of the last `gate`
        if lock and mapping_at(settings, "gate") != mapping_at(config, "gate"):
            for name in ("gate.yaml", "gate.json"):
                (self.path / name).unlink(missing_ok=True)

    def _need_room(self, needed: int) -> None:
        free = shutil.disk_usage(nearest_existing(self.path)).free
        if free < needed:
            raise InputError(
                f"{self.path}: --out: the disk has {free / 2**20:,.0f} MiB free, the"
                f" run needs about {needed / 2**20:,.0f} MiB"
            )

    def _go_on_from(
        self, before: Json, store: RecordStore | None, asked: Asked
    ) -> None:
        """Take over the identity of an earlier call's run.json, after the checks."""
        file = self.path / "run.json"
        _need_version(file, before)
        failed = {each.checkpoint for each in failures_of(before)}
        stored, now = before["identity"], self._document["identity"]
        models, earlier = now["models"], mapping_at(stored, "models")
        self.mended = tuple(
            name
            for name in models
            if name in failed
            and not _measured(store, name)
            and earlier.get(name, models[name]) != models[name]
        )
        for name in self.mended:
            stored["models"][name] = models[name]
        if stored and before["digest"] != self._document["digest"]:
            now = continued(file, stored, now, asked)
        self._document |= {"digest": digest(now), "identity": now}

    def mark(
        self, state: State, *, engine_stats: Sequence[Served] | None = None, **more: Any
    ) -> None:
        """Write run.json with this state and `more` fields; `engine_stats` follow
        those of earlier calls, and stay until this call gives others."""
        self._served = self._served if engine_stats is None else engine_stats
        rows = [*self._earlier_rows, *self._served]
        self._document |= {"state": state, "engine_stats": rows}
        able = {}
        for row in (*self.earlier_served, *self._served):
            able[row.checkpoint] = row.abilities
        engines = []
        for name, found in able.items():
            if found:
                engines.append({"checkpoint": name, "abilities": found})
        if engines:
            self._document["engines"] = engines
        for name, value in more.items():
            if keep := _KEPT.get(name):
                value = keep(self._document.get(name), value)
            self._document[name] = redacted(value) if isinstance(value, str) else value
        text = json_text(self._document, indent=2, default=_plain)
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


def _measured(store: RecordStore | None, name: str) -> bool:
    """Also where records cannot be read."""
    try:
        return store is None or store.measured(name)
    except InputError:
        return True


def _forget_unbegun(run: Json, begun: Callable[[str, str], bool]) -> None:
    """Remove from run.json the tasks without a record, and checkpoints with such tasks
    alone; all settings if nothing has a record."""
    stored: Any = run["identity"]
    cells: list[Any] = [stored.get("tasks", {}), stored.get("task_settings", {})]
    cells += [run.get("planned") or {}, run.get("seeds") or {}]
    kept, known = set[str](), {**cells[0]}
    for name, tasks in known.items():
        gone = [task for task in tasks if not begun(name, task)]
        if len(gone) < len(tasks):
            kept.add(name)
        for section in cells:
            for task in gone:
                section.get(name, {}).pop(task, None)
    lost = known.keys() - kept
    if known and not kept:
        run["identity"] = {}
    for section in cells:
        for name in lost:
            section.pop(name, None)
    lost -= {str(base) for base in mapping_at(stored, "bases").values()}
    for section in (stored.get(name, {}) for name in ("models", "bases", "kv_cache")):
        for name in lost:
            section.pop(name, None)
    for rows in (stored.get("checkpoints") or [], run.get("checkpoints") or []):
        rows[:] = [row for row in rows if row.get("name") not in lost]


def _with_cells(before: Any, now: Mapping[str, Document]) -> Json:
    """A value for each cell's task: those of this call, then what it leaves out."""
    joined: Json = {name: {**tasks} for name, tasks in now.items()}
    for name, tasks in mapping_at(before).items():
        for task, value in mapping_at(tasks).items():
            joined.setdefault(name, {}).setdefault(task, value)
    return joined


def _planned(before: Any, now: Mapping[str, Document]) -> Json:
    """The items of each cell's task. A cell that this call leaves out has no more than
    the most that it asks: a control asks fewer."""
    most: Counter[str] = Counter()
    for tasks in now.values():
        most |= Counter(tasks)
    earlier: Json = {}
    for name, tasks in mapping_at(before).items():
        counts = mapping_at(tasks).items()
        earlier[name] = {task: min(n, most[task] or n) for task, n in counts}
    return _with_cells(earlier, now)


def _with_others(*key: str) -> Callable[[Any, Sequence[Any]], list[Any]]:
    """Rows, and those of earlier calls with another key."""

    def named(row: Any) -> tuple[Any, ...]:
        if isinstance(row, Mapping):
            return tuple(row.get(name) for name in key)
        return tuple(getattr(row, name) for name in key)

    def join(before: Any, rows: Sequence[Any]) -> list[Any]:
        keys = set(map(named, rows))
        return [*rows, *(row for row in before or () if named(row) not in keys)]

    return join


# fields of run.json that keep what a call leaves out
_KEPT: Mapping[str, Callable[[Any, Any], Any]] = {
    "planned": _planned,
    "seeds": _with_cells,
    "differences": lambda before, now: {**mapping_at(before), **now},
    "checkpoints": _with_others("name"),
    "reused": _with_others("run", "from", "checkpoint", "task"),
}


def _hidden(document: Document) -> Json:
    """JSON without secrets."""
    hidden: Json = json.loads(redacted(json_text(document, default=str)))
    return hidden


def _plain(value: Any) -> Any:
    """What JSON has no form for, as a row or a text."""
    if isinstance(value, Failure | Served):
        return value.row
    return asdict(value) if is_dataclass(value) else str(value)  # type: ignore[arg-type]


class _RunFile(BaseModel, extra="allow"):
    """The fields that any run.json has, of whatever version."""

    digest: str
    schema_version: Any = None
    identity: Json = {}
    state: Any = None


def _read(path: Path) -> Json | None:
    file = path / "run.json"
    if not file.exists():
        return None
    try:
        return _RunFile.model_validate_json(file.read_bytes()).model_dump()
    except OSError as error:
        raise InputError(f"{file}: not a readable run file: {error}") from error
    except ValidationError as error:
        problem = error.errors()[0]
        if problem["type"] == "json_invalid":
            raise InputError(
                f"{file}: not a readable run file: {problem['msg']}"
            ) from error
        field = ".".join(map(str, problem["loc"])) or "digest"
        what = "missing" if field == "digest" else problem["msg"]
        raise InputError(
            f"{file}: {field}: {what}; this is not a run directory of Resurface"
        ) from error


def _need_version(file: Path, existing: Document) -> None:
    known = existing["schema_version"]
    if known != SCHEMA_VERSION:
        raise InputError(
            f"{file}: schema_version: {known} was written by another version of"
            f" Resurface (this one writes {SCHEMA_VERSION}); use a new --out"
        )


def references_of(
    run_dir: Path, job: CheckpointJob, task: str, base: BaseSource | None, jobs: Jobs
) -> References:
    """The distributions of a checkpoint on one task. `base` as in Assignment;
    `jobs`: all of the run."""

    def folder(name: str) -> str:
        return str((run_dir / REFERENCES / name / task).absolute())

    def path(name: str) -> str:
        return next(str(each.path.absolute()) for each in jobs if each.name == name)

    if base is None:
        own = folder(job.name)
        return References(compare=own, keep=own, base=path(job.name))
    keep = folder(job.name) if any(other.base == job.name for other in jobs) else ""
    return References(
        compare=folder(base.name) if base.name else "",
        keep=keep,
        missing=base.missing,
        base=path(base.name) if base.name else "",
    )


def drop_references(run_dir: Path) -> None:
    """Remove all distributions that can be removed. Raises ResurfaceError if another
    driver has the directory."""
    need_unfenced(run_dir / REFERENCES)
    shutil.rmtree(run_dir / REFERENCES, ignore_errors=True)


def try_again(
    prepared: Prepared, directory: RunDirectory, store: RecordStore
) -> list[Failure]:
    """Delete the records of an earlier call's failures, so that this call tries them
    again.

    Only a call that came to its end gives its failures a second try. After an
    interrupted call, failures with records are kept and returned. Records of mended
    models are always deleted."""
    for name in directory.mended:
        store.drop(name)
    kept = []
    for failure in directory.earlier_failures:
        name, task = failure.checkpoint, failure.task
        if task not in {each.name for each in prepared.asked.get(name, ())}:
            continue
        item = (failure.language, failure.item) if failure.stage == "item" else None
        if not store.holds(name, task, item) or (
            item is None and store.measured(name, task)
        ):
            continue
        if not directory.was_ended:
            kept.append(failure)
            continue
        store.drop(name, task, item)
        for job in prepared.jobs:  # probes that read this answer had found none
            if item is not None and job.base == name:
                for reader in prepared.asked[job.name]:
                    if reader.name == task and reader.config.after_base:
                        store.drop(job.name, task, item)
    return kept


def keep_again(prepared: Prepared, store: RecordStore, run_dir: Path) -> None:
    """Drop the bases' records of the probes that keep distributions, where these are
    gone and a checkpoint is still to be compared with them: they run again."""
    waiting = set()
    for name, tasks in prepared.asked.items():
        for task in tasks:
            seed = task.config.seed
            names = [name for name in task.config.probes if PROBES[name].references]
            probes = {(name, seed) for name in names}
            if not probes:
                continue
            answered = store.finished(name, task.name)
            for question in task.questions:
                if not probes <= answered.get(key_of(question.item), frozenset()):
                    waiting.add((name, task.name))
                    break
    for name, task_name in _bases(prepared, waiting, run_dir):
        store.drop_probes(
            name, task_name, [each.name for each in PROBES if each.references]
        )


def set_damaged_aside(
    prepared: Prepared,
    store: RecordStore,
    run_dir: Path,
    warn: Tell = lambda text: None,
) -> None:
    """Move unreadable parts aside, with a warning. Raises InputError, or
    ResurfaceError if another driver took over."""
    damaged = store.damaged()
    if not damaged:
        return
    again = _bases(
        prepared,
        {(path.parent.parent.name, path.parent.name) for path in damaged},
        run_dir,
    )
    # Bases first: if the driver is killed in between, the next call finds the damaged
    # parts again.
    for part in again:
        for path in store.parts(*part):
            if path not in damaged:
                store.set_aside(path)
    for path in damaged:
        store.set_aside(path)
    named = [f"{path} ({why})" for path, why in list(damaged.items())[:_NAMED]]
    more = f", and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
    parts, its = "1 part is", "its"
    if len(damaged) > 1:
        parts, its = f"{len(damaged)} parts are", "their"
    text = (
        f"{parts} damaged, and moved to {run_dir / 'damaged'}: {', '.join(named)}{more};"
        f" {its} items are evaluated again"
    )
    for name, task in again:
        text += f"; all of {task} on {name} too, whose distributions are gone"
    warn(text)


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


def _bases(prepared: Prepared, parts: set[Part], run_dir: Path) -> list[Part]:
    """The bases and tasks whose removed distributions damaged checkpoints need, and
    those that these bases need."""
    bases = {job.name: job.base for job in prepared.jobs}
    needed: set[Part] = set()
    left = list(parts)
    while left:
        name, task = left.pop()
        settings = {each.name: each.config for each in prepared.asked.get(name, ())}
        base = bases.get(name)
        if base is None or task not in settings or not settings[task].references:
            continue
        part = base, task
        if part not in needed and not (run_dir / REFERENCES / base / task).is_dir():
            needed.add(part)
            left.append(part)
    return sorted(needed)
