"""What follows from a failure: pure functions of one list of attempts.

Failed work is tried again, first on an engine that has not failed with it. Either
the checkpoint or the engine can be at fault. Counts decide which:

- A checkpoint that fails `attempts` times in a row is set aside.
- An engine that fails with `attempts` different checkpoints in a row must load one
  that has loaded before. If it cannot, it is retired.
- A job that makes a checkpoint is given up after `attempts` failures, or at once if
  its input is wrong. It may lose some more nodes: it may be what ends them.
- Two engines must fail on all answers of a shard before that is believed.

An engine that dies has many items in flight. All shards that may have killed it
become suspects. A shard that is suspected often enough is evaluated alone. If it
kills again, it is halved, until one item is left. That item's records get
`engine_error`, and all other work continues.

`logs/events.jsonl` has the list. In memory it is without the attempts that went well,
and without the failures that no question needs after them."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from evaluator.store.run_json import Failure
from launch.run.events import Advanced, Attempt, Event, Loaded, Part, Span

Log = tuple[Attempt, ...]

# more deaths than attempts, in a row, before a checkpoint is set aside: halving needs
# some. The same for lost nodes, which may have other causes than the job.
_MORE_DEATHS = 3
_DEADLY_ITEMS = 8  # limit for one checkpoint: each costs several engines
_FAILURES = "load", "death", "input"


def after(log: Log, event: Event) -> Log:
    """The list after an event of the run."""
    match event:
        case Attempt(outcome="sound"):
            return tuple(_settled(log, engine=event.engine))
        case Attempt():
            return (*log, event)
        case Advanced() if log:
            return tuple(_settled(log, event.engine, event.checkpoint))
        case Loaded() if log:
            started = "start", event.engine
            return tuple(each for each in log if (each.outcome, each.engine) != started)
    return log


def _settled(log: Log, engine: int, checkpoint: str | None = None) -> Iterator[Attempt]:
    for each in log:
        found = {"engine"} if each.engine == engine else set()
        if each.checkpoint == checkpoint:
            found |= {"checkpoint"} | ({"both"} if found else set())
        if not ("both" in found and each.outcome in ("load", "input")):
            yield replace(each, settled=each.settled | found) if found else each


def resumed(log: Log, unfinished: Collection[str]) -> Log:
    """The list of another call, or of a sweep that has grown. Its engines are others.
    Files may have been mended, and each checkpoint is tried again: what was given up,
    from the start."""
    return tuple(
        replace(each, engine=-1)
        for each in log
        if each.checkpoint in unfinished and each.outcome != "input"
    )


# ---- engines and checkpoints


def row(log: Log, checkpoint: str) -> Log:
    """A checkpoint's failures since its last finished shard."""
    return tuple(
        each
        for each in log
        if each.checkpoint == checkpoint
        and each.outcome in _FAILURES
        and "checkpoint" not in each.settled
    )


def is_hopeless(log: Log, checkpoint: str, others: set[int], attempts: int) -> bool:
    """Whether to set a checkpoint aside that has just failed. `others`: the engines
    that fit it; wrong input may be right on another machine."""
    found = row(log, checkpoint)
    limit = attempts + _MORE_DEATHS * (found[-1].outcome == "death")
    if found[-1].outcome == "input":
        limit = 1 if others <= {each.engine for each in found} else 2
    return len(found) >= limit


def is_doubtful(log: Log, engine: int, attempts: int) -> bool:
    """Whether an engine failed with one checkpoint after another."""
    names = {
        each.checkpoint
        for each in log
        if each.engine == engine
        and each.outcome in _FAILURES
        and "engine" not in each.settled
    }
    return len(names) >= max(2, attempts)


def unfit(log: Log, attempts: int) -> Mapping[str, set[int]]:
    """By checkpoint: the engines that go last with it, because they failed since its
    last finished shard, or often without one of their own."""
    found, between = defaultdict[str, set[int]](set), Counter[tuple[str, int]]()
    for each in log:
        if each.outcome in _FAILURES:
            pair = each.checkpoint, each.engine
            between[pair] += "both" not in each.settled
            if "checkpoint" not in each.settled or between[pair] >= attempts:
                found[each.checkpoint].add(each.engine)
    return found


def unloadable(log: Log) -> set[str]:
    """The checkpoints that failed to load and have finished no shard since."""
    return {
        each.checkpoint
        for each in log
        if each.outcome == "load" and "checkpoint" not in each.settled
    }


def ends_engine(log: Log, engine: int, attempts: int) -> bool:
    """Whether an engine's process ended too often before its first work."""
    return sum(each.outcome == "start" and each.engine == engine for each in log) >= (
        attempts
    )


def located(log: Log, failure: Failure, hosts: Mapping[int, set[str]]) -> Failure:
    """A failure with the engines and nodes on which the checkpoint has failed, and the
    number of its failures in a row. `hosts`: the nodes of each engine, by name."""
    name = failure.checkpoint
    engines = {
        each.engine
        for each in log
        if each.checkpoint == name
        and each.outcome in _FAILURES
        and each.engine >= 0
        and "both" not in each.settled
    }
    nodes = set[str]().union(*(hosts.get(engine, ()) for engine in engines))
    return replace(
        failure,
        engine=", ".join(map(str, sorted(engines))),
        node=", ".join(sorted(nodes)),
        attempts=max(1, len(row(log, name))),
    )


def count(log: Log, checkpoint: str, outcome: str) -> int:
    pair = checkpoint, outcome
    return sum((each.checkpoint, each.outcome) == pair for each in log)


def given_up(
    log: Log, failure: Failure, attempts: int, *, lost: bool
) -> Failure | None:
    """The failure of a job, with its attempts, if the job is given up. `lost`: its node
    was."""
    outcome = "node" if lost else "job"
    tries = count(log, failure.checkpoint, outcome)
    if lost:
        reason = f"{tries} nodes were lost while they made it, the last one now:"
        failure = replace(failure, reason=f"{reason} {failure.reason}")
        attempts += _MORE_DEATHS
    final = tries >= attempts or (failure.mendable and not lost)
    return replace(failure, attempts=tries) if final else None


# ---- deaths


def is_suspect(log: Log, part: Part, span: Span, attempts: int) -> bool:
    """Whether a shard is to be evaluated alone, or halved if it was alone."""
    return _suspicion(log, part, span, attempts) >= _patience(attempts)


def is_guilty(log: Log, part: Part, span: Span, attempts: int) -> bool:
    """Whether an item that was alone has killed its engine."""
    return _suspicion(log, part, span, attempts) >= attempts


def has_deadly_items(log: Log, checkpoint: str) -> bool:
    """Whether they are too many."""
    return count(log, checkpoint, "item") >= _DEADLY_ITEMS


def _patience(attempts: int) -> int:
    """Deaths after which a suspect is evaluated alone, or halved."""
    return max(1, attempts - 1)


def _suspicion(log: Log, part: Part, span: Span, attempts: int) -> int:
    """The deaths in which a shard was in flight. One that shares items with another
    such shard is, after one more death, evaluated alone: halves are."""
    name, task = part
    deaths = [
        each.shards.get(task, ())
        for each in log
        if (each.checkpoint, each.outcome) == (name, "death")
    ]
    shares = any(
        other != span and other[0] <= span[1] and span[0] <= other[1]
        for shards in deaths
        for other in shards
    )
    own = sum(span in shards for shards in deaths)
    return own + shares * (_patience(attempts) - 1)
