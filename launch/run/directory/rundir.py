"""A run directory as a whole: its sweep and its state, and the damaged files that
are moved aside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from evaluator.core.errors import InputError, json_text, mapping_at, redacted, rows_at
from evaluator.core.files import csv_bytes, move_into, need_unfenced, write_atomically
from evaluator.core.lease import Lease
from evaluator.probes.item import References
from evaluator.store.reading import damage_of
from evaluator.store.records import RecordStore
from evaluator.store.run_json import (
    Failure,
    Served,
    failure_frame,
    failures_of,
    rows_as,
)
from evaluator.store.schema import CONTROL_COLUMNS, VERDICT_COLUMNS
from launch.provenance import provenance
from launch.run.decide.assignments import BaseSource
from launch.run.events import Part, State
from launch.sweep.config import SCHEMA_VERSION
from launch.sweep.document import digest
from launch.sweep.jobs import CheckpointJob

if TYPE_CHECKING:
    from launch.sweep.preflight import Prepared

REFERENCES = "references"
_NAMED = 3  # damaged parts in a warning


class RunDirectory:
    """The directory of one sweep, created or reopened, while its lock is held."""

    def __init__(
        self,
        lock: Lease,
        identity: Mapping[str, Any],
        config: Mapping[str, Any],
        needed_bytes: int,
        *,
        measured: Callable[[str], bool] = lambda name: True,
        unusable: Collection[str] = (),
    ) -> None:
        """`identity` is all that the records depend on: a directory with another
        digest belongs to another sweep.

        It lacks `unusable` checkpoints; an earlier call's entries for these are
        kept. A model's weights may differ from an earlier call only if the model
        failed and none of its items is `measured`: it is then `mended`.

        Raises InputError if the directory belongs to another sweep or to something
        else, or it is new and fewer than `needed_bytes` are free."""
        self.path = lock.directory
        self._document: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "digest": digest(identity),
            "identity": identity,
            "config": config,
            "provenance": provenance(),
            "state": "running",
        }
        self._lock = lock
        self.mended: tuple[str, ...] = ()
        before = _read(self.path)
        if before is None:
            self._need_room(needed_bytes)
            before = {}
        else:
            self._go_on_from(before, measured, unusable)
        self._served: Sequence[Served] = ()  # in this call
        self._earlier_rows = rows_at(before, "engine_stats")
        self.earlier_served = rows_as(before, "engine_stats", Served)
        self.earlier_failures = failures_of(before)
        self.was_ended = before.get("state") == "finished_with_failures"
        decided, settings = rows_at(before, "screening"), mapping_at(before, "config")
        if decided and all(
            settings.get(name) == config.get(name) for name in ("screen", "gate")
        ):
            self._document["screening"] = decided  # until this call decides again

    def _need_room(self, needed: int) -> None:
        free = shutil.disk_usage(self.path).free
        if free < needed:
            raise InputError(
                f"{self.path}: --out: the disk has {free / 2**20:,.0f} MiB free, the"
                f" run needs about {needed / 2**20:,.0f} MiB"
            )

    def _go_on_from(
        self,
        before: dict[str, Any],
        measured: Callable[[str], bool],
        unusable: Collection[str],
    ) -> None:
        """Take over the identity of an earlier call's run.json, after the checks."""
        failed = {each.checkpoint for each in failures_of(before)}
        failed = {name for name in failed if not measured(name)}
        models = mapping_at(self._document, "identity", "models")
        earlier = mapping_at(before, "identity", "models")
        self.mended = tuple(
            name
            for name in models
            if name in failed and earlier.get(name, models[name]) != models[name]
        )
        identity = _need_same_sweep(
            self.path / "run.json",
            before,
            self._document,
            self.mended,
            failed | {*unusable},
        )
        self._document |= {"digest": digest(identity), "identity": identity}

    def mark(
        self, state: State, *, engine_stats: Sequence[Served] | None = None, **more: Any
    ) -> None:
        """Write run.json with this state and `more` fields; `engine_stats` follow
        those of earlier calls, and stay until this call gives others."""
        self._served = self._served if engine_stats is None else engine_stats
        rows = [*self._earlier_rows, *self._served]
        self._document |= {"state": state, "engine_stats": rows}
        for name, value in more.items():
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
        self._lock.need_unlost()


def _plain(value: Any) -> Any:
    """What JSON has no form for, as a row or a text."""
    if isinstance(value, Failure | Served):
        return value.row
    return asdict(value) if is_dataclass(value) else str(value)  # type: ignore[arg-type]


class _RunFile(BaseModel, extra="allow"):
    """The fields that any run.json has, of whatever version."""

    digest: str
    schema_version: Any = None
    identity: dict[str, Any] = {}
    state: Any = None


def _read(path: Path) -> dict[str, Any] | None:
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


def _need_same_sweep(
    file: Path,
    existing: Mapping[str, Any],
    wanted: Mapping[str, Any],
    mended: Collection[str],
    aside: Collection[str],
) -> Mapping[str, Any]:
    """The identity of both calls together. Checkpoints in `aside` may be missing in
    one of them."""
    version, known = wanted["schema_version"], existing["schema_version"]
    if known != version:
        raise InputError(
            f"{file}: schema_version: {known} was written by another version of"
            f" Resurface (this one writes {version}); use a new --out"
        )
    identity: Mapping[str, Any] = wanted["identity"]
    if existing["digest"] == wanted["digest"]:
        return identity
    stored, now = existing["identity"], json.loads(json.dumps(identity, default=str))
    for name in mended:
        stored["models"][name] = now["models"][name]
    one_sided = mapping_at(now, "tasks").keys() ^ mapping_at(stored, "tasks").keys()
    new_or_gone = one_sided & {*aside}
    before = _joined(stored, stored, without=new_or_gone)
    after = _joined(now, now, without=new_or_gone)
    if before != after:
        raise InputError(
            f"{file}: digest: the directory belongs to another sweep"
            f" ({_first_difference(before, after)}); use a new --out"
        )
    return _joined(stored, now)


def _first_difference(stored: Any, wanted: Any, field: str = "") -> str:
    sides = [stored, wanted]
    if all(isinstance(side, list) for side in sides) and len(stored) == len(wanted):
        sides = [dict(enumerate(side)) for side in sides]
    if all(isinstance(side, dict) for side in sides):
        before, after = sides
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) != after.get(key):
                place = f"{field}.{key}" if field else str(key)
                return _first_difference(before.get(key), after.get(key), place)
    # its settings, compared before, are equal
    what = ", its questions," if field.startswith("tasks.") else ""
    there, here = json.dumps(stored)[:60], json.dumps(wanted)[:60]
    return f"{field}{what} is {there} there, {here} here"


def _joined(
    one: Mapping[str, Any], other: Mapping[str, Any], without: Collection[str] = ()
) -> dict[str, Any]:
    """An identity with the checkpoints of both, except those in `without`; `other`
    prevails for shared ones."""
    joined = dict(other)
    for section in ("models", "bases", "kv_cache", "tasks", "task_settings"):
        if section in {*one, *other}:
            both = {**mapping_at(one, section), **mapping_at(other, section)}
            for name in without:
                both.pop(name, None)
            joined[section] = both
    made = {
        str(row.get("name")): row
        for row in (*rows_at(one, "checkpoints"), *rows_at(other, "checkpoints"))
    }
    if made:
        names = sorted(made.keys() - {*without})
        joined["checkpoints"] = [made[name] for name in names]
    return joined


def references_of(
    run_dir: Path,
    job: CheckpointJob,
    task: str,
    base: BaseSource | None,
    jobs: Sequence[CheckpointJob],
) -> References:
    """The distributions of a checkpoint on one task. `base` as in Assignment;
    `jobs`: all of the run."""

    def folder(name: str) -> str:
        return str((run_dir / REFERENCES / name / task).absolute())

    if base is None:
        return References(compare=folder(job.name), keep=folder(job.name))
    keep = folder(job.name) if any(other.base == job.name for other in jobs) else ""
    return References(
        compare=folder(base.name) if base.name else "", keep=keep, missing=base.missing
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


def set_damaged_aside(
    prepared: Prepared,
    store: RecordStore,
    run_dir: Path,
    warn: Callable[[str], None] = lambda text: None,
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


def set_verdicts_aside(
    run_dir: Path, matcher: str, warn: Callable[[str], None]
) -> None:
    """Move aside a matcher's unreadable verdicts, which it then judges again. Raises
    InputError on OSError."""
    kinds = (("verdicts", VERDICT_COLUMNS), ("controls", CONTROL_COLUMNS))
    for kind, columns in kinds:
        for path in sorted((run_dir / kind / matcher).rglob("*.parquet")):
            if (why := damage_of(path, columns, columns)) is not None:
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
