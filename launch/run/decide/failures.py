"""Decides what follows from a failure, from counts alone: no Ray, clocks or threads
(the board holds the lock for engines; the driver alone asks for jobs and nodes).

Failed work is tried again, first on an engine that has not failed with it. Either
the checkpoint or the engine can be at fault. Counts decide which:

- A checkpoint that fails `attempts` times in a row is set aside.
- An engine that fails with `attempts` different checkpoints in a row must load one
  that has loaded before. If it cannot, it is retired.
- A node on which every engine was retired gets another one last.
- A job that makes a checkpoint is given up after `attempts` failures, or at once if
  its input is wrong. It may lose some more nodes: it may be what ends them.
- Two engines must fail on all answers of a shard before that is believed.

An engine that dies has many items in flight. All shards that may have killed it
become suspects. A shard that is suspected often enough is evaluated alone. If it
kills again, it is halved, until one item is left. That item's records get
`engine_error`, and all other work continues."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.store.run_json import Failure
from launch.run.decide.assignments import Shard, Shards, begun, shard_of
from launch.run.events import Part

Remedy = Literal["go on", "probe", "retire"]  # for an engine after a failure
Guilty = Literal["unknown", "a shard", "an item"]

# more deaths than attempts, in a row, before a checkpoint is set aside: halving needs
# some. The same for lost nodes, which may have other causes than the job.
_MORE_DEATHS = 3
_DEADLY_ITEMS = 8  # limit for one checkpoint: each costs several engines
_RETIRED = 2  # retired engines, after which their node may be at fault


def _sets() -> defaultdict[int, set[str]]:
    return defaultdict(set)


@dataclass(slots=True)
class Ledger:
    attempts: int = 3
    known: CheckpointInfo | None = None  # a checkpoint that has loaded
    engines: set[int] = field(default_factory=set)  # with a process
    # the nodes on which an engine's processes ran, by name
    hosts: defaultdict[int, set[str]] = field(default_factory=_sets)
    # Checkpoints behind URLs, and the engines that serve these and no others.
    remote: set[str] = field(default_factory=set)
    remote_engines: set[int] = field(default_factory=set)
    # Checkpoints that failed to load and have finished no shard since: others go first.
    doubtful: set[str] = field(default_factory=set)
    # failures in a row: of a checkpoint, of one on an engine, of a job that makes one,
    # and of an engine's process to start
    _row: Counter[str] = field(default_factory=Counter)
    _between: Counter[tuple[str, int]] = field(default_factory=Counter)
    _not_made: Counter[str] = field(default_factory=Counter)
    _nodes_lost: Counter[str] = field(default_factory=Counter)  # under a job
    _starts: Counter[int] = field(default_factory=Counter)
    # the checkpoints with which an engine failed in a row
    _streak: defaultdict[int, set[str]] = field(default_factory=_sets)
    # pairs of a checkpoint and an engine, in the checkpoint's row
    _failed_on: set[tuple[str, int]] = field(default_factory=set)
    # deaths in which a shard was in flight
    _suspected: Counter[tuple[Part, str]] = field(default_factory=Counter)
    _lost_items: Counter[str] = field(default_factory=Counter)
    # checkpoints whose answers failed on two engines alike
    _believed: set[str] = field(default_factory=set)

    # ---- engines and checkpoints

    def fits(self, engine: int, checkpoint: str) -> bool:
        """Whether an engine serves a checkpoint's kind: files, or a URL."""
        return (engine in self.remote_engines) == (checkpoint in self.remote)

    def others(self, engine: int, checkpoint: str) -> set[int]:
        """The other engines that fit a checkpoint."""
        fitting = {each for each in self.engines if self.fits(each, checkpoint)}
        return fitting - {engine}

    def may_take(
        self, engine: int, checkpoint: str, doubted_by: int | None = None
    ) -> bool:
        """Whether an engine may try a checkpoint: those that failed with it, and
        `doubted_by`, go last."""
        if not self.fits(engine, checkpoint):
            return False
        if engine == doubted_by:
            return not self.others(engine, checkpoint)
        if not self._unfit(engine, checkpoint):
            return True
        others = self.others(engine, checkpoint)
        return all(self._unfit(other, checkpoint) for other in others)

    def _unfit(self, engine: int, checkpoint: str) -> bool:
        pair = checkpoint, engine
        return pair in self._failed_on or self._between[pair] >= self.attempts

    def located(self, failure: Failure) -> Failure:
        """A failure with the engines and nodes on which the checkpoint has failed,
        and the number of its failures in a row."""
        name = failure.checkpoint
        engines = sorted(each for of, each in +self._between if of == name)
        hosts = set().union(*(self.hosts[engine] for engine in engines))
        return replace(
            failure,
            engine=", ".join(map(str, engines)),
            node=", ".join(sorted(hosts)),
            attempts=max(1, self._row[name]),
        )

    def failed(self, engine: int, failure: Failure) -> bool:
        """Count a failure of an engine, which ends its work; returns whether to set the
        checkpoint aside."""
        checkpoint = failure.checkpoint
        self._row[checkpoint] += 1
        self._failed_on.add((checkpoint, engine))
        self._between[checkpoint, engine] += 1
        self._streak[engine].add(checkpoint)
        if failure.stage == "load" and not failure.mendable:
            self.doubtful.add(checkpoint)
        limit = self.attempts
        if failure.stage == "evaluate":
            limit += _MORE_DEATHS
        if failure.mendable:  # another engine may be on another machine
            others = self.others(engine, checkpoint)
            tried = {other for of, other in self._failed_on if of == checkpoint}
            limit = 1 if others <= tried else 2
        return self._row[checkpoint] >= limit

    def lost_node(self, failure: Failure) -> Failure | None:
        """Count the loss of a job's node; returns a failure if the job is given up."""
        self._nodes_lost[failure.checkpoint] += 1
        lost = self._nodes_lost[failure.checkpoint]
        if lost < self.attempts + _MORE_DEATHS:
            return None
        reason = f"{lost} nodes were lost while they made it, the last one now:"
        return replace(failure, attempts=lost, reason=f"{reason} {failure.reason}")

    def not_made(self, failure: Failure) -> Failure | None:
        """Count the failure of a job; returns it with its attempts if the job is
        given up."""
        self._not_made[failure.checkpoint] += 1
        tries = self._not_made[failure.checkpoint]
        given_up = failure.mendable or tries >= self.attempts
        return replace(failure, attempts=tries) if given_up else None

    def doubts(self, engine: int, checkpoint: str, doubted_by: int | None) -> bool:
        """Whether another engine must confirm that all of a shard's answers fail."""
        if doubted_by is not None:
            self._believed.add(checkpoint)
        others = self.others(engine, checkpoint)
        return bool(others) and checkpoint not in self._believed

    @staticmethod
    def suspected_nodes(
        rooms: Mapping[str, int], retired: Mapping[str, int], serving: Mapping[str, int]
    ) -> list[str]:
        """The nodes that get no engine although they have room: their engines were
        retired, and others have room. All three count engines by node."""
        usable = [node_id for node_id, room in rooms.items() if room > retired[node_id]]
        suspected = [
            node_id
            for node_id in usable
            if retired[node_id] >= _RETIRED and not serving[node_id]
        ]
        return suspected if len(suspected) < len(usable) else []

    def not_started(self, engine: int) -> Remedy:
        """An engine's process ended before its first work."""
        self._starts[engine] += 1
        return "retire" if self._starts[engine] >= self.attempts else "go on"

    def remedy(self, engine: int) -> Remedy:
        """Decide what to do with an engine that has just failed."""
        if len(self._streak[engine]) < max(2, self.attempts):
            return "go on"
        return "retire" if self.known is None else "probe"

    def loaded(self, engine: int, checkpoint: CheckpointInfo) -> None:
        """A checkpoint was loaded. It may still fail in the evaluation."""
        # it was the probe: so the failures were the checkpoints' fault
        if self.remedy(engine) == "probe":
            self._streak[engine].clear()
        self.known = checkpoint
        self._starts[engine] = 0

    def went_well(self, engine: int, checkpoint: str) -> None:
        self._row[checkpoint] = 0
        self.doubtful.discard(checkpoint)
        self._failed_on = {pair for pair in self._failed_on if pair[0] != checkpoint}
        self._between[checkpoint, engine] = 0
        self._streak[engine].clear()

    # ---- deaths

    def examine(
        self, part: Part, left: Sequence[Shard], items: int
    ) -> tuple[Guilty, Shards]:
        """Count a death with the unfinished shards `left`, and with `items` in
        flight at most.

        Returns its proven cause and the shards to evaluate alone. The cause is
        proven only if a single shard was left. It is then halved, unless it is one
        item."""
        for shard in begun(left, items):
            self._suspected[part, shard.name] += 1
        # deaths after which a suspect is evaluated alone, or halved
        patience = max(1, self.attempts - 1)
        suspects = tuple(
            shard for shard in left if self._suspected[part, shard.name] >= patience
        )
        if len(left) > 1 or not suspects:
            return "unknown", suspects
        questions = left[0].questions
        if len(questions) > 1:
            middle = len(questions) // 2
            parts = questions[:middle], questions[middle:]
            halves = tuple(shard_of(part) for part in parts)
            # after one more death, the guilty half is halved in turn
            for half in halves:
                self._suspected[part, half.name] = patience - 1
            return "a shard", halves
        return (
            "an item"
            if self._suspected[part, left[0].name] >= self.attempts
            else "unknown"
        ), suspects

    def lost_item(self, checkpoint: str) -> bool:
        """Count an item that kills engines; returns whether it was one too many for
        the checkpoint."""
        self._lost_items[checkpoint] += 1
        return self._lost_items[checkpoint] >= _DEADLY_ITEMS
