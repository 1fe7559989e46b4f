"""A screened sweep: the board gets a checkpoint's items look by look, until the gate
is sure.

A base is evaluated on everything. A compressed checkpoint gets the items of the
first look. When its records and its base's exist, the gate judges these items alone.
PASS or BLOCK ends the checkpoint's evaluation. Otherwise the board gets the items of
the next look. Decisions depend only on the settings and the records on disk, so a
resumed run makes the same ones."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from evaluator.deciding.policy import Policy, as_policy
from evaluator.store.reading import read_records
from evaluator.store.records import RecordStore
from evaluator.store.run_json import Screened
from launch.run.decide.assignments import Assignment, Key, key_of, shards_of
from launch.run.decide.board import Board
from launch.run.events import Decided, Noted, Part, Report
from launch.sweep.jobs import Group, screened_groups

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.deciding.decision import Verdict
    from launch.sweep.preflight import Prepared
    from launch.sweep.prepared_tasks import PreparedTask


@dataclass(frozen=True, slots=True)
class _Looks:
    """The items of a task in the gate's order, and the number of items at each look."""

    order: tuple[Key, ...]
    sizes: tuple[int, ...]


@dataclass(slots=True)
class _Held:
    """One task of a checkpoint that the gate has not decided yet."""

    assignment: Assignment  # of all unfinished items
    task: PreparedTask
    done: set[Key]  # items that an earlier call finished, or that the board received
    looks: _Looks
    # the first look that may decide: it contains all items of an earlier call
    first: int
    look: int = 0
    # checks that were within their thresholds at an earlier look
    passed: tuple[tuple[str, str], ...] = ()
    given: bool = False  # the board received the items of `look`


@dataclass(slots=True)
class _Group:
    """One task of the compressed checkpoints of one base."""

    base: str
    task: str
    names: tuple[str, ...]  # all in the sweep's plan
    held: dict[str, _Held] = field(default_factory=dict)


class Screening:
    """Gives the board the items that are due. `rows` holds the decisions so far."""

    def __init__(
        self,
        prepared: Prepared,
        store: RecordStore,
        board: Board,
        report: Report,
        mark: Callable[..., None],
    ) -> None:
        """`mark` writes fields of run.json."""
        self._rule = prepared.config.screen
        self._policy = as_policy(prepared.config.gate)
        self._shard_items = prepared.config.resources.shard_items
        self._store = store
        self._board = board
        self._report = report
        self._mark = mark
        groups = {} if self._rule is None else screened_groups(prepared.jobs)
        self._groups: dict[Group, _Group] = {
            group: _Group(*group, names) for group, names in groups.items()
        }
        self._looks: dict[str, _Looks] = {}  # by task
        self.rows: list[Screened] = []
        self.items = 0  # that the board received

    def hold(
        self, assignment: Assignment, task: PreparedTask, finished: Collection[Key]
    ) -> bool:
        """Take over a task that is screened. `finished`: the items of an earlier
        call."""
        name = assignment.checkpoint.name
        group = self._groups.get((assignment.origin.base or "", task.name))
        if group is None or name not in group.names:
            return False
        if task.name not in self._looks:
            self._looks[task.name] = self._looks_of(task)
        looks = self._looks[task.name]
        places = [n for n, key in enumerate(looks.order) if key in finished]
        first = bisect_right(looks.sizes, max(places, default=0))
        group.held[name] = _Held(assignment, task, {*finished}, looks, first)
        return True

    @property
    def open(self) -> bool:
        """Whether a later look may give the board more items."""
        return any(group.held for group in self._groups.values())

    def poll(self) -> None:
        """Give the board the items that are due, and store the decisions."""
        if not self.open:
            return
        known = len(self.rows)
        # before the failures: these include what leaves the board in between
        unfinished = self._board.unfinished
        failures = tuple(self._board.failures)
        lost = {(each.checkpoint, each.task) for each in failures if each.lost}
        for group in self._groups.values():
            self._step(group, unfinished, lost)
        if len(self.rows) > known:
            self._mark("running", screening=self.rows)

    def _looks_of(self, task: PreparedTask) -> _Looks:
        from evaluator.metrics.sequential_looks import in_order, looks

        assert self._rule is not None
        items = [question.item for question in task.questions]
        contexts = np.unique([each.cluster for each in items], return_inverse=True)[1]
        languages = np.array([each.language for each in items], dtype=object)
        seeds = [self._rule.seed, zlib.crc32(task.name.encode())]
        order = in_order(contexts, languages, np.random.default_rng(seeds))
        keys = tuple(key_of(items[place]) for place in order)
        return _Looks(keys, looks(contexts[order], self._rule.items))

    def _step(
        self, group: _Group, unfinished: Collection[Part], lost: set[Part]
    ) -> None:
        """Move each checkpoint of a group on, from held to given to over. `lost`: the
        parts and whole checkpoints that were given up."""

        def gone(name: str) -> bool:
            return not lost.isdisjoint({(name, group.task), (name, "")})

        for name in list(group.held):
            if gone(name):
                del group.held[name]
        # the base has no answers to compare with: evaluate all items
        if gone(group.base):
            for name, held in group.held.items():
                text = (
                    f"screening: {name} is evaluated on all of {group.task}: its base"
                    f" {group.base} has no answers there"
                )
                self._report(Noted(text))
                self._give(held, -1)
            group.held.clear()
        for name, held in list(group.held.items()):
            if not held.given:
                held.given = True
                if self._give(held, held.look):
                    continue  # else an earlier call has evaluated the whole look
            parts = {(name, group.task), (group.base, group.task)}
            if parts.isdisjoint(unfinished):
                self._decide(group, name, held)

    def _give(self, held: _Held, look: int) -> bool:
        """Give the board the missing items up to a look; returns whether there are
        any."""
        later = held.looks.order[held.looks.sizes[look] :]
        given = held.done | {*later}
        calls = [shard.call for shard in held.assignment.shards[:1]]
        shards = shards_of(held.task, given, self._shard_items, *calls)
        assignment = replace(held.assignment, shards=shards)
        held.done |= {*held.looks.order} - {*later}
        self.items += assignment.items
        self._board.add([assignment])
        return bool(assignment.shards)

    def _decide(self, group: _Group, name: str, held: _Held) -> None:
        """Let the gate judge the items of a look: end the evaluation, or continue
        with the next look."""
        from evaluator.metrics import empty_outcomes, reduce_records

        sizes = held.looks.sizes
        parts = [self._store.parts(each, group.task) for each in (group.base, name)]
        outcomes = [
            reduce_records(read_records(each)) if each else empty_outcomes()
            for each in parts
        ]
        while True:
            row = Screened(
                task=group.task,
                checkpoint=name,
                base=group.base,
                decision="WARN",
                asked=sizes[held.look],
                items=sizes[-1],
                looks=sizes,
                passed=held.passed,
            )
            if verdict := self._verdict(row, held, outcomes):
                row = replace(row, decision=verdict.outcome)
                held.passed = tuple(
                    (each.criterion.name, each.language)
                    for each in verdict.having("within")
                )
            if held.look >= held.first and (
                row.decision in ("PASS", "BLOCK") or not row.early
            ):
                break
            held.look += 1
            if self._give(held, held.look):
                return
        self.rows.append(row)
        del group.held[name]
        self._board.add([])
        if row.early:
            text = (
                f"screening {group.task}: {row.decision} for {name} after"
                f" {row.asked:,} of {row.items:,} items"
            )
            decided = Decided(
                checkpoint=name,
                task=group.task,
                items=row.asked,
                total=row.items,
                text=text,
            )
            self._report(decided)

    def _verdict(
        self, row: Screened, held: _Held, outcomes: Sequence[pd.DataFrame]
    ) -> Verdict | None:
        """The gate's verdict on the items of the look alone. `outcomes`: the base's
        and the checkpoint's."""
        import pandas as pd

        from evaluator.deciding.verdicts import judge
        from evaluator.metrics import Inputs

        seen = {*held.looks.order[: row.asked]}
        shown = []
        for frame in outcomes:
            keys = zip(frame["language"], frame["item_id"], strict=True)
            shown.append(frame[[key in seen for key in keys]])
        items = pd.DataFrame(
            [asdict(question.item) for question in held.task.questions]
        )
        inputs = Inputs(
            pd.concat(shown, ignore_index=True),
            items[["task", "language", "item_id", "cluster"]].assign(task=row.task),
            run={"screening": [asdict(row)]},
        )
        # without its tier: an advisory task stops at a sure BLOCK too
        policy = Policy(default=self._policy.of(row.task))
        return next(iter(judge(inputs, policy)), None)
