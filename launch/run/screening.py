"""A screened sweep: when the board is given a checkpoint's anchors, and when the rest, if ever.

A base is asked everything. When it has its records of a task, they choose the anchors (`evaluator.metrics.screening`),
and each of its compressed checkpoints is given those. What is out stays without the rest: against the gate, a
checkpoint is decided as soon as its own anchors are answered; against the best, when all of them are that there are to
be, or have failed. All of it follows from records on disk and the settings, so that a resumed run decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from evaluator.records import Item
from evaluator.screen import Screen
from evaluator.store.reading import read_records
from evaluator.store.records import ItemKey, RecordStore
from evaluator.store.screening import Screened
from launch.run.board import Board
from launch.run.progress import Progress
from launch.run.shards import shards_of
from launch.run.work import Assignment, Part
from launch.sweep.screening import Group, screened_groups

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.metrics.screening import Compared
    from launch.sweep.preflight import Prepared
    from launch.sweep.tasks import PreparedTask

Gone = Callable[[Part], bool]  # whether a part was given up


@dataclass(frozen=True, slots=True)
class _Held:
    """One task of a checkpoint that is not asked yet, or only its anchors."""

    assignment: Assignment  # of all that is not finished
    task: PreparedTask
    finished: frozenset[ItemKey]


@dataclass(slots=True)
class _Group:
    """One task of the compressed checkpoints of one base."""

    base: str
    task: str
    names: tuple[str, ...]  # that there are to be
    held: dict[str, _Held] = field(default_factory=dict)  # of which the rest is not given, nor known not to be
    asked: set[str] = field(default_factory=set)  # whose anchors the board was given
    over: set[str] = field(default_factory=set)  # decided, or given up
    anchors: frozenset[ItemKey] | None = None  # None: the base's answers are not there yet
    outcomes: pd.DataFrame | None = None  # the base's


class Screening:
    """Hands the board what is due. `rows` is what was decided so far."""

    def __init__(self, prepared: Prepared, store: RecordStore, board: Board, progress: Progress) -> None:
        self._rule = prepared.config.screen
        self._thresholds = prepared.config.gate
        self._shard_items = prepared.config.resources.shard_items
        self._store = store
        self._board = board
        self._progress = progress
        groups = {} if self._rule is None else screened_groups(prepared.jobs, self._rule)
        self._groups: dict[Group, _Group] = {group: _Group(*group, names) for group, names in groups.items()}
        self.rows: list[Screened] = []
        self.items = 0  # that the board was given

    def hold(self, assignment: Assignment, task: PreparedTask, finished: Collection[ItemKey]) -> bool:
        """Take charge of a task of a checkpoint, if it is screened: the board is told to expect it. `finished`: what an
        earlier call has asked."""
        name = assignment.checkpoint.name
        group = self._groups.get((assignment.job.stamp.base or "", task.name))
        if group is None or name not in group.names:
            return False
        group.held[name] = _Held(assignment, task, frozenset(finished))
        self._board.expect(1)
        return True

    def look(self) -> bool:
        """Give the board what is due; whether anything was decided."""
        known = len(self.rows)
        if not all(len(group.over) == len(group.names) for group in self._groups.values()):
            unfinished = self._board.unfinished  # before the setbacks: what leaves the board in between is among them
            lost = {(each.checkpoint, each.task) for each in self._board.setbacks if each.stage != "item"}
            for group in self._groups.values():
                self._step(group, unfinished, lambda part: not lost.isdisjoint({part, (part[0], "")}))
        return len(self.rows) > known

    def _step(self, group: _Group, unfinished: Collection[Part], gone: Gone) -> None:
        for name in group.names:
            if name not in group.over and gone((name, group.task)):
                group.over.add(name)
                if group.held.pop(name, None) is not None:
                    self._board.add([], expected=1)
        if gone((group.base, group.task)):
            self._ask_all(group)
            return
        if (group.base, group.task) in unfinished or not group.held:
            return
        if group.anchors is None:
            group.anchors = self._anchors(group)
        if not group.anchors:
            self._ask_all(group)
            return
        waiting = set()
        for name, held in group.held.items():
            if name not in group.asked:
                others = {_key(question.item) for question in held.task.questions} - group.anchors
                if self._give(held, held.finished | others, expected=0):
                    waiting.add(name)
                group.asked.add(name)
        ready = [name for name in group.names if name in group.held and name not in waiting]
        ready = [name for name in ready if (name, group.task) not in unfinished]
        assert self._rule is not None
        if ready and (self._rule.against == "gate" or len(ready) + len(group.over) == len(group.names)):
            self._decide(group, ready, self._rule)

    def _give(self, held: _Held, done: Collection[ItemKey], expected: int) -> bool:
        """Give the board what is not `done`; whether there is any."""
        assignment = replace(held.assignment, shards=shards_of(held.task, done, self._shard_items))
        self.items += assignment.items
        self._board.add([assignment], expected=expected)
        return bool(assignment.shards)

    def _ask_all(self, group: _Group) -> None:
        """The base has no answers to screen by: everything is asked."""
        for name, held in group.held.items():
            self._progress.noted(
                f"screening: {name} is asked all of {group.task}: its base {group.base} has no answers to it"
            )
            self._give(held, held.finished, expected=1)
            group.over.add(name)
        group.held.clear()

    def _outcomes(self, name: str, task: str) -> pd.DataFrame:
        from evaluator.metrics import empty_outcomes, reduce_records

        parts = self._store.parts(name, task)
        return reduce_records(read_records(parts)) if parts else empty_outcomes()

    def _anchors(self, group: _Group) -> frozenset[ItemKey]:
        """Empty where the base has no measure to decide by."""
        from evaluator.metrics import Inputs
        from evaluator.metrics.screening import draw_anchors, measures_of, population

        assert self._rule is not None
        group.outcomes = self._outcomes(group.base, group.task)
        inputs = Inputs(group.outcomes)
        measures = measures_of(self._rule, inputs.outcomes_of(group.base, group.task))
        if not measures:
            return frozenset()
        items = population(inputs, group.base, group.task, measures)
        chosen = items.iloc[draw_anchors(items, self._rule.items, self._rule.seed, group.task)]
        return frozenset(zip(chosen["language"], chosen["item_id"], strict=True))

    def _decide(self, group: _Group, names: Sequence[str], rule: Screen) -> None:
        from evaluator.metrics import Inputs, Pieces
        from evaluator.metrics.screening import answers_of, decide, measures_of, nearest, population

        assert group.anchors is not None
        assert group.outcomes is not None
        pieces = Pieces(group.outcomes)
        for name in names:
            pieces.add(self._outcomes(name, group.task))
        inputs = Inputs(pieces)
        measures = measures_of(rule, inputs.outcomes_of(group.base, group.task))
        items = population(inputs, group.base, group.task, measures)
        keys = zip(items["language"], items["item_id"], strict=True)
        answers = answers_of(
            inputs,
            items[[key in group.anchors for key in keys]],
            names,
            measures,
            subject=(group.task, group.base),
            planned=len(group.names),
        )
        worse = decide(answers, rule, self._thresholds)
        out = {}
        for name in names:
            held = group.held.pop(name)
            everything = {_key(question.item) for question in held.task.questions}
            asked = held.finished | group.anchors
            if name in worse and everything - asked:  # an earlier call may have asked everything
                out[name] = worse[name]
            compared = out.get(name) or nearest(answers, name, rule, self._thresholds)
            if compared is not None:
                in_all = len(asked if name in out else everything)
                self.rows.append(_row(group, compared, rule, (in_all, len(everything))))
            self._give(held, everything if name in out else asked, expected=1)
            group.over.add(name)
        told = ", ".join(f"{name} (worse than {each.reference})" for name, each in out.items())
        self._progress.noted(
            f"screening {group.task}: after {len(group.anchors)} items each, {len(out)} of {len(names)} checkpoints "
            f"are screened out{': ' if told else ''}{told}"
        )


def _row(group: _Group, compared: Compared, rule: Screen, items: tuple[int, int]) -> Screened:
    """`items`: that it is asked in all, and that there are."""
    n = compared.n
    low, high = compared.interval if n else (None, None)
    assert group.anchors is not None
    return Screened(
        task=group.task,
        checkpoint=compared.checkpoint,
        base=group.base,
        out=items[0] < items[1],
        measure=compared.measure,
        anchors=len(group.anchors),
        asked=items[0],
        items=items[1],
        n=n,
        accuracy=compared.own / n if n else None,
        reference=compared.reference,
        reference_accuracy=(compared.own + compared.plus - compared.minus) / n if n else None,
        difference=compared.difference if n else None,
        low=low,
        high=high,
        margin=compared.margin,
        confidence=rule.confidence,
        level=compared.level,
    )


def _key(item: Item) -> ItemKey:
    return item.language, item.item_id
