"""From a sweep's tasks to questions: reads data, fits settings to the models, cuts
texts into windows."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from evaluator.asking.prompts import CAPPED_FORMATS, DATE, Prompter
from evaluator.asking.questions import Posed, Question, Window
from evaluator.asking.thoughts import FORMATS
from evaluator.asking.trial import try_prompts, try_template
from evaluator.core.errors import InputError
from evaluator.core.records import Item
from evaluator.probes.config import SHORTEST_PROMPT, EvalConfig
from evaluator.probes.item import Budget
from evaluator.probes.lengthening import lengthened
from evaluator.probes.perplexity import windows_of
from evaluator.probes.planning import questions_of
from evaluator.tasks import TaskData, load_task, spelled
from evaluator.tasks.base import plain_task
from launch.sweep.document import digest
from launch.sweep.jobs import CheckpointJob

# room for the longest gold answer of a byte-level vocabulary after a full prompt
_OPTION_TOKENS = 1024
_OPTION = 128  # and of a usual one, after a thought
_OTHER_DAYS = (date(2001, 11, 3), date(2035, 5, 28))  # they share no part of a date
_SHORT = Item(
    task="",
    language="",
    item_id="",
    context="x",
    question="x",
    answers=("x",),
    cluster="",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTask:
    """A task's questions for one or several checkpoints."""

    name: str  # the directory of its records
    key: str  # identifies questions + config
    config: EvalConfig
    questions: tuple[Posed, ...]

    @property
    def windows(self) -> tuple[Window, ...]:
        return tuple(each for each in self.questions if isinstance(each, Window))

    @property
    def longest_request(self) -> int:
        """The most tokens of a request, prompt and continuation together."""
        config = self.config
        if config.is_text:
            return max(len(window.token_ids) for window in self.windows)
        prompt = max(
            config.prompt_tokens,
            config.one_shot_prompt_tokens if _capped(config) else 0,
        )
        # An aligned answer follows a lead-in.
        return prompt + config.thought_limit + config.max_new_tokens + _OPTION_TOKENS


def _capped(config: EvalConfig) -> bool:
    """Whether a prompt has the cap of `one_shot`."""
    return any(form in CAPPED_FORMATS for form in config.formats)


def today() -> date:
    """The day in UTC, so that a machine's time zone changes no prompt."""
    return datetime.now(UTC).date()


@dataclass(eq=False)
class TaskPreparation:
    """Makes the tasks of checkpoints. Reads data once; equal tasks are one object."""

    _positions: int  # the fewest of any model
    _tokenizers: Mapping[str, Any]  # by the name of the dense model
    _day: date = DATE  # of the run
    _data: dict[tuple[object, ...], TaskData] = field(default_factory=dict)
    _tasks: dict[tuple[str, str | None], PreparedTask] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)  # in their order, each once

    def tasks_of(self, job: CheckpointJob) -> tuple[PreparedTask, ...]:
        """The tasks of one checkpoint. Raises InputError for data and settings that
        do not fit."""
        tasks = []
        for name, given in job.tasks.items():
            config = self._fitting(given)
            if config.chat:  # a template that is missing or changes a turn's text
                tokenizer, cap = self._tokenizers[job.model], 4096
                try_template(tokenizer, thinking=config.thinks)
                chat = Prompter(
                    tokenizer,
                    chat=True,
                    prompt_tokens=cap,
                    one_shot_prompt_tokens=cap,
                    thinking=config.thinks,
                )
                shown = chat.build(_SHORT, "open").text.rstrip()
                if not config.thinks and shown.endswith(
                    tuple(each.start for each in FORMATS)
                ):
                    note = (
                        f"{job.model}: the chat template opens a thought: --thinking"
                        " lets the model end it"
                    )
                    self.notes[note] = None
                if chat.thoughts is not None:
                    config = config.model_copy(
                        update={"thought_format": chat.thoughts.format.name}
                    )
                config = config.model_copy(
                    update={"date": self._day_read(config, tokenizer)}
                )
            data = self._load(config, name)
            # the data's spelling, so that "sw" and "swahili" are one task
            if config.languages is not None:
                config = config.model_copy(
                    update={
                        "languages": spelled(name, config.languages, data.every_pool)
                    }
                )
            key = (
                name + config.model_dump_json(),
                job.model if config.is_text else None,
            )
            if key not in self._tasks:
                self._tasks[key] = self._prepared(data, config, job.model)
            tasks.append(self._tasks[key])
        return tuple(tasks)

    def _day_read(self, config: EvalConfig, tokenizer: Any) -> date | None:
        """The date of a task's prompts; None where no other date would change them."""
        day = config.date or self._day
        prompts = {
            Prompter(
                tokenizer,
                chat=True,
                prompt_tokens=4096,
                one_shot_prompt_tokens=4096,
                thinking=config.thinks,
                date=each,
            ).build(_SHORT, "open")
            for each in (day, *_OTHER_DAYS)
        }
        return day if len(prompts) > 1 else None

    def _load(self, config: EvalConfig, name: str) -> TaskData:
        plain = plain_task(name)
        key = (config.task, config.languages, json.dumps(config.given()))
        if (plain, *key) not in self._data:
            found = self._data[plain, *key] = load_task(
                config.task, config.languages, plain, config.said
            )
            if found.left_out:
                self.notes[
                    f"{plain}: {config.task}: these files are not read:"
                    f" {', '.join(found.left_out)}"
                ] = None
        if (name, *key) not in self._data:
            self._data[name, *key] = self._data[plain, *key].named(name)
        return self._data[name, *key]

    def _fitting(self, given: EvalConfig) -> EvalConfig:
        """The settings with lengths that fit every model's positions."""
        changes: dict[str, Any] = {"window": min(given.window, self._positions)}
        room = self._positions - given.max_new_tokens
        if given.length and given.length + SHORTEST_PROMPT > room:
            raise InputError(
                f"context_tokens: {given.length}: with a question and max_new_tokens"
                f" {given.max_new_tokens} it exceeds the model's"
                f" {self._positions} positions"
            )
        for cap, more in (
            ("prompt_tokens", given.length),
            ("one_shot_prompt_tokens", 0),
        ):
            changes[cap] = min(getattr(given, cap) + more, room)
            if changes[cap] < SHORTEST_PROMPT:
                raise InputError(
                    f"max_new_tokens: {given.max_new_tokens}: leaves no room for a"
                    f" prompt within {self._positions} positions"
                )
        if given.thinks:
            shown = max(
                changes["prompt_tokens"],
                changes["one_shot_prompt_tokens"] if _capped(given) else 0,
            )
            room = self._positions - shown - max(given.max_new_tokens, _OPTION)
            budget = (
                given.thinking.budget
                if isinstance(given.thinking, Budget)
                else max(1, room)
            )
            if budget > room:
                asked = given.thinking if given.thinking == "on" else budget
                raise InputError(
                    f"thinking: {asked}: leaves no room for a prompt and an answer"
                    f" within {self._positions} positions; a thought may have"
                    f" {max(room, 0)} tokens"
                )
            changes["thought_limit"] = budget
        return given.model_copy(update=changes)

    def _try_lengths(
        self, questions: Sequence[Question], config: EvalConfig, model: str
    ) -> None:
        """Raises InputError if no item can have a context of the wanted length."""
        prompter, reasons = (
            Prompter(
                self._tokenizers[model],
                chat=False,
                prompt_tokens=1,
                one_shot_prompt_tokens=1,
            ),
            [],
        )
        for question in (each for each in questions if not each.excluded):
            try:
                lengthened(question.item, question.others, config.length, prompter)
            except InputError as error:
                reasons.append(str(error))
            else:
                return
        raise InputError(
            f"context_tokens: {config.length}: no item of {config.task} has it:"
            f" {', '.join({*reasons})}"
        )

    def _prepared(self, data: TaskData, config: EvalConfig, model: str) -> PreparedTask:
        """A task, its windows of the model's tokens. Raises InputError for a
        template that cannot pose a question."""
        identity: list[object] = [data.name, data.digest, config.identifying()]
        if config.is_text:
            assert data.text is not None
            windows = windows_of(
                data.name,
                data.text,
                self._tokenizers[model],
                config.window,
                self._positions,
            )
            ids = hashlib.sha256(
                b"".join(window.token_ids.tobytes() + b"|" for window in windows)
            )
            identity.append(ids.hexdigest())
            return PreparedTask(
                name=data.name,
                key=digest(identity),
                config=config,
                questions=tuple(windows),
            )
        questions = questions_of(data, config)
        if config.length:
            self._try_lengths(questions, config, model)
        if config.template is not None:
            examples = (
                {each.exemplar for each in questions if each.exemplar}
                if "one_shot" in config.formats
                else ()
            )
            rendered: list[tuple[Item, Sequence[str]]] = [
                (each, ()) for each in examples
            ]
            for question in questions:
                if not question.excluded and (
                    question.candidates or not question.lists_options
                ):
                    lists = (
                        dict.fromkeys(question.candidates.values())
                        if question.candidates
                        else ((),)
                    )
                    rendered += [(question.item, options) for options in lists]
            try_prompts(config.template, rendered)
        return PreparedTask(
            name=data.name,
            key=digest(identity),
            config=config,
            questions=tuple(questions),
        )
