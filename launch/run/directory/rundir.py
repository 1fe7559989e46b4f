"""A run directory as a whole: its sweep and its state."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from evaluator.core.errors import InputError, mapping_at, redacted, rows_at
from evaluator.probes.base import References
from evaluator.store.failures import failures_of
from evaluator.store.files import need_unfenced, write_atomically
from launch.provenance import provenance
from launch.run.decide.base_answers import BaseSource
from launch.run.directory.location import nearest_existing, need_place
from launch.run.directory.lock import RunLock
from launch.sweep.config import SCHEMA_VERSION
from launch.sweep.document import digest
from launch.sweep.jobs import CheckpointJob

State = Literal["running", "finished", "finished_with_failures", "failed", "interrupted"]


class RunDirectory:
    """The directory of one sweep, created or reopened; a context manager, or else `close` frees its lock."""

    def __init__(
        self,
        path: Path,
        identity: Mapping[str, Any],
        config: Mapping[str, Any],
        needed_bytes: int,
        tell: Callable[[str], None] | None = None,
        *,
        measured: Callable[[str], bool] = lambda name: True,
        unusable: Collection[str] = (),
    ) -> None:
        """Open or create the directory.

        `identity` is all that the records depend on: a directory with another digest belongs to another sweep. It lacks
        `unusable` checkpoints; an earlier call's entries for these are kept. A model's weights may differ
        from an earlier call only if the model failed and none of its items is `measured`: it is then `mended`.

        `tell` receives a line if another driver may be dead, because the check can take a while.

        Raises InputError if

        - the directory belongs to another sweep or to something else
        - another process writes it
        - it is not writable
        - it is new and fewer than `needed_bytes` are free
        """
        self.path = path
        self._document: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "digest": digest(identity),
            "identity": identity,
            "config": config,
            "provenance": provenance(),
            "state": "running",
        }
        need_place(path)
        existing = _read(path)
        self.mended: tuple[str, ...] = ()
        if existing is not None:
            failed = {name for name in _failed(existing) if not measured(name)}
            self.mended = _mended(existing, identity, failed)
            kept = _need_same_sweep(path / "run.json", existing, self._document, self.mended, failed | {*unusable})
            self._document |= {"digest": digest(kept), "identity": kept}
        else:
            _need_space(path, needed_bytes)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = RunLock(path, tell=tell)
        except OSError as error:
            raise InputError(f"{path}: --out: cannot write there: {error.strerror}") from error
        try:
            before = _read(path)  # again: an earlier writer has ended by now
        except BaseException:
            self._lock.release()
            raise
        if decided := [] if before is None else before.screening_by(config):
            self._document["screening"] = decided  # until this call decides again
        self._earlier = [] if before is None else before.engines
        self.earlier_failures = [] if before is None else failures_of(before.model_dump())
        self.was_ended = before is not None and before.state == "finished_with_failures"

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def mark(self, state: State, *, engine_stats: Sequence[Mapping[str, Any]] = (), **more: Any) -> None:
        """Write run.json with this state and `more` fields.

        This call's `engine_stats` come after those of earlier calls, whose records still exist.
        """
        told = {name: redacted(value) if isinstance(value, str) else value for name, value in more.items()}
        self._document |= {"state": state, "engine_stats": [*self._earlier, *engine_stats]} | told
        write_atomically(self.path / "run.json", json.dumps(self._document, indent=2, default=str).encode())

    def check(self) -> None:
        """Raises LeaseLost once this process knows that another driver has taken over the directory. Cheap."""
        self._lock.need_unlost()

    def close(self) -> None:
        """Free the lock."""
        self._lock.release()


def _need_space(path: Path, needed: int) -> None:
    free = shutil.disk_usage(nearest_existing(path)).free
    if free < needed:
        raise InputError(
            f"{path}: --out: the disk has {free / 2**20:,.0f} MiB free, the run needs about {needed / 2**20:,.0f} MiB"
        )


class _RunFile(BaseModel):
    """The fields that are read from a run.json of any version."""

    digest: str
    schema_version: Any = None
    identity: dict[str, Any] = {}
    engine_stats: Any = None
    state: Any = None
    failures: Any = None
    screening: Any = None
    config: Any = None

    @property
    def engines(self) -> list[Mapping[str, Any]]:
        """The valid rows of `engine_stats`."""
        return rows_at(self.model_dump(), "engine_stats")

    def screening_by(self, config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The rows of `screening`, if `config` has the same settings for these decisions."""
        before = mapping_at(self.model_dump(), "config")
        same = all(before.get(name) == config.get(name) for name in ("screen", "gate"))
        return rows_at(self.model_dump(), "screening") if same else []


def _read(path: Path) -> _RunFile | None:
    file = path / "run.json"
    if not file.exists():
        return None
    try:
        return _RunFile.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InputError(f"{file}: not a readable run file: {error}") from error
    except ValidationError as error:
        problem = error.errors()[0]
        if problem["type"] == "json_invalid":
            raise InputError(f"{file}: not a readable run file: {problem['msg']}") from error
        field = ".".join(map(str, problem["loc"])) or "digest"
        what = "missing" if field == "digest" else problem["msg"]
        raise InputError(f"{file}: {field}: {what}; this is not a run directory of Resurface") from error


def _failed(existing: _RunFile) -> set[str]:
    return {each.checkpoint for each in failures_of(existing.model_dump())}


def _mended(existing: _RunFile, identity: Mapping[str, Any], failed: Collection[str]) -> tuple[str, ...]:
    """The failed models whose weights have changed. No record depends on them."""
    before, now = existing.identity.get("models"), identity.get("models")
    if not isinstance(before, dict) or not isinstance(now, Mapping):
        return ()
    return tuple(name for name in now if name in before and before[name] != now[name] and name in failed)


def _need_same_sweep(
    file: Path, existing: _RunFile, wanted: Mapping[str, Any], mended: Collection[str], aside: Collection[str]
) -> Mapping[str, Any]:
    """The identity of both calls together. Checkpoints in `aside` may be missing in one of them."""
    if existing.schema_version != wanted["schema_version"]:
        raise InputError(
            f"{file}: schema_version: {existing.schema_version} was written by another version of Resurface "
            f"(this one writes {wanted['schema_version']}); use a new --out"
        )
    identity: Mapping[str, Any] = wanted["identity"]
    if existing.digest == wanted["digest"]:
        return identity
    stored, now = existing.identity, json.loads(json.dumps(identity, default=str))
    if mended:
        stored = stored | {"models": stored["models"] | {name: now["models"][name] for name in mended}}
    gone, come = known_to_one(stored, now, aside), known_to_one(now, stored, aside)
    one, other = without(stored, gone), without(now, come)
    if one != other:
        difference = _first_difference(one, other)
        raise InputError(f"{file}: digest: the directory belongs to another sweep ({difference}); use a new --out")
    return joined(stored, now)


def _first_difference(stored: Any, wanted: Any, field: str = "") -> str:
    if isinstance(stored, dict) and isinstance(wanted, dict):
        for key in sorted(stored.keys() | wanted.keys()):
            if stored.get(key) != wanted.get(key):
                return _first_difference(stored.get(key), wanted.get(key), f"{field}.{key}" if field else str(key))
    if isinstance(stored, list) and isinstance(wanted, list) and len(stored) == len(wanted):
        for number, (one, other) in enumerate(zip(stored, wanted, strict=True)):
            if one != other:
                return _first_difference(one, other, f"{field}.{number}")
    return f"{field} is {json.dumps(stored)[:60]} there, {json.dumps(wanted)[:60]} here"


_BY_NAME = ("models", "bases", "tasks", "task_settings")  # the sections of an identity that are keyed by checkpoint

Identity = Mapping[str, Any]


def known_to_one(one: Identity, other: Identity, among: Collection[str]) -> set[str]:
    """The checkpoints of `among` that are in `one` and not in `other`."""
    return {name for name in among if name in _section(one, "tasks") and name not in _section(other, "tasks")}


def without(identity: Identity, names: Collection[str]) -> dict[str, Any]:
    """An identity without some checkpoints; its made checkpoints are sorted by name."""
    left = dict(identity)
    for section in _BY_NAME:
        if isinstance(left.get(section), Mapping):
            left[section] = {name: told for name, told in left[section].items() if name not in names}
    made = _made(identity)
    if made:
        left["checkpoints"] = [made[name] for name in sorted(made) if name not in names]
    return left


def joined(one: Identity, other: Identity) -> dict[str, Any]:
    """An identity with the checkpoints of both; `other` prevails for shared ones."""
    both: dict[str, Any] = {
        section: {**_section(one, section), **_section(other, section)}
        for section in _BY_NAME
        if section in {*one, *other}
    }
    made = {**_made(one), **_made(other)}
    return {**other, **both} | ({"checkpoints": [made[name] for name in sorted(made)]} if made else {})


def _section(identity: Identity, name: str) -> Mapping[str, Any]:
    section = identity.get(name)
    return section if isinstance(section, Mapping) else {}


def _made(identity: Identity) -> dict[str, Any]:
    rows = identity.get("checkpoints")
    return {str(row.get("name")): row for row in rows if isinstance(row, dict)} if isinstance(rows, list) else {}


Jobs = Sequence[CheckpointJob]
REFERENCES = "references"


def references_of(run_dir: Path, job: CheckpointJob, task: str, base: BaseSource | None, jobs: Jobs) -> References:
    """The distributions of a checkpoint on one task. `base` as in EvalJob; `jobs`: all of the run."""

    def folder(name: str) -> str:
        return str((run_dir / REFERENCES / name / task).absolute())

    if base is None:
        return References(compare=folder(job.name), keep=folder(job.name))
    keep = folder(job.name) if any(other.base == job.name for other in jobs) else ""
    return References(compare=folder(base.name) if base.name else "", keep=keep, missing=base.missing)


def drop_references(run_dir: Path) -> None:
    """Remove all distributions; a file that cannot be removed stays.

    Raises ResurfaceError if another driver has taken over the directory.
    """
    need_unfenced(run_dir / REFERENCES)
    shutil.rmtree(run_dir / REFERENCES, ignore_errors=True)
