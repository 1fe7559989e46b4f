"""The remaining work of a run: what its cells are to have, without what lies under their
keys.

A resumed run, a grown one, other names, records of other runs: all are this set
difference. Cells of equal content share a key: the first one makes the records, and the
others show them."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.core.document import differences
from evaluator.core.errors import Json, counted
from evaluator.core.files import write_atomically
from evaluator.probes import PROBES
from evaluator.store.cells import Cells, Name
from evaluator.store.records import NONE, Answered, Drawn, RecordStore
from evaluator.store.run_json import Failure
from launch.run.decide.assignments import (
    Assignment,
    Key,
    Shards,
    alone,
    compared,
    completing,
    count_whole,
    due,
    key_of,
    lacking,
    origin_of,
    shards_of,
)
from launch.run.directory import keys
from launch.run.directory.keys import Keys
from launch.run.directory.rundir import (
    AGAIN,
    RunDirectory,
    kept_whole,
    reference_folder,
    references_of,
)
from launch.run.events import Noted, Recorded, Report, Reused
from launch.sweep.jobs import CheckpointJob
from launch.sweep.preflight import Prepared
from launch.sweep.prepared_tasks import PreparedTask


class Remaining:
    """Names the cells of a run and finds their work."""

    def __init__(
        self,
        prepared: Prepared,
        directory: RunDirectory,
        store: RecordStore,
        reuse: Sequence[Path],
        report: Report,
    ) -> None:
        """`reuse`: other runs, whose records are copied."""
        self._prepared, self._run_dir = prepared, directory.path
        self._store, self._report = store, report
        self._keys, self._cells = Keys(prepared), directory.cells
        self._size = prepared.config.resources.shard_items
        self._others = {path: (RecordStore(path), Cells(path)) for path in reuse}
        self._known: dict[Name, str] = {}  # keys, by cell
        # by key: the cell that makes its records, then the others that show them
        self._sharing: dict[str, list[tuple[str, PreparedTask]]] = {}
        # by a task's key: its shards, and the records that it is to have
        self._whole: dict[str, Shards] = {}
        self._due: dict[str, Answered] = {}
        self._comparing: dict[str, list[tuple[CheckpointJob, PreparedTask, str]]] = {}

    def of(
        self, found: Sequence[tuple[CheckpointJob, CheckpointInfo]]
    ) -> list[Assignment]:
        """The work of checkpoints that are there now. Raises InputError if records
        are damaged."""
        for job, info in found:
            self._keys.infos[job.name] = info
            self._name(job)
        # an engine may write as soon as its work is known
        self._cells.save()
        assignments = []
        for job, _ in found:
            for task in self._prepared.asked[job.name]:
                assignments += self._of_cell(job, task)
        return assignments

    def sharing(self, failure: Failure) -> list[Failure]:
        """A failure, of each cell that it costs its records."""
        rows = [failure]
        for (name, task), *others in self._sharing.values():
            if name == failure.checkpoint and failure.task in ("", task.name):
                for other, its in others:
                    rows.append(replace(failure, checkpoint=other, task=its.name))
        return rows

    def tell_others(self) -> None:
        """Report the records that cells share with the one that made them."""
        for key, (_, *others) in self._sharing.items():
            answered = self._store.finished(key) if others else {}
            for name, task in others:
                done = count_whole(self._wanted(task), answered)
                self._report(Recorded(checkpoint=name, task=task.name, items=done))

    def _name(self, job: CheckpointJob) -> None:
        """Give each cell of a checkpoint its key."""
        for note in self._keys.changes([job], self._cells):
            self._report(Noted(note))
        for task in self._prepared.asked[job.name]:
            if task.config.recheck_cut:
                self._take_uncut(job, task)
        origin = origin_of(self._keys.infos[job.name], job.base)
        for task in self._prepared.asked[job.name]:
            words = self._keys.words(job, task)
            key = self._known[job.name, task.name] = keys.key_of(words)
            self._cells.put(origin, task.name, key, words)
            self._sharing.setdefault(key, []).append((job.name, task))

    def _of_cell(self, job: CheckpointJob, task: PreparedTask) -> list[Assignment]:
        info, key = self._keys.infos[job.name], self._known[job.name, task.name]
        wanted = self._wanted(task)
        if not job.change and not info.served:  # a control has records of its own
            self._take(job, task, wanted)
        answered = self._store.finished(key)
        again = self._to_keep_again(task, key, answered)
        # most cells of a resumed run: 200,000 items need no look at each
        complete = wanted == answered
        count = len(wanted) if complete else count_whole(wanted, answered)
        done = count - len(again)
        self._report(Recorded(checkpoint=job.name, task=task.name, items=done))
        for name, other in self._sharing[key]:  # those before it do their work
            if (name, other.name) == (job.name, task.name):
                break
            for item, drawn in self._wanted(other).items():
                answered[item] = answered.get(item, NONE) | drawn
        base = self._keys.base(job, task)
        if base is not None and base.key in self._sharing:
            (name, its), *_ = self._sharing[base.key]
            base = replace(base, name=name, task=its.name)
        references = None
        if task.config.references:
            kept = {at for _, _, at in self._compared(task.name)}
            references = references_of(self._run_dir, key, info.path, base, kept)
        whole = Assignment(
            checkpoint=info,
            task=task.name,
            task_key=task.key,
            config=task.config,
            origin=origin_of(info, job.base),
            shards=() if complete else self._shards(task, answered),
            key=key,
            base=base if task.config.after_base else None,
            references=references,
        )
        groups = {} if complete else lacking(wanted, answered)
        assignments = [
            self._some(whole, task, items, lacks, completing(task.config, lacks))
            for lacks, items in groups.items()
        ]
        if again:
            assignments.append(self._keeping_again(whole, task, again))
        if not whole.shards and not assignments:
            (first, its), *_ = self._sharing[key]
            text = f"{counted(done, 'item')} already done"
            if done < len(wanted):
                text = f"{first}, task {its.name}, makes its records"
            self._report(Noted(f"{job.name} {task.name}: {text}"))
        return [*assignments, whole]

    def _take(self, job: CheckpointJob, task: PreparedTask, wanted: Answered) -> None:
        """Copy what other runs have under the key of a cell. Names what makes it
        differ. Raises InputError for a damaged part."""
        cell = job.name, task.name
        key = self._known[cell]
        for path, (store, cells) in self._others.items():
            if items := self._store.take(store, key, wanted):
                at = str(path.resolve())
                self._report(
                    Reused(checkpoint=job.name, task=task.name, items=items, run=at)
                )
            words = self._keys.words(job, task)
            for other in cells if key not in cells.words else ():
                if other.name == cell:
                    there = cells.words.get(other.key)
                    what = next(differences(there, words), "its key is another")
                    text = f"{path}: {job.name}, task {task.name}: not reused: {what}"
                    self._report(Noted(text))

    def _take_uncut(self, job: CheckpointJob, task: PreparedTask) -> None:
        """Copy what the run has of a cell without recheck_cut, but for what is posed
        again, and what may read such an answer."""
        words = self._keys.words(job, task)
        self._store.take(
            self._store,
            keys.key_of(words),
            alone(self._wanted(task)),
            keys.key_of(keys.uncut(words)),
            task.config.max_new_tokens,
        )

    def _keeping_again(
        self, whole: Assignment, task: PreparedTask, items: Collection[Key]
    ) -> Assignment:
        """The work that keeps a base's distributions, without records."""
        mark = reference_folder(self._run_dir, whole.key).with_suffix(AGAIN)
        write_atomically(mark, b"")
        names = [name for name in task.config.probes if PROBES[name].references]
        return self._some(whole, task, items, NONE, {"probes": tuple(names)})

    def _some(
        self,
        whole: Assignment,
        task: PreparedTask,
        items: Collection[Key],
        kept: frozenset[Drawn],
        update: Json,
    ) -> Assignment:
        """Some items, under settings that ask some probes."""
        config = task.config.model_copy(update=update)
        others = {key_of(each.item) for each in task.questions} - {*items}
        return replace(
            whole,
            config=config,
            kept=kept,
            shards=shards_of(task, others, self._size),
            base=whole.base if config.after_base else None,
            references=whole.references if config.references else None,
        )

    def _to_keep_again(
        self, task: PreparedTask, key: str, answered: Answered
    ) -> set[Key]:
        """The answered items whose distributions are gone, and with which a checkpoint
        is still to be compared."""
        waiting = set[Key]()
        if not task.config.references or kept_whole(self._run_dir, key):
            return waiting
        for job, its, base in self._compared(task.name):
            if base != key:
                continue
            known = self._known.get((job.name, its.name))
            # one that is still to be made has nothing
            theirs = {} if known is None else self._store.finished(known)
            for item, drawn in self._wanted(its).items():
                if not compared(drawn) <= theirs.get(item, NONE):
                    waiting.add(item)
        return {item for item in waiting if compared(answered.get(item, NONE))}

    def _compared(self, name: str) -> list[tuple[CheckpointJob, PreparedTask, str]]:
        """The checkpoints that are compared with distributions on a task, each with the
        key of those."""
        if name not in self._comparing:
            found = self._comparing[name] = []
            for job in self._prepared.jobs:
                for task in self._prepared.asked[job.name]:
                    if task.name == name and task.config.references and job.base:
                        base = self._keys.base(job, task)
                        found.append((job, task, "" if base is None else base.key))
        return self._comparing[name]

    def _wanted(self, task: PreparedTask) -> Answered:
        if task.key not in self._due:
            self._due[task.key] = due(task)
        return self._due[task.key]

    def _shards(self, task: PreparedTask, finished: Collection[Key]) -> Shards:
        """Checkpoints without finished items share their shards: there may be 1,000
        checkpoints of 100 shards each."""
        if finished:
            return shards_of(task, finished, self._size)
        if task.key not in self._whole:
            self._whole[task.key] = shards_of(task, (), self._size)
        return self._whole[task.key]
