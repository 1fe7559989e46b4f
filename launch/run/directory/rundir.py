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
        before = self._known(needed_bytes, measured, unusable)
        self._served: Sequence[Served] = ()  # in this call
        self._earlier_rows = [] if before is None else rows_at(before, "engine_stats")
        self.earlier_served = (
            [] if before is None else rows_as(before, "engine_stats", Served)
        )
        self.earlier_failures = [] if before is None else failures_of(before)
        self.was_ended = (
            before is not None and before["state"] == "finished_with_failures"
        )
        if before is not None and (decided := rows_at(before, "screening")):
            settings = mapping_at(before, "config")
            if all(
                settings.get(name) == config.get(name) for name in ("screen", "gate")
            ):
                self._document["screening"] = decided  # until this call decides again

    def _known(
        self, needed: int, measured: Callable[[str], bool], unusable: Collection[str]
    ) -> dict[str, Any] | None:
        """The run.json of an earlier call, after the checks; None for a new
        directory."""
        existing, identity = _read(self.path), self._document["identity"]
        self.mended: tuple[str, ...] = ()
        if existing is not None:
            failed = {
                name
                for name in {each.checkpoint for each in failures_of(existing)}
                if not measured(name)
            }
            models, earlier = (
                mapping_at(identity, "models"),
                mapping_at(existing, "identity", "models"),
            )
            changed = (
                name
                for name in models
                if name in earlier and earlier[name] != models[name]
            )
            self.mended = tuple(name for name in changed if name in failed)
            kept = _need_same_sweep(
                self.path / "run.json",
                existing,
                self._document,
                self.mended,
                failed | {*unusable},
            )
            self._document |= {"digest": digest(kept), "identity": kept}
        elif (free := shutil.disk_usage(self.path).free) < needed:
            has, needs = f"{free / 2**20:,.0f} MiB", f"{needed / 2**20:,.0f} MiB"
            raise InputError(
                f"{self.path}: --out: the disk has {has} free, the run needs about"
                f" {needs}"
            )
        return existing

    def mark(
        self, state: State, *, engine_stats: Sequence[Served] | None = None, **more: Any
    ) -> None:
        """Write run.json with this state and `more` fields; `engine_stats` follow
        those of earlier calls, and stay until this call gives others."""

        def plain(value: Any) -> Any:
            if isinstance(value, Failure | Served):
                return value.row
            if is_dataclass(value) and not isinstance(value, type):
                return asdict(value)
            return str(value)

        fields = {
            name: redacted(value) if isinstance(value, str) else value
            for name, value in more.items()
        }
        self._served = self._served if engine_stats is None else engine_stats
        self._document |= {
            "state": state,
            "engine_stats": [*self._earlier_rows, *self._served],
        } | fields
        write_atomically(
            self.path / "run.json",
            json_text(self._document, indent=2, default=plain).encode(),
        )

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
    if existing["schema_version"] != wanted["schema_version"]:
        raise InputError(
            f"{file}: schema_version: {existing['schema_version']} was written by"
            " another version of Resurface (this one writes"
            f" {wanted['schema_version']}); use a new --out"
        )
    identity: Mapping[str, Any] = wanted["identity"]
    if existing["digest"] == wanted["digest"]:
        return identity
    stored, now = existing["identity"], json.loads(json.dumps(identity, default=str))
    if mended:
        stored = stored | {
            "models": stored["models"] | {name: now["models"][name] for name in mended}
        }
    tasks, known = mapping_at(now, "tasks"), mapping_at(stored, "tasks")
    new_or_gone = {name for name in aside if (name in tasks) != (name in known)}
    one, other = (
        _joined(stored, stored, without=new_or_gone),
        _joined(now, now, without=new_or_gone),
    )
    if one != other:
        difference = _first_difference(one, other)
        raise InputError(
            f"{file}: digest: the directory belongs to another sweep ({difference});"
            " use a new --out"
        )
    return _joined(stored, now)


def _first_difference(stored: Any, wanted: Any, field: str = "") -> str:
    if (
        isinstance(stored, list)
        and isinstance(wanted, list)
        and len(stored) == len(wanted)
    ):
        stored, wanted = dict(enumerate(stored)), dict(enumerate(wanted))
    if isinstance(stored, dict) and isinstance(wanted, dict):
        for key in sorted(stored.keys() | wanted.keys()):
            if stored.get(key) != wanted.get(key):
                return _first_difference(
                    stored.get(key),
                    wanted.get(key),
                    f"{field}.{key}" if field else str(key),
                )
    # its settings, compared before, are equal
    what = ", its questions," if field.startswith("tasks.") else ""
    return (
        f"{field}{what} is {json.dumps(stored)[:60]} there,"
        f" {json.dumps(wanted)[:60]} here"
    )


def _joined(
    one: Mapping[str, Any], other: Mapping[str, Any], without: Collection[str] = ()
) -> dict[str, Any]:
    """An identity with the checkpoints of both, except those in `without`; `other`
    prevails for shared ones."""
    joined = dict(other)
    for section in ("models", "bases", "kv_cache", "tasks", "task_settings"):
        if section in {*one, *other}:
            both = {**mapping_at(one, section), **mapping_at(other, section)}
            joined[section] = {
                name: value for name, value in both.items() if name not in without
            }
    made = {
        str(row.get("name")): row
        for each in (one, other)
        for row in rows_at(each, "checkpoints")
    }
    if made:
        joined["checkpoints"] = [
            made[name] for name in sorted(made) if name not in without
        ]
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
    bases = "".join(
        f"; all of {task} on {name} too, whose distributions are gone"
        for name, task in again
    )
    one = len(damaged) == 1
    warn(
        f"{len(damaged)} part{' is' if one else 's are'} damaged, and moved to"
        f" {run_dir / 'damaged'}: {', '.join(named)}{more};"
        f" {'its' if one else 'their'} items are evaluated again{bases}"
    )


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
    bases = {job.name: job.base for job in prepared.jobs if job.base is not None}
    compared = {
        (name, task.name)
        for name in bases
        for task in prepared.asked[name]
        if task.config.references
    }
    found: set[Part] = set()
    left = parts & compared
    while left:
        bases_of = {(bases[name], task) for name, task in left}
        gone = {
            part
            for part in bases_of - found
            if not (run_dir / REFERENCES / part[0] / part[1]).is_dir()
        }
        found |= gone
        left = gone & compared
    return sorted(found)
