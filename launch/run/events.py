"""The events of a run: a small record for each kind. docs/runs.md has the fields of
those that `logs/events.jsonl` gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from evaluator.core.errors import Json
from evaluator.store.run_json import Failure

if TYPE_CHECKING:
    from evaluator.deciding.decision import Verdict

Part = tuple[str, str]  # checkpoint, task
# in the name of a part, before the call's number: its items have other parts too
COMPLETING = "p"
State = Literal[
    "running", "finished", "finished_with_failures", "failed", "interrupted"
]
# the order of fields in a line of the log
_FIELDS = ("engine", "checkpoint", "task", "items", "total", "swapped", "seconds",
           "state", "text")  # fmt: skip


class Event:
    kind: ClassVar[str]
    logged: ClassVar[bool] = True

    def row(self) -> Json:
        """The fields that are not empty. Engine 0 is a number like others."""
        row = {}
        for name in _FIELDS:
            value = getattr(self, name, None)
            if value or (name == "engine" and value is not None):
                row[name] = value
        return row


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
class End(Event):
    kind = "end"
    state: State
    text: str = ""
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
    """The items that the run evaluates, and what an earlier call gave up."""

    kind = "planned"
    logged = False
    items: Mapping[Part, int]
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
    seconds: float = 0.0


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
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Began(OfEngine):
    kind = "began"
    checkpoint: str
    task: str
    items: int


@dataclass(frozen=True, kw_only=True)
class Advanced(OfEngine):
    """An engine has finished `items` of what it began. The records tell it too."""

    kind = "advanced"
    logged = False
    items: int


@dataclass(frozen=True, kw_only=True)
class Ended(OfEngine):
    kind = "ended"
    checkpoint: str = ""
    task: str = ""
    items: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class OfCheckpoint(Event):
    checkpoint: str


@dataclass(frozen=True, kw_only=True)
class Recorded(OfCheckpoint):
    """The records that an earlier call left."""

    kind = "recorded"
    logged = False
    task: str
    items: int


@dataclass(frozen=True, kw_only=True)
class Completed(OfCheckpoint):
    kind = "completed"
    seconds: float = 0.0


class Making(OfCheckpoint):
    kind = "making"


@dataclass(frozen=True, kw_only=True)
class Made(Event):
    kind = "made"
    checkpoint: str = ""
    items: int = 0
    total: int
    seconds: float = 0.0


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

    def row(self) -> Json:
        failure = self.failure
        row = {"checkpoint": failure.checkpoint, "task": failure.task}
        row |= {"state": failure.stage, "text": failure.text}
        return {name: value for name, value in row.items() if value}
