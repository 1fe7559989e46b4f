"""Records of other runs for this one (`--reuse`): of equal weights, data, settings,
prompts, versions and machine. Whatever differs is evaluated, and named once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec.structs import asdict

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.errors import Document, Json, mapping_at, rows_at
from evaluator.core.files import parquet_bytes
from evaluator.probes import PROBES
from evaluator.probes.planning import prompter_of, tokenised
from evaluator.store.reading import read_part, read_run
from evaluator.store.records import Drawn, RecordStore
from evaluator.store.schema import RECORD_COLUMNS, RECORDS
from launch.provenance import provenance
from launch.run.decide.assignments import Key, call_after, key_of, origin_of, shard_of
from launch.run.directory.identity import differences, settings_differ
from launch.run.events import Tell
from launch.sweep.jobs import CheckpointJob
from launch.sweep.prepared_tasks import PreparedTask

if TYPE_CHECKING:
    from launch.sweep.preflight import Prepared

_WEIGHTS = ("weights_digest", "architecture", "kv_cache")
_MACHINE = ("versions", "commit", "processor", "device")


class Reuse:
    """Copies records of `runs` into a store. `rows` is their origin, for run.json."""

    def __init__(
        self, runs: Sequence[Path], prepared: Prepared, store: RecordStore, tell: Tell
    ) -> None:
        self._store, self._tell = store, tell
        self._trust = prepared.engine.trust_remote_code
        self.rows: list[Json] = []
        self._runs: dict[Path, Document] = {}
        here = provenance()
        for path in runs:
            run = read_run(path)
            there, engine = mapping_at(run, "provenance"), prepared.identity["engine"]
            earlier = mapping_at(run, "identity", "engine")
            problems = [*differences("engine", earlier, engine)]
            for name in _MACHINE:
                problems += differences(name, there.get(name), here[name])
            if problems:
                tell(f"{path}: not reused: {problems[0]}")
            else:
                self._runs[path] = run

    def into(
        self, job: CheckpointJob, info: CheckpointInfo, task: PreparedTask
    ) -> None:
        """Copy what this cell lacks and another run has. Raises InputError for a
        damaged part."""
        for path, run in self._runs.items():
            for row in rows_at(run, "checkpoints"):
                same = all(row.get(name) == getattr(info, name) for name in _WEIGHTS)
                name, known = str(row.get("name")), mapping_at(run, "identity")
                settings = mapping_at(known, "task_settings", name, task.name)
                if not same or not settings or info.served:
                    continue
                if problem := _problem(known, name, settings, task):
                    cell = f"{name}, task {task.name}"
                    self._tell(f"{path}: {cell}: not reused: {problem}")
                    continue
                probes = _free(job, task, mapping_at(known, "bases").get(name))
                if items := self._copy(path, name, job, info, task, probes):
                    copied: Json = {"run": str(path.resolve()), "from": name}
                    copied |= {"checkpoint": job.name, "task": task.name}
                    copied |= {"items": items, "probes": sorted(probes)}
                    self.rows.append(copied)

    def _copy(
        self,
        path: Path,
        name: str,
        job: CheckpointJob,
        info: CheckpointInfo,
        task: PreparedTask,
        probes: Collection[str],
    ) -> int:
        """The number of items with copied records."""
        answered = self._store.finished(job.name, task.name)
        places = {key_of(each.item): n for n, each in enumerate(task.questions)}
        due: set[Drawn] = set()
        for probe in probes:
            due.update((probe, seed) for seed in PROBES[probe].seeds(task.config))
        wanted = {key: due - answered.get(key, frozenset()) for key in places}
        parts = RecordStore(path).parts(name, task.name)
        if not parts or not any(wanted.values()):
            return 0
        prompts = _Prompts(info.path, task, self._trust)
        copied: set[Key] = set()
        for part in parts:
            table = read_part(part, RECORDS.names, RECORD_COLUMNS)
            rows = table.select(_CHECKED).to_pylist()
            bad = {(_key(row), row["probe"]) for row in rows if not prompts.agree(row)}
            kept: defaultdict[Key, list[int]] = defaultdict(list)
            drawn: defaultdict[Key, set[Drawn]] = defaultdict(set)
            for place, row in enumerate(rows):
                key, its = _key(row), (row["probe"], row["seed"])
                if its in wanted.get(key, ()) and (key, row["probe"]) not in bad:
                    kept[key].append(place)
                    drawn[key].add(its)
            # all items of a part must have the same probes (`RecordStore.finished`)
            alike: defaultdict[frozenset[Drawn], list[Key]] = defaultdict(list)
            for key, draws in drawn.items():
                alike[frozenset(draws)].append(key)
            for keys in alike.values():
                names = [each.stem for each in self._store.parts(job.name, task.name)]
                positions = tuple(sorted(places[key] for key in keys))
                shard = shard_of(positions, call_after(names))
                chosen = sorted(place for key in keys for place in kept[key])
                own = _owned(table.take(chosen), asdict(origin_of(info, job.base)))
                self._store.append(job.name, task.name, shard.name, parquet_bytes(own))
            copied |= kept.keys()
        return len(copied)


_CHECKED = ["language", "item_id", "probe", "seed", "format", "status", "prompt_digest"]


def _key(row: Document) -> Key:
    return row["language"], row["item_id"]


class _Prompts:
    """The prompts of a task on a checkpoint, by their digests."""

    def __init__(self, path: Path, task: PreparedTask, trust: bool) -> None:
        tokenizer = load_tokenizer(path, trust_remote_code=trust)
        prompter = prompter_of(tokenizer, task.config)
        self._digests: dict[tuple[Key, str], str] = {}
        for posed in task.questions:
            ready = tokenised(posed, prompter, task.config)
            for form, prompt in ready.prompts.items():
                self._digests[key_of(posed.item), form] = prompt.digest

    def agree(self, row: Document) -> bool:
        """Whether a record is measured, and has this prompt if it has any."""
        digest = row["prompt_digest"]
        if row["status"] == "engine_error":
            return False
        return digest in (None, self._digests.get((_key(row), row["format"])))


def _problem(known: Document, name: str, settings: Document, task: PreparedTask) -> str:
    """Why the records of one cell cannot be reused; empty: they can. `known`: the
    identity of their run."""
    if problems := settings_differ(settings, task.config.identifying()):
        return problems[0]
    if task.config.thinks:
        return "thoughts are evaluated again"
    if task.key_under(settings) != mapping_at(known, "tasks", name)[task.name]:
        return "its data differ"
    for item, there, here in task.moved_examples(settings["items"]):
        return f"the one_shot example of {item!r} is {there!r} there, {here!r} here"
    return ""


def _free(job: CheckpointJob, task: PreparedTask, base: object) -> set[str]:
    """The probes whose records need neither a base nor its distributions."""
    probes = [PROBES[name] for name in task.config.probes]
    alone = job.base is None and base is None
    return {
        probe.name
        for probe in probes
        if not probe.references and (alone or not probe.after_base)
    }


def _owned(table: pa.Table, origin: Document) -> pa.Table:
    """Records as those of another name and base."""
    for name, value in origin.items():
        place = table.schema.get_field_index(name)
        column = pa.array([value] * table.num_rows, RECORDS.field(name).type)
        table = table.set_column(place, RECORDS.field(name), column)
    return table
