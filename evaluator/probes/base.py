"""A probe is one way to look for an answer: one object in the registry `PROBES`.

Everything that depends on the kind of probe reads this object. It defines help, the validation of settings, prompts and
requests, records, columns of outcomes, cost and item view. A probe is one class in one file and one line in
`evaluator/probes/__init__.py`::

    class Shout(ItemProbe):
        name, help = "shout", "the greedy answer to a prompt in capitals"
        ...
    PROBES.register(Shout())

A probe at work on one item (or on one window of a text) of one checkpoint is an `Inquiry`: it sends its first requests,
may send more as responses arrive, and ends as records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from evaluator.core.config import Frozen, Registry
from evaluator.core.records import Format, Record
from evaluator.engine.base import Cancel, Generate, Request, Response, Score
from evaluator.engine.distributions import RANKS

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.asking.prompts import Continuation, Prompt
    from evaluator.asking.questions import Question, Window
    from evaluator.probes.recording import Decode, Recorder


Seed = Annotated[int, Field(ge=0, lt=2**63)]  # the records' column has 64 bits: more would end an engine at each item


def each_once(names: Sequence[object] | None) -> None:
    """Raises ValueError for an empty list and for one that repeats an entry; None is no list."""
    if names is not None and (not names or len(set(names)) != len(names)):
        raise ValueError(f"must name each one once, and at least one: {', '.join(map(str, names)) or '(empty)'}")


class Settings(Frozen):
    """The settings that probes read. The defaults are the paper's (The Benchmark Illusion, arXiv 2606.17609)."""

    formats: tuple[Format, ...] = ("open",)
    seed: Seed = 0
    max_new_tokens: int = Field(default=32, ge=1)
    beam_width: int = Field(default=5, ge=1, le=10)
    samples: int = Field(default=10, ge=1)
    sample_seeds: tuple[Seed, ...] | None = None  # for the sample probe; None: the run seed. They must include it
    top_p: float = Field(default=0.9, gt=0, le=1)
    temperature: float = Field(default=1.0, ge=0.01, le=2)  # vLLM refuses more, and silently raises less
    window: int = Field(default=2048, ge=2)  # tokens of a window of a text; at most the model's number of positions
    # Keep this number of the base's likeliest tokens, and the rest as one; 0: the whole vocabulary.
    fidelity_top: int = Field(default=0, ge=0)

    @field_validator("formats", "sample_seeds")
    @classmethod
    def _no_repeats(cls, value: tuple[object, ...] | None) -> tuple[object, ...] | None:
        each_once(value)
        return value

    @field_validator("fidelity_top")
    @classmethod
    def _ranks(cls, value: int) -> int:
        if 0 < value < RANKS:
            raise ValueError(f"{value}: the first {RANKS} ranks are compared, so {RANKS} or more, or 0 for all")
        return value

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the sample probe."""
        return (self.seed,) if self.sample_seeds is None else self.sample_seeds


# The kinds of measurement. Reports list probes in this order.
Evidence = Literal["said", "recognised", "reachable", "predicted"]
EVIDENCE: tuple[Evidence, ...] = ("said", "recognised", "reachable", "predicted")
# How the item view shows a probe's records: the answer in each format, several answers to the open prompt, scored
# options, the gold answer's rank, or the aligned answer's rank with the lead-in.
View = Literal["answer", "answers", "options", "rank", "aligned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A probe's requests, per item or per text, beside the prompts of its formats.

    `scored` names the scored answers, so that probes that score the same answer (`gold`) share its cost.
    """

    items: int = 0  # windows of a text; an item needs no mention
    requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    compared: int = 0  # positions whose distributions the base keeps
    scored: frozenset[str] = frozenset()


class Probe(ABC):
    """One way of looking for an answer. Subclass `ItemProbe` or `TextProbe`, not this."""

    name: str  # in settings, records and outcome columns
    help: str  # one clause
    reads: ClassVar[Literal["items", "text"]]
    evidence: Evidence
    view: View | None = None  # None: the item view does not show it
    title: str = ""  # of its records in the item view
    # The outcome columns that `reduce` fills, with their pandas types. `<name>_status` and `<name>_why` come on top.
    columns: Mapping[str, str]
    # It reads its base's answers or distributions (`Asking.base`, `Reading.references`). So a task of a checkpoint with
    # a base runs after the base's records of that task exist.
    after_base: bool = False
    references: bool = False  # it compares distributions, which the base keeps in the run directory

    def describe(self, config: Settings) -> str:
        """The work under these settings, in a few words for a dry run."""
        return self.name

    @abstractmethod
    def reduce(self, asked: pd.DataFrame) -> pd.DataFrame:
        """One row for each item: `<name>_status` and `columns`, null where the probe was not measured.

        `asked` holds this probe's records, always all of an item. The result's index is `reducing.KEY`.
        """


class ItemProbe(Probe):
    """A probe of questions."""

    reads = "items"
    deep: bool = False  # runs on the first 100 items of a language only
    options: Literal["drawn", "hard"] | None = None  # the distractors that it chooses among

    def formats(self, config: Settings) -> tuple[Format, ...]:
        """The formats whose prompts it needs. By default the open one, whatever formats are evaluated."""
        return ("open",)

    def continuations(self, question: Question) -> tuple[str, ...]:
        """The answers to the open prompt that it scores."""
        return ()

    def fits(self, question: Question, config: Settings) -> bool:
        """Whether a question has everything that the probe needs. Prompts are checked against their cap later."""
        return question.deep or not self.deep

    def why_not(self, plan: ItemPlan) -> str | None:
        """Why the probe cannot run on an item: the text of its `excluded` record. None: it can."""
        return None if "open" in plan.prompts else plan.question.why_not("open")

    @abstractmethod
    def ask(self, asking: Asking) -> Inquiry:
        """Begin with one item of one checkpoint. Called only where `why_not` is None."""

    @abstractmethod
    def cost(self, config: Settings) -> Cost:
        """Its requests for one item."""


class TextProbe(Probe):
    """A probe of a text, window by window."""

    reads = "text"

    @abstractmethod
    def ask(self, reading: Reading) -> Inquiry:
        """Begin with one window on one checkpoint."""

    @abstractmethod
    def cost(self, tokens: int, config: Settings) -> Cost:
        """Its requests for a text of this number of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseAnswer:
    """The greedy answer of a checkpoint's base to an item's open prompt, or why there is none."""

    token_ids: tuple[int, ...] = ()  # EOS included
    missing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """Where distributions are on one task: those that a checkpoint compares its own with, and those that it keeps.

    Both are the same folder for a checkpoint that is its own base. One that has a base, and is the base of others,
    keeps its distributions along its own answers and compares along its base's.
    """

    compare: str = ""  # empty: there is nothing to compare with, and `missing` says why
    keep: str = ""  # empty: no checkpoint is compared with this one
    missing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPlan:
    """A question in token ids.

    A format without a prompt cannot be evaluated: its records are `excluded`. Checkpoints that share a tokenizer share
    everything but `base`.
    """

    question: Question
    prompts: Mapping[Format, Prompt]
    scored: Mapping[str, Continuation]  # answers after the open prompt, by their text
    base: BaseAnswer | None = None  # None: the checkpoint is its own base, or no probe reads its base's answers
    references: References | None = None  # None: there is no place for them, or no probe needs them


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One window on one checkpoint, as the probes of texts see it."""

    window: Window
    config: Settings
    serial: int  # unique in the stream
    references: References | None = None  # as in ItemPlan

    def request_id(self, probe: str, detail: object) -> str:
        return f"{self.serial}/{probe}/{detail}"


@dataclass(frozen=True, slots=True)
class Asking:
    """One item on one checkpoint: its prompts, the settings, and the requests that probes share.

    Probes that return the same `greedy` or `score` request from `Inquiry.start` share it: it is sent once.
    """

    plan: ItemPlan
    config: Settings
    eos_ids: frozenset[int]
    decode: Decode
    serial: int  # unique in the stream

    @property
    def base(self) -> BaseAnswer | None:
        """The base's answer to the open prompt. None: this checkpoint is its own base, so `greedy` will bring it."""
        return self.plan.base

    def request_id(self, probe: str, detail: object) -> str:
        return f"{self.serial}/{probe}/{detail}"

    def prompt(self, format: Format = "open") -> Prompt:
        return self.plan.prompts[format]

    def greedy_id(self, format: Format) -> str:
        """The id of the greedy request of a format."""
        return self.request_id("greedy", format)

    def greedy(self, format: Format) -> Generate:
        """The most likely answer to a format's prompt."""
        return Generate(
            request_id=self.greedy_id(format),
            prompt_ids=self.plan.prompts[format].token_ids,
            max_tokens=self.config.max_new_tokens,
        )

    def scored(self, answer: str) -> Continuation:
        return self.plan.scored[answer]

    def score_id(self, answer: str) -> str:
        """The id of an answer's score. The prompt's length tells a moved boundary from an unmoved one."""
        continuation = self.plan.scored[answer]
        ids = ",".join(map(str, continuation.continuation_ids))
        return self.request_id("score", f"{len(continuation.prompt_ids)}:{ids}")

    def score(self, answer: str) -> Score:
        """The score of an answer to the open prompt, one of the probe's `continuations`."""
        continuation = self.plan.scored[answer]
        return Score(
            request_id=self.score_id(answer),
            prompt_ids=continuation.prompt_ids,
            continuation_ids=continuation.continuation_ids,
        )


class Inquiry(ABC):
    """One probe of one item or window on one checkpoint."""

    gathers: ClassVar[bool] = False  # `follow` is called too

    def __init__(self) -> None:
        self.responses: dict[str, Response] = {}  # final ones, by request id

    @abstractmethod
    def start(self) -> Sequence[Request]:
        """The requests that depend on no response."""

    def receive(self, response: Response) -> Sequence[Request | Cancel]:
        """Take a response to one of the requests; returns the requests that follow from it, under new ids.

        A request that is shared with a probe that streams it brings responses that are not final.
        """
        if response.final:
            self.responses[response.request_id] = response
        return ()

    def follow(self) -> Sequence[Request | Cancel]:
        """Requests and cancellations after all responses since the last call, for an inquiry that `gathers`.

        An engine answers many requests in one step. Their responses are evaluated once together, before new requests.
        """
        return ()

    @abstractmethod
    def records(self, recorder: Recorder) -> list[Record]:
        """Every record, in a fixed order. Called once, when all requests have been answered or cancelled."""


class Excluded(Inquiry):
    """A probe that cannot run on an item: no request, and one record with the reason."""

    def __init__(self, probe: Probe, why: str, prompt: Prompt | None = None) -> None:
        super().__init__()
        self._probe = probe
        self._why = why
        self._prompt = prompt

    def start(self) -> Sequence[Request]:
        return ()

    def records(self, recorder: Recorder) -> list[Record]:
        return [recorder.record(self._probe.name, prompt=self._prompt, status="excluded", text=self._why)]


PROBES: Registry[Probe] = Registry("probe")


def answering_probes() -> tuple[str, ...]:
    """The probes whose records hold a response to judge."""
    return tuple(probe.name for probe in PROBES if probe.view in ("answer", "answers"))
