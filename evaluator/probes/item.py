"""One item, or one window of a text, on one checkpoint: what its probes get, and how
they fill in records.

A `Posed` holds the token ids, once for all checkpoints with the same tokenizer. Its
`ItemRun` on one checkpoint makes its probes' requests and records.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from evaluator.asking.questions import Posed, Question, Window
from evaluator.asking.thoughts import Thought
from evaluator.core.config import Day, Frozen
from evaluator.core.graders import GRADERS
from evaluator.core.grading import grades
from evaluator.core.records import Columns, Format, Grading, Item, Record, TokenIds
from evaluator.engine.base import (
    NOT_NUMBERS,
    TOO_LONG,
    UNABLE,
    Generate,
    Response,
    Score,
    Streamed,
)
from evaluator.engine.distributions import RANKS

if TYPE_CHECKING:
    from evaluator.asking.prompts import Prompt, Prompter

# the records' column has 64 bits: more would end an engine at each item
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def each_once(names: Sequence[object] | None) -> None:
    """Raises ValueError for an empty list and for one that repeats an entry; None is
    no list."""
    if names is not None and (not names or len(set(names)) != len(names)):
        raise ValueError(
            "must name each one once, and at least one:"
            f" {', '.join(map(str, names)) or '(empty)'}"
        )


class Budget(Frozen):
    budget: int = Field(ge=1)  # tokens of a thought


Thinking = Literal["off", "on"] | Budget
_THOUGHT = 1000  # tokens: what an estimate assumes of a thought without a budget


def _thinking(value: Any) -> Any:
    """YAML reads `on` as true; a number, also as an option's text, is a budget."""
    if isinstance(value, bool):
        return "on" if value else "off"
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, int) and number > 0:
        return {"budget": number}
    if not isinstance(number, dict | Budget) and number not in ("off", "on"):
        raise ValueError(
            "must be off, on, or a number N of tokens from 1 (in a sweep file:"
            " {budget: N})"
        )
    return number


class Settings(Frozen):
    """The settings that probes read. The defaults are the paper's (The Benchmark
    Illusion, arXiv 2606.17609)."""

    formats: tuple[Format, ...] = Field(
        default=("open",), description="see `list probes`"
    )
    seed: Seed = Field(default=0, description="of distractors and samples")
    # the rule by which an answer is right (`evaluator.core.grading`)
    grading: Grading = Field(default="strict", description="strict or paper")
    # what decides it in written answers; other ones than `text` go by `strict`
    grader: Annotated[str, AfterValidator(GRADERS.checked)] = Field(
        default="text", description="see `list graders`"
    )
    max_new_tokens: int = Field(default=32, ge=1, description="tokens of an answer")
    # Pose a greedy or drawn answer that this limit cut once more, with four times as
    # many tokens.
    recheck_cut: bool = Field(default=False, description="pose cut answers again, 4x")
    # their limit, which a sweep's preparation sets: also what the positions leave
    recheck_limit: int = Field(default=0, ge=0)
    # Whether the model thinks before it answers, and for how many tokens.
    thinking: Annotated[Thinking, BeforeValidator(_thinking)] = Field(
        default="off", description="off, on or N tokens"
    )
    # The longest thought, which a sweep's preparation sets: the budget, or what the
    # model's positions leave.
    thought_limit: int = Field(default=0, ge=0)
    # its name; likewise
    thought_format: str = ""
    # What chat templates take for today. A sweep's preparation sets it, and leaves it
    # out where no template reads it.
    date: Day | None = Field(
        default=None, title="DAY", description="for chat templates, as 2026-01-31"
    )
    beam_width: int = Field(default=5, ge=1, le=10)
    samples: int = Field(default=10, ge=1)
    # of probes that draw; None: the run seed. They must include it
    seeds: tuple[Seed, ...] | None = Field(
        default=None, description="N,...: draw samples under each"
    )
    top_p: float = Field(default=0.9, gt=0, le=1)
    # vLLM refuses more, and silently raises less
    temperature: float = Field(default=1.0, ge=0.01, le=2)
    # tokens of a window of a text; at most the model's number of positions
    window: int = Field(default=2048, ge=2)
    # Keep this number of the base's likeliest tokens, and the rest as one; 0: the whole
    # vocabulary.
    fidelity_top: int = Field(default=0, ge=0)
    # The contexts' lengths, with other passages (`long_contexts.py`); 0: as they are.
    # Several make a task of each.
    context_tokens: Annotated[
        tuple[Annotated[int, Field(ge=0, le=2**20)], ...],
        BeforeValidator(lambda v: v if isinstance(v, list | tuple) else (v,)),
    ] = Field(default=(0,), description="N,...: longer contexts")

    @field_validator("formats", "seeds", "context_tokens")
    @classmethod
    def _no_repeats(cls, value: tuple[object, ...] | None) -> tuple[object, ...] | None:
        each_once(value)
        return value

    @field_validator("fidelity_top")
    @classmethod
    def _ranks(cls, value: int) -> int:
        if 0 < value < RANKS:
            raise ValueError(
                f"{value}: the first {RANKS} ranks are compared, so {RANKS} or more, or"
                " 0 for all"
            )
        return value

    @property
    def length(self) -> int:
        """Of the contexts, in tokens; 0: as they are. Of a task for each length."""
        return self.context_tokens[0]

    @property
    def thinks(self) -> bool:
        return self.thinking != "off"

    @property
    def expected_thought(self) -> int:
        """Tokens that an estimate assumes of a thought."""
        if isinstance(self.thinking, Budget):
            return self.thinking.budget
        return _THOUGHT if self.thinks else 0

    @property
    def run_seeds(self) -> tuple[int, ...]:
        return (self.seed,) if self.seeds is None else self.seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseAnswer:
    """The greedy answer of a checkpoint's base to an item's open prompt, or why
    there is none."""

    token_ids: TokenIds = ()  # EOS included
    thought: Thought | None = None  # before it
    missing: str | None = None


# Why distributions are compared with none: the text of an excluded record.
NO_PLACE = "there is no run directory in which the base could keep its distributions"


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """Where distributions are on one task: those that a checkpoint compares its own
    with, and those that it keeps.

    Both are the same folder for a checkpoint that is its own base. One that has a base,
    and is the base of others, keeps its distributions along its own answers and
    compares along its base's.
    """

    compare: str = ""  # empty: there is nothing to compare with, and `missing` says why
    keep: str = ""  # empty: no checkpoint is compared with this one
    missing: str | None = None
    base: str = ""  # the directory of the checkpoint to compare with


NOWHERE = References(missing=NO_PLACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """One task on one checkpoint: what its items share. `probes`: those of its
    `config`. `columns` are those of every record, `base` finds the base's answer to an
    item; `references`: None without a place or a need."""

    config: Settings
    probes: Sequence[Any]
    prompter: Prompter
    columns: Mapping[str, Any]
    base: Callable[[Item], BaseAnswer] | None = None
    references: References | None = None


class ItemRun:
    """One item or window on one checkpoint; probes share an equal `greedy` or
    `score` request of their first step."""

    def __init__(
        self,
        posed: Posed,
        serial: int | str,
        task: TaskRun,
        base: BaseAnswer | None = None,
    ) -> None:
        """`serial` begins the ids of its requests. `base`: None if the checkpoint is
        its own base, or no probe reads its base's answers."""
        self.posed = posed
        self.item = item = posed.item
        self.prompts = posed.prompts
        self.scored = posed.scored
        self.config = config = task.config
        self.prompter = task.prompter
        self.eos_ids = self.prompter.eos_ids
        self.decode = self.prompter.decode
        self.base = base
        self.references = task.references or NOWHERE
        # the same item after its base's thought, if its model thinks
        self.aligned = self
        self.later: Sequence[Any] = ()  # the probes that wait for its thoughts
        self.failure: str | None = None  # why there are no thoughts
        self.runs: list[Any] = []  # the stream's, in the order of the probes
        self.open = 0  # requests without their response
        # whether any log-probability of its responses is a number, or NaN
        self.numbers = self.not_numbers = False
        self.collapsed = False  # all that came back so far are NaN
        # of the greedy request of the open prompt, for every search that shares it
        self.stream: list[Streamed] = []
        self._serial = serial
        self._columns = {
            **task.columns,
            "task": item.task,
            "language": item.language,
            "item_id": item.item_id,
            "index": 0,
            "seed": config.seed,
            "status": "ok",
        }
        if config.length:
            self._columns["context_tokens"] = config.length
            self._columns["context_depth"] = posed.context_depth
        self._again: dict[str, Response] = {}  # to requests that were cut, by their ids
        self._graded: dict[tuple[TokenIds, Format], Columns] = {}

    @property
    def question(self) -> Question:
        assert isinstance(self.posed, Question)
        return self.posed

    @property
    def window(self) -> Window:
        assert isinstance(self.posed, Window)
        return self.posed

    def request_id(self, probe: str, detail: object) -> str:
        return f"{self._serial}/{probe}/{detail}"

    def greedy(self, format: Format = "open") -> Generate:
        """The request for the most likely answer to a format's prompt."""
        return Generate(
            request_id=self.request_id("greedy", format),
            prompt_ids=self.prompts[format].token_ids,
            max_tokens=self.config.max_new_tokens,
        )

    def answered(
        self, requests: Sequence[Generate]
    ) -> Generator[Sequence[Generate], Sequence[Response], Sequence[Response]]:
        """The responses; those that the limit cut are posed again, if it is wanted:
        once for all probes that read them."""
        responses = yield requests
        cut: dict[int, Generate] = {}
        for place, (request, response) in enumerate(
            zip(requests, responses, strict=True)
        ):
            ids = response.token_ids
            if len(ids) >= request.max_tokens and ids[-1] not in self.eos_ids:
                name, limit = f"{request.request_id}/again", self.config.recheck_limit
                cut[place] = msgspec.structs.replace(
                    request, request_id=name, max_tokens=limit
                )
        if not (cut and self.config.recheck_cut):
            return responses
        asked = [each for each in cut.values() if each.request_id not in self._again]
        if asked:
            for response in (yield asked):
                self._again[response.request_id] = response
        longer = {place: self._again[each.request_id] for place, each in cut.items()}
        return [longer.get(place, each) for place, each in enumerate(responses)]

    def score(self, answer: str, *, ranked: bool = False) -> Score:
        """The request for the score of an answer to the open prompt, one of the
        probe's `continuations`; `ranked`: with its first token's rank."""
        continuation = self.scored[answer]
        ids = ",".join(map(str, continuation.continuation_ids))
        # The prompt tells a moved boundary from an unmoved one, and filled blanks apart.
        name = f"{hash(continuation.prompt_ids)}:{ids}"
        return Score(
            request_id=self.request_id("score", name),
            prompt_ids=continuation.prompt_ids,
            continuation_ids=continuation.continuation_ids,
            ranked=ranked,
        )

    def record(
        self,
        probe: str,
        format: Format = "open",
        prompt: Prompt | None = None,
        **columns: Any,
    ) -> Record:
        """A record of the measured `columns`, and the prompt's length and cut; index 0,
        own seed, `ok` by default.

        `prompt`: of the response, whose thought the record then contains; None: the
        format's.
        """
        filled = {**self._columns, "probe": probe, "format": format}
        thought = None if prompt is None else prompt.thought
        if thought is not None:
            filled["thought"] = thought.text
            filled["thought_ids"] = thought.token_ids
        prompt = self.prompts.get(format) if prompt is None else prompt
        if prompt is not None:
            posed = prompt if prompt.thought is None else self.posed.prompts[format]
            filled["prompt_tokens"] = len(posed.token_ids)
            filled["prompt_digest"] = posed.digest
            filled["truncated"] = prompt.truncated
            if self.config.thinks:
                filled |= {"thought_tokens": 0, "thought_state": "none"}
            if self.config.thinks and prompt.thought:
                filled["thought_tokens"] = len(prompt.thought.token_ids)
                filled["thought_state"] = prompt.thought.state
        filled |= columns
        if prompt is not None and prompt.truncated and filled["status"] == "ok":
            filled["status"] = "truncated"
        return Record(**filled)

    def think(self, name: object, prompt: Prompt, **drawn: Any) -> Generate:
        """The request for a thought before the answer to a prompt."""
        thoughts = self.prompter.thoughts
        assert thoughts is not None
        return Generate(
            request_id=self.request_id("thought", name),
            prompt_ids=prompt.token_ids,
            max_tokens=self.config.thought_limit,
            stop_ids=(thoughts.end_id,),
            **drawn,
        )

    def thought_of(self, prompt: Prompt, response: Response) -> Thought | None:
        """What the response to `think` holds."""
        thoughts = self.prompter.thoughts
        assert thoughts is not None
        return thoughts.read(prompt.text, response.token_ids, self.eos_ids, self.decode)

    def remember(self, thoughts: Mapping[Format, Thought | None]) -> None:
        """Ask everything after these thoughts from now on."""
        self.prompts = {
            format: self.prompter.after(prompt, thoughts.get(format))
            for format, prompt in self.prompts.items()
        }
        if self.scored:
            answers = list(self.scored)
            moved = self.prompter.continuations(self.prompts["open"], answers)
            self.scored = dict(zip(answers, moved, strict=True))

    def is_cut(self, format: Format) -> bool:
        """Whether the thought before a format's answer has no end."""
        thought = self.prompts[format].thought
        return thought is not None and thought.state == "cut"

    def cut(self, thought: Thought | None) -> Columns:
        """The columns of a response that is a cut thought, and so no answer; none
        for any other."""
        if thought is None or thought.state == "closed":
            return {}
        return {"status": "truncated", "thought_state": "cut", **self.graded(())}

    def graded(self, token_ids: TokenIds, format: Format = "open") -> Columns:
        """The columns of a generated answer: its text, without thinking, is compared
        with the gold answers."""
        key = token_ids, format
        if key not in self._graded:  # samples and beams often repeat one another
            text = self.decode(token_ids)
            self._graded[key] = {
                **grades(text, self.item.answers, self.item.language),
                "text": text,
                "token_ids": token_ids,
                "grading": self.config.grading,
            }
            if self.config.grader != "text":
                grader, asked = GRADERS[self.config.grader], self.question.asked(format)
                right, read = grader.graded(text, asked)
                self._graded[key] |= {"contains": right, "contains_paper": None}
                if read is not None:
                    lines = (each.replace("\n", " ") for each in read)
                    self._graded[key]["option_text"] = "\n".join(lines)
        return self._graded[key]

    def generated(self, response: Response, format: Format = "open") -> Columns:
        """The columns of the response to a Generate."""
        if response.status != "ok":
            return failed(response.error)
        # drawn without log-probabilities: other requests show the NaN
        if self.collapsed and not response.logprobs:
            return failed(NOT_NUMBERS)
        logprob = sum(response.logprobs) if response.logprobs else None
        return {"logprob": logprob, **self.graded(response.token_ids, format)}


def failed(error: str | None) -> Columns:
    """The columns of a request that the engine could not answer, has no room for, or
    can never answer."""
    refused = error is not None and error.endswith((TOO_LONG, UNABLE))
    return {"status": "excluded" if refused else "engine_error", "text": error}


def failure_of(responses: Iterable[Response]) -> Columns:
    """The columns of the first response that failed; empty: none did."""
    for response in responses:
        if response.status != "ok":
            return failed(response.error)
    return {}


def scored(request: Score, response: Response, *, ranked: bool = False) -> Columns:
    """The columns of a scored answer; `logprob` is summed over its tokens, in nats.
    `ranked`: the first token's too."""
    if response.status != "ok":
        return failed(response.error)
    columns = {
        "token_ids": response.token_ids,
        "logprob": sum(response.logprobs),
        "prompt_tokens": len(request.prompt_ids),
    }
    if ranked:
        columns["rank"] = response.ranks[0]
        columns["margin"] = response.logprobs[0] - response.top_logprobs[0][0]
    return columns
