"""Decides which engine does which work, without Ray.

Engines pull: each has as many shards in hand as it computes at once, and a few that
follow, also of its checkpoint's next task. Nothing is taken back. A free engine first
takes more work on its checkpoint, then a checkpoint of the same architecture (swapped
in place), then any other (a new engine). Among equals, bases that other checkpoints
wait for come first. Work that has failed comes last. Only without such work does an
engine join others on theirs.

Some probes read the base's answers (`Assignment.after`). Their work waits until the
base's shards of that task are finished. What an ended engine had in hand returns to
the board.

The list of attempts decides what follows from a failure (`attempts.py`). A checkpoint
that is set aside leaves the board, together with the work that needs its answers."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from evaluator.asking.questions import Posed
from evaluator.checkpoints.info import CheckpointInfo
from evaluator.probes.stream import items_at_once
from evaluator.store.run_json import Failure
from launch.run import attempts
from launch.run.attempts import Log
from launch.run.decide.assignments import (
    Assignment,
    Shard,
    Shards,
    begun,
    distance,
    halves_of,
)
from launch.run.events import Advanced, Attempt, Outcome, Part, Span
from launch.run.state import Bus

_FOLLOWING = 64  # items in hand beside those in flight: many may end in a step
_SPARE = 4  # waiting shards, from which one more engine is worth its start
Remedy = Literal["go on", "probe", "retire"]  # for an engine after a failure


@dataclass(slots=True, eq=False)
class _Work:
    """Shards of a part under the same settings."""

    assignment: Assignment  # without shards
    shards: deque[Shard]  # in no engine's hand
    engines: set[int] = field(default_factory=set)  # on it
    loading: int = 0  # of these, those without a shard yet

    @property
    def name(self) -> str:
        return self.assignment.checkpoint.name

    @property
    def whole(self) -> Assignment:
        return replace(self.assignment, shards=tuple(self.shards))


@dataclass(slots=True)
class _Busy:
    first: _Work
    loading: bool = True
    works: dict[str, _Work] = field(init=False)  # by task, of one checkpoint
    hand: dict[tuple[str, str], Shard] = field(default_factory=dict)  # by task, name
    missed: int = -1  # the board's changes when nothing followed

    def __post_init__(self) -> None:
        self.works = {self.first.assignment.task: self.first}

    def rest(self, work: _Work) -> Assignment:
        """What is in hand of a work."""
        task = work.assignment.task
        some = [shard for shard in self.hand.values() if shard.task == task]
        return replace(work.assignment, shards=tuple(some))


class Source(Protocol):
    """Adds work to the board, and closes after its last addition."""

    @property
    def open(self) -> bool: ...


@dataclass(slots=True)
class Board:
    bus: Bus = field(default_factory=Bus)  # with the list of attempts
    attempts: int = 3
    known: CheckpointInfo | None = None  # a checkpoint that has loaded
    engines: set[int] = field(default_factory=set)  # with a process
    # the nodes on which an engine's processes ran, by name
    hosts: dict[int, set[str]] = field(default_factory=dict)
    # Checkpoints behind URLs, and the engines that serve these and no others.
    remote: set[str] = field(default_factory=set)
    remote_engines: set[int] = field(default_factory=set)
    # by task key
    questions: Mapping[str, Sequence[Posed]] = field(default_factory=dict)
    source: Source | None = None  # engines wait for an open one
    short: bool = False  # prune jobs wait for GPUs that engines hold
    stopped: bool = False
    sharing: int = 1  # engines among which the shards are divided
    changes: int = 0  # engines without work look again after one
    failures: list[Failure] = field(default_factory=list)  # work given up; only grows
    # the error of parts in which every answer failed so far
    unmeasured: dict[Part, str] = field(default_factory=dict)
    _works: list[_Work] = field(default_factory=list)
    _busy: dict[int, _Busy] = field(default_factory=dict)
    _left: Counter[Part] = field(default_factory=Counter)  # shards without records
    # parts that will not get all their records
    _without: set[Part] = field(default_factory=set)
    # engines that receive no more work
    _dismissed: set[int] = field(default_factory=set)

    @property
    def log(self) -> Log:
        return self.bus.state.attempts

    @property
    def _waiting(self) -> list[_Work]:
        """What is left after the engines that load have a shard each."""
        return [each for each in self._works if len(each.shards) > each.loading]

    @property
    def _awaited(self) -> Set[Part | None]:
        """The parts that other work waits for."""
        return {each.assignment.after for each in self._waiting}

    @property
    def has_work(self) -> bool:
        """Whether there is work that no engine is on."""
        return any(not each.engines for each in self._waiting)

    @property
    def spare(self) -> bool:
        """Whether there is work for one more engine."""
        held = [len(each.shards) for each in self._works]
        return self.has_work or max(held, default=0) > _SPARE

    def count_left(self) -> int:
        """The items without records, of the work that is known."""
        waiting = [shard for each in self._works for shard in each.shards]
        hands = [shard for each in self._busy.values() for shard in each.hand.values()]
        return sum(len(each.questions) for each in (*waiting, *hands))

    @property
    def over(self) -> bool:
        """Whether there is no more work for any engine, now or later."""
        return self.stopped or not (self._waiting or self._busy or self._open)

    @property
    def _open(self) -> bool:
        """Whether the source may still add work."""
        return self.source is not None and self.source.open

    @property
    def unfinished(self) -> Set[Part]:
        """The parts on the board that do not have all their records yet."""
        return self._left.keys()

    def add(self, assignments: Sequence[Assignment]) -> None:
        """Make work available. Without any, wake the engines: a source has closed."""
        for each in assignments:
            if not each.shards:
                continue
            self._left[each.part] += len(each.shards)
            # an earlier call may have suspected them
            suspects, others = self._suspects(each)
            if others:
                self._put(each, others)
            self._put_alone(each, suspects)
        self._leave_out(())

    def _put(self, assignment: Assignment, shards: Shards) -> None:
        work = _Work(replace(assignment, shards=()), deque(shards))
        self._works.append(work)

    def abandon(self, failure: Failure) -> None:
        """Give up a checkpoint that cannot be made or used."""
        self.failures.append(failure)
        self.add(())

    def stop(self) -> None:
        """Hand out no more work: the run has failed or was interrupted."""
        self.stopped = True
        self.changes += 1

    def join(self, engine: int, host: str = "") -> None:
        """An engine has a process: it may try work that failed on others."""
        self.engines.add(engine)
        self.hosts.setdefault(engine, set()).add(host)

    def leave(self, engine: int, *, for_good: bool = False) -> None:
        """An engine has no process, perhaps for good; `for_good`: it receives no
        more work."""
        self.engines.discard(engine)
        if for_good:
            self._dismissed.add(engine)
        self.changes += 1

    def take(
        self, engine: int, held: str | None, architecture: str | None
    ) -> Assignment | None:
        """An engine's next work; None without any. `held` and `architecture`: its
        checkpoint's `engine_keys`.

        The engine calls `begin` after it has loaded the checkpoint, and `failed` or
        `end` in any case."""
        if self.stopped or engine in self._dismissed:
            return None
        awaited = self._awaited
        unloadable = attempts.unloadable(self.log)

        def order(work: _Work) -> tuple[bool, bool, bool, int, bool, int]:
            each = work.assignment
            away = distance(each.checkpoint, held, architecture)
            joins = bool(work.engines and away)
            return (
                joins,
                each.suspect,
                work.name in unloadable,
                away,
                each.part not in awaited,
                -len(work.shards) * joins,
            )

        ready = self._ready(engine, self._waiting)
        if not ready:
            return None
        work = min(ready, key=order)
        work.engines.add(engine)
        work.loading += 1
        self._busy[engine] = _Busy(work)
        return work.whole

    def is_useless(self, engine: int, *, long: bool) -> bool:
        """Whether an engine without work should end. `long`: it has waited long.

        - New work could come only from other engines' failures. Those engines then do
          it themselves.
        - Prune jobs wait for the engine's GPUs.
        """
        remote = engine in self.remote_engines
        names = [each.name for each in self._waiting]
        held = [busy.first.name for busy in self._busy.values()]
        work = [name for name in names if (name in self.remote) == remote]
        others = [name for name in held if (name in self.remote) == remote]
        if not self._open:
            return not work and (long or not others)
        return long and self.short and not remote and not work

    def upcoming(
        self, engine: int, held: str | None, architecture: str | None
    ) -> CheckpointInfo | None:
        """The waiting checkpoint that an engine with `held` would load next; None
        without one."""
        other = None
        for each in self._waiting:
            info = each.assignment.checkpoint
            away = distance(info, held, architecture)
            if away and not each.engines and self.fits(engine, info.name):
                if away == 1:
                    return info
                other = other or info
        return other

    def loaded(self, engine: int, checkpoint: CheckpointInfo) -> None:
        # it was the probe: so the failures were the checkpoints' fault
        if self._remedy(engine) == "probe":
            self.bus.report(Attempt(engine=engine, outcome="sound"))
        self.known = checkpoint

    def begin(self, engine: int) -> Shards:
        """The first shards of an engine that has loaded its checkpoint."""
        busy = self._busy[engine]
        busy.loading = False
        busy.first.loading -= 1
        return self._more(engine, self._share)

    def more(self, engine: int) -> Shards:
        """Further shards for an engine, so that some follow those that it computes."""
        if self.stopped or engine in self._dismissed:
            return ()
        return self._more(engine, max(2, self._share))

    def hand(self, engine: int) -> Shards:
        """The unfinished shards that an engine has."""
        return tuple(self._busy[engine].hand.values())

    def assignment(self, engine: int, task: str) -> Assignment:
        """An engine's work on a task, without shards."""
        return self._busy[engine].works[task].assignment

    def left(self, engine: int, task: str) -> int:
        """The unfinished items of an engine's work on a task, but for those that other
        engines have in hand."""
        busy = self._busy[engine]
        work = busy.works[task]
        return work.whole.items + busy.rest(work).items

    @property
    def _share(self) -> int:
        """The unfinished shards for each engine."""
        return max(1, sum(self._left.values()) // max(1, self.sharing))

    def _more(self, engine: int, most: int) -> Shards:
        busy, more = self._busy[engine], list[Shard]()
        hand = busy.hand
        room = items_at_once(busy.first.assignment.config) + _FOLLOWING
        room -= sum(len(each.questions) for each in hand.values())
        while not hand or (len(hand) < most and room > 0):
            works = (each for each in busy.works.values() if each.shards)
            work = next(works, None) or self._following(engine, busy)
            if work is None:
                break
            task = work.assignment.task
            shard = replace(work.shards.popleft(), task=task)
            room -= len(shard.questions)
            hand[task, shard.name] = shard
            more.append(shard)
        return tuple(more)

    def _following(self, engine: int, busy: _Busy) -> _Work | None:
        """The next task of an engine's checkpoint, which it is then on too: its stream
        stays full. What may kill an engine stays alone."""
        first = busy.first.assignment
        if first.suspect or busy.missed == self.changes:
            return None
        others = [
            work
            for work in self._waiting
            if work.name == busy.first.name
            and work.assignment.task not in busy.works
            and work.assignment.config.thinks == first.config.thinks
            and not work.assignment.suspect
        ]
        ready = self._ready(engine, others)
        if not ready:
            busy.missed = self.changes
            return None
        awaited = self._awaited
        work = min(ready, key=lambda each: each.assignment.part not in awaited)
        work.engines.add(engine)
        busy.works[work.assignment.task] = work
        return work

    def doubts(self, engine: int, shard: Shard) -> bool:
        """Whether another engine must confirm that all of a shard's answers fail;
        then the board has it again."""
        busy = self._busy[engine]
        work = busy.works[shard.task]
        assignment, name = work.assignment, work.name
        if assignment.doubted_by is not None:
            self.bus.report(Attempt(checkpoint=name, outcome="alike"))
        believed = attempts.count(self.log, name, "alike")
        if believed or not self._others(engine, name):
            return False
        del busy.hand[shard.task, shard.name]
        self._put(replace(assignment, doubted_by=engine), (shard,))
        self.changes += 1
        return True

    def finished(
        self, engine: int, shard: Shard, unmeasured: str | None = None
    ) -> None:
        """Record a finished shard. `unmeasured`: the error, if every answer of the
        part so far failed."""
        busy = self._busy[engine]
        part = name, task = busy.first.name, shard.task
        del busy.hand[shard.task, shard.name]
        items = len(shard.questions)
        self.bus.report(
            Advanced(engine=engine, checkpoint=name, task=task, items=items)
        )
        if unmeasured is None:
            self.unmeasured.pop(part, None)
        else:
            self.unmeasured[part] = unmeasured
        self._left[part] -= 1
        if self._left[part] > 0:
            return
        del self._left[part]
        reason = self.unmeasured.get(part)
        if reason is not None:
            failure = Failure(
                checkpoint=name, stage="evaluate", task=task, reason=reason
            )
            self.failures.append(self._located(failure))
            self._leave_out([part])
        self.changes += 1  # other work may have waited for it

    def end(self, engine: int) -> None:
        """The engine has ended its work, or itself ends."""
        busy = self._release(engine)
        if busy is not None:
            for work in busy.works.values():
                work.shards.extendleft(reversed(busy.rest(work).shards))
            self._leave_out(())

    def _release(self, engine: int) -> _Busy | None:
        busy = self._busy.pop(engine, None)
        if busy is not None:
            busy.first.loading -= busy.loading
            for work in busy.works.values():
                work.engines.discard(engine)
        return busy

    def not_started(self, engine: int) -> Remedy:
        """An engine's process ended before its first work."""
        self.bus.report(Attempt(engine=engine, outcome="start"))
        ends = attempts.ends_engine(self.log, engine, self.attempts)
        return "retire" if ends else "go on"

    def failed(self, engine: int, failure: Failure) -> Remedy:
        """Record a failure of the engine's checkpoint, which ends its work; returns
        what to do with the engine."""
        busy = self._release(engine)
        assert busy is not None
        name, hand = busy.first.name, tuple(busy.hand.values())
        outcome: Outcome = "load" if failure.stage == "load" else "death"
        spans: dict[str, tuple[Span, ...]] = {}
        if failure.mendable:
            outcome = "input"
        elif outcome == "death":
            for shard in begun(hand, items_at_once(busy.first.assignment.config)):
                spans[shard.task] = (*spans.get(shard.task, ()), shard.span)
        self.bus.report(
            Attempt(engine=engine, checkpoint=name, outcome=outcome, shards=spans)
        )
        others = self._others(engine, name)
        given_up = attempts.is_hopeless(self.log, name, others, self.attempts)
        for work in busy.works.values():
            rest = busy.rest(work)
            if outcome == "death":
                given_up |= self._examine(work, rest, failure, alone=len(hand) == 1)
            else:
                work.shards.extendleft(reversed(rest.shards))
                self._works.remove(work)
                self._works.append(work)
        # Another engine may still succeed with this checkpoint.
        holders = [busy.first.name for busy in self._busy.values()]
        parts: list[Part] = []
        if given_up and name not in holders:
            self.failures.append(self._located(failure))
            parts = [part for part in self._left if part[0] == name]
        self._leave_out(parts)
        return self._remedy(engine)

    def _examine(
        self, work: _Work, rest: Assignment, failure: Failure, *, alone: bool
    ) -> bool:
        """Put back what a dead engine had in hand of a work; returns whether to set the
        checkpoint aside. `alone`: it had one shard.

        A suspect is tried alone. If it kills again, it is halved, until one item is
        left. Its records get the reason.
        """
        (name, task), given_up = rest.part, False
        suspects, others = self._suspects(rest)
        if suspects and alone:
            (shard,) = suspects
            suspects = halves_of(shard)
            self._left[rest.part] += len(suspects) - 1
            known = self.log, rest.part, shard.span, self.attempts
            guilty = len(suspects) == 1 and attempts.is_guilty(*known)
            if guilty and rest.refusal is None:
                self.bus.report(Attempt(checkpoint=name, outcome="item"))
                given_up = attempts.has_deadly_items(self.log, name)
                item = self.questions[rest.task_key][shard.questions[0]].item
                lost = replace(
                    failure,
                    stage="item",
                    task=task,
                    language=item.language,
                    item=item.item_id,
                )
                self.failures.append(self._located(lost))
                rest = replace(rest, refusal=failure.reason)
        work.shards.extendleft(reversed(others))
        self._put_alone(rest, suspects)
        return given_up

    def _suspects(self, assignment: Assignment) -> tuple[Shards, Shards]:
        """The shards to evaluate alone, and the others."""
        suspects = tuple(
            shard
            for shard in assignment.shards
            if attempts.is_suspect(self.log, assignment.part, shard.span, self.attempts)
        )
        others = [shard for shard in assignment.shards if shard not in suspects]
        return suspects, tuple(others)

    def _put_alone(self, assignment: Assignment, suspects: Shards) -> None:
        for shard in suspects:
            self._put(replace(assignment, suspect=True), (shard,))

    def _remedy(self, engine: int) -> Remedy:
        """What to do with an engine that has just failed."""
        if not attempts.is_doubtful(self.log, engine, self.attempts):
            return "go on"
        return "retire" if self.known is None else "probe"

    def _located(self, failure: Failure) -> Failure:
        return attempts.located(self.log, failure, self.hosts)

    def fits(self, engine: int, checkpoint: str) -> bool:
        """Whether an engine serves a checkpoint's kind: files, or a URL."""
        return (engine in self.remote_engines) == (checkpoint in self.remote)

    def _others(self, engine: int, checkpoint: str) -> set[int]:
        """The other engines that fit a checkpoint."""
        fitting = {each for each in self.engines if self.fits(each, checkpoint)}
        return fitting - {engine}

    def _ready(self, engine: int, works: Iterable[_Work]) -> list[_Work]:
        """The works that an engine may begin: the answers that they read are there."""
        may_take = self._may_take(engine)
        return [
            work
            for work in works
            if work.assignment.after not in self._left and may_take(work.assignment)
        ]

    def _may_take(self, engine: int) -> Callable[[Assignment], bool]:
        """Whether an engine may try a checkpoint: those that failed with it, and the
        one that doubts it, go last."""
        unfit = attempts.unfit(self.log, self.attempts)

        def may(each: Assignment) -> bool:
            name = each.checkpoint.name
            if not self.fits(engine, name):
                return False
            failed = unfit.get(name, set()) | {each.doubted_by}
            return engine not in failed or self._others(engine, name) <= failed

        return may

    def _leave_out(self, parts: Iterable[Part]) -> None:
        """Take parts off the board, together with the work that would read their
        answers."""
        self._without |= set(parts)
        while self._without:
            for each in self._works:
                if each.assignment.part in self._without:
                    each.shards.clear()
            for part in self._without:
                self._left.pop(part, None)
            orphans = {
                each.assignment.part: each.assignment
                for each in self._works
                if each.shards and each.assignment.after in self._without
            }
            if not orphans:
                break
            for (name, task), orphan in orphans.items():
                assert orphan.base is not None
                reason = f"its base {orphan.base.name!r} was set aside"
                failure = Failure(
                    checkpoint=name,
                    task=task,
                    stage="evaluate",
                    reason=reason,
                    attempts=0,
                )
                self.failures.append(failure)
            self._without |= orphans.keys()
        self._works = [each for each in self._works if each.shards or each.engines]
        self.changes += 1
