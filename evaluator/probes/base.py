"""A probe is one way to look for an answer: one object in the registry `PROBES`.

Everything that depends on the kind of probe reads this object. It defines help, the
validation of settings, prompts and requests, records, columns of outcomes, cost and
item view. A probe is one class in one file and one line in
`evaluator/probes/__init__.py`::

    class Shout(ItemProbe):
        name, help = "shout", "the greedy answer, graded in capitals"
        ...
    PROBES.register(Shout())

A probe runs on one item (or on one window of a text) of one checkpoint as a generator:
it yields requests, gets their responses, and returns records::

    def run(self, item: ItemRun) -> Steps:
        (response,) = yield [item.greedy()]
        return [item.record(self.name, **item.generated(response))]

What a probe raises ends the run in one line that names probe and item (`blame`). No
engine is restarted for it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from evaluator.core.config import Registry
from evaluator.core.errors import ResurfaceError, one_line
from evaluator.core.records import Columns, Format, Item, Record
from evaluator.engine.base import Cancel, Request, Response
from evaluator.probes.item import ItemRun, Settings

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.asking.questions import Posed, Question

# The kinds of measurement. Reports list probes in this order.
Evidence = Literal["said", "recognised", "reachable", "predicted"]
EVIDENCE: tuple[Evidence, ...] = ("said", "recognised", "reachable", "predicted")
# How the item view shows a probe's records: the answer in each format, several answers
# to the open prompt, scored options, the gold answer's rank, or the aligned answer's
# rank with the lead-in.
View = Literal["answer", "answers", "options", "rank", "aligned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A probe's requests per item or text, beside the prompts; probes with one name
    in `scored` share that cost."""

    items: int = 0  # windows of a text; an item needs no mention
    requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    compared: int = 0  # positions whose distributions the base keeps
    scored: frozenset[str] = frozenset()

    @classmethod
    def of_answers(cls, count: int, config: Settings) -> Cost:
        """Of so many answers, each after its thought if the model thinks."""
        each = config.max_new_tokens + config.expected_thought
        requests = count * (2 if config.thinks else 1)
        return cls(requests=requests, generated_tokens=count * each)


Steps = Generator[Sequence[Request | Cancel], Sequence[Response], list[Record]]


class Probe(ABC):
    """One way of looking for an answer. Subclass `ItemProbe` or `TextProbe`, not
    this: only their records become outcomes."""

    name: str  # in settings, records and outcome columns
    help: str  # one clause
    reads: ClassVar[Literal["items", "text"]]
    evidence: Evidence
    view: View | None = None  # None: the item view does not show it
    title: str = ""  # of its records in the item view
    # The outcome columns that `reduce` fills, with their pandas types. `<name>_status`
    # and `<name>_why` come on top.
    columns: Mapping[str, str]
    # It reads its base's answers or distributions (`ItemRun.base`, `references`). So a
    # task of a checkpoint with a base runs after the base's records of that task exist.
    # Of a model that thinks it gets the base's thought in `prompts`.
    after_base: bool = False
    # it compares distributions, which the base keeps in the run directory
    references: bool = False
    # `run` goes on after every step of the engine, with the responses of that step
    gathers: ClassVar[bool] = False
    # Its answers are drawn, once under each of the run seeds (`Settings.seeds`). Tables
    # take an item with all its seeds as one: of `columns`, whole numbers are counts and
    # add up, others are averaged.
    drawn: ClassVar[bool] = False
    # Its responses bring no log-probabilities: those of an item's other probes show
    # that they are not numbers.
    blind: ClassVar[bool] = False

    def asks(self, posed: Posed) -> bool:
        """Whether it has records of this question or window."""
        return True

    def describe(self, config: Settings) -> str:
        """The work under these settings, in a few words for a dry run."""
        return self.name

    def seeds(self, config: Settings) -> tuple[int, ...]:
        """The seeds of its records."""
        return config.run_seeds if self.drawn else (config.seed,)

    def draws(self, config: Settings) -> tuple[tuple[Format, int], ...]:
        """The formats and seeds of its records. An item without one of these is not
        finished."""
        return tuple(("open", seed) for seed in self.seeds(config))

    def unanswered(self, item: ItemRun, columns: Columns) -> list[Record]:
        """Its records of an item without an answer."""
        return [
            item.record(self.name, format, seed=seed, **columns)
            for format, seed in self.draws(item.config)
        ]

    @abstractmethod
    def run(self, item: ItemRun) -> Steps:
        """One item or window on one checkpoint: a generator that yields requests and
        returns its records, in order.

        It goes on when all requests of a step are answered, and gets the responses
        in their order. After an empty step it goes on when no request of the item is
        open: all that the item will bring is then known. A probe that `gathers` goes
        on after every step of the engine, with the responses of that step, and finds
        new tokens in the lists of its streamed requests. It may cancel its requests."""


class RegisteredProbe(Probe):
    @abstractmethod
    def reduce(self, records: pd.DataFrame) -> pd.DataFrame:
        """One row for each item: `<name>_status` and `columns`, null where the probe
        was not measured.

        `records` are this probe's, always all of an item. The result's index is
        `evaluator.core.reducing.KEY`.
        """


class ItemProbe(RegisteredProbe):
    reads = "items"
    deep: bool = False  # runs on the first 100 items of a language only
    # the distractors that it chooses among
    options: Literal["drawn", "hard"] | None = None

    def asks(self, posed: Posed) -> bool:
        return not self.deep or getattr(posed, "deep", False)

    def formats(self, config: Settings) -> tuple[Format, ...]:
        """The formats whose prompts it needs. By default the open one, whatever
        formats are evaluated."""
        return ("open",)

    def continuations(self, question: Question) -> tuple[str, ...]:
        """The answers to the open prompt that it scores."""
        return ()

    def fits(self, question: Question, config: Settings) -> bool:
        """Whether a question has everything that the probe needs. Prompts are
        checked against their cap later."""
        return self.asks(question)

    def why_not(self, item: ItemRun) -> str | None:
        """Why the probe cannot run on an item: the text of its `excluded` record.
        None: it can."""
        if "open" not in item.prompts:
            return item.question.why_not("open")
        return None

    @abstractmethod
    def cost(self, config: Settings) -> Cost:
        """Its requests for one item."""


class TextProbe(RegisteredProbe):
    """A probe of a text, window by window."""

    reads = "text"

    @abstractmethod
    def cost(self, tokens: int, config: Settings) -> Cost:
        """Its requests for a text of this number of tokens."""


PROBES: Registry[RegisteredProbe] = Registry("probe")


def answering_probes() -> tuple[str, ...]:
    """The probes whose records hold a response to judge."""
    return tuple(probe.name for probe in PROBES if probe.view in ("answer", "answers"))


_log = logging.getLogger(__name__)


def blame(probe: str, item: Item, error: Exception) -> Exception:
    """What to raise for an error of `probe` on `item`: a ResurfaceError that names
    both. The log gets the traceback.

    A ResurfaceError is returned unchanged: it is clear by itself."""
    if isinstance(error, ResurfaceError):
        return error
    line = (
        f"probe {probe!r} failed on item {item.item_id!r} ({item.language}) of task"
        f" {item.task!r}: {type(error).__name__}: {one_line(error)}"
    )
    _log.error(line, exc_info=error)
    return ResurfaceError(line)
