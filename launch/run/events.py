"""The events of a run: a small record for each kind. docs/runs.md has the fields of
those that `logs/events.jsonl` gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, TypeAdapter

from evaluator.core.errors import Document, Json
from evaluator.core.records import EngineStats
from evaluator.store.run_json import Failure, Served

if TYPE_CHECKING:
    from evaluator.deciding.decision import Verdict

Part = tuple[str, str]  # checkpoint, task
Span = tuple[int, int]  # a shard's first and last question
# of an engine with a checkpoint ("done" is `Advanced`); of its process before that; of an
# engine that loads what has loaded before; of one item; of a second engine, on which all
# answers of a shard fail; of a job that makes a checkpoint; of the job's node
Outcome = Literal[
    "load", "death", "input", "start", "sound", "item", "alike", "job", "node"
]
_UNKNOWN = Served(checkpoint="", device="")  # of a log of an earlier version
# a file may be anybody's: a limit keeps sums finite
Seconds = Annotated[float, Field(ge=0, lt=10**9)]
State = Literal[
    "running", "finished", "finished_with_failures", "failed", "interrupted"
]


class Event:
    kind: ClassVar[str]
    logged: ClassVar[bool] = True

    def row(self) -> Json:
        """The fields, without those that have their default."""
        form = _forms()[self.kind]
        row: Json = form.dump_python(self, mode="json", exclude_defaults=True)
        return row


def event_of(row: Document) -> Event:
    """The event of a line of the log. Raises ValueError or KeyError for what is none."""
    event: Event = _forms()[row["event"]].validate_python(dict(row))
    return event


@cache
def _forms() -> Mapping[str, TypeAdapter[Any]]:
    return {each.kind: TypeAdapter(each) for each in logged_kinds(Event)}


def logged_kinds(kind: type[Event]) -> Iterator[type[Event]]:
    """All below a kind that `logs/events.jsonl` gets."""
    for each in kind.__subclasses__():
        if hasattr(each, "kind") and each.logged:
            yield each
        yield from logged_kinds(each)


Report = Callable[[Event], None]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Message(Event):
    text: str = ""


class Started(Message):
    kind = "started"


class TookOver(Message):
    kind = "took_over"


class Refused(Message):
    kind = "refused"


@dataclass(frozen=True)
class Evaluated(Event):
    """A sweep's work has ended; its report follows."""

    kind = "evaluated"
    state: State
    text: str = ""


@dataclass(frozen=True)
class End(Evaluated):
    kind = "end"
    code: int = 0  # of the process


@dataclass(frozen=True)
class Judged(Event):
    """The report is written, with these verdicts."""

    kind = "judged"
    logged = False
    verdicts: Sequence[Verdict]


class Phase(Message):
    kind = "phase"


class Joined(Message):
    kind = "joined"


class Noted(Message):
    kind = "noted"


class Warned(Message):
    kind = "warned"


@dataclass(frozen=True)
class Checked(Message):
    """A finding of preflight, which each call has again."""

    kind = "checked"
    logged = False
    warning: bool = False


@dataclass(frozen=True)
class Planned(Event):
    """The items that the call evaluates, by checkpoint and task, and what an earlier
    call gave up."""

    kind = "planned"
    items: Mapping[str, Mapping[str, int]]
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OfEngine(Event):
    engine: int
    text: str = ""


class Starting(OfEngine):
    kind = "starting"


@dataclass(frozen=True, kw_only=True)
class Placed(OfEngine):
    kind = "placed"
    seconds: Seconds = 0.0


class Unplaced(OfEngine):
    kind = "unplaced"


class Died(OfEngine):
    kind = "died"


class EngineEnded(OfEngine):
    kind = "left"


@dataclass(frozen=True, kw_only=True)
class Loading(OfEngine):
    kind = "loading"
    checkpoint: str


@dataclass(frozen=True, kw_only=True)
class Loaded(OfEngine):
    kind = "loaded"
    checkpoint: str
    swapped: bool = False
    seconds: Seconds = 0.0
    # of its rows in run.json: what is equal in all of this load
    served: Served = _UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Began(OfEngine):
    kind = "began"
    checkpoint: str
    task: str
    items: int


@dataclass(frozen=True, kw_only=True)
class Advanced(OfEngine):
    """An engine has stored a shard, of so many `items`."""

    kind = "advanced"
    checkpoint: str
    task: str
    items: int


@dataclass(frozen=True, kw_only=True)
class Attempt(Event):
    """What `launch/run/attempts.py` decides by."""

    kind = "attempt"
    outcome: Outcome
    engine: int = -1  # below 0: none, or one of an earlier call
    checkpoint: str = ""
    # in flight at a death, by task
    shards: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)
    # what has gone well since: its engine, its checkpoint, both together
    settled: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Ended(OfEngine):
    kind = "ended"
    checkpoint: str = ""
    task: str = ""
    items: int = 0
    seconds: Seconds = 0.0


@dataclass(frozen=True, kw_only=True)
class OfCheckpoint(Event):
    checkpoint: str


@dataclass(frozen=True, kw_only=True)
class Counted(OfCheckpoint):
    """What an engine has done for a task since it told so last."""

    kind = "counted"
    engine: int
    task: str
    items: int
    seconds: Seconds
    stats: EngineStats


@dataclass(frozen=True, kw_only=True)
class Recorded(OfCheckpoint):
    """The records that an earlier call left."""

    kind = "recorded"
    task: str
    items: int


@dataclass(frozen=True, kw_only=True)
class Reused(OfCheckpoint):
    """The records that were taken from another run."""

    kind = "reused"
    task: str
    items: int
    run: str


@dataclass(frozen=True, kw_only=True)
class Completed(OfCheckpoint):
    kind = "completed"
    seconds: Seconds = 0.0


class Making(OfCheckpoint):
    kind = "making"


@dataclass(frozen=True, kw_only=True)
class Made(Event):
    kind = "made"
    checkpoint: str = ""
    items: int = 0
    total: int
    seconds: Seconds = 0.0


@dataclass(frozen=True, kw_only=True)
class Retried(Event):
    kind = "retried"
    engine: int | None = None
    checkpoint: str = ""
    task: str = ""
    text: str = ""


@dataclass(frozen=True)
class GaveUp(Event):
    kind = "gave_up"
    failure: Failure
