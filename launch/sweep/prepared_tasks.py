"""From a sweep's tasks to questions: reads data, fits settings to the models, cuts
texts into windows."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from evaluator.asking.long_contexts import lengthened
from evaluator.asking.prompts import CAPPED_FORMATS, DATE, Prompter
from evaluator.asking.questions import Posed, Question, Window
from evaluator.asking.template_checks import try_prompts, try_template
from evaluator.asking.thoughts import FORMATS
from evaluator.core.errors import InputError
from evaluator.core.records import Item
from evaluator.probes.config import SHORTEST_PROMPT, EvalConfig
from evaluator.probes.item import Budget
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
        # An aligned answer follows a lead-in.
        return (
            _longest_prompt(config)
            + config.thought_limit
            + config.max_new_tokens
            + _OPTION_TOKENS
        )


def _longest_prompt(config: EvalConfig) -> int:
    capped = any(form in CAPPED_FORMATS for form in config.formats)
    return max(config.prompt_tokens, config.one_shot_prompt_tokens * capped)


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
        for name, settings in job.tasks.items():
            fitted = self._lengths(settings)
            if settings.chat:
                fitted |= self._of_template(settings, job.model)
            data = self._load(settings, name)
            # the data's spelling, so that "sw" and "swahili" are one task
            if settings.languages is not None:
                languages = spelled(name, settings.languages, data.every_pool)
                fitted["languages"] = languages
            config = settings.model_copy(update=fitted)
            key = name + config.model_dump_json(), job.model if config.is_text else None
            if key not in self._tasks:
                self._tasks[key] = self._prepared(data, config, job.model)
            tasks.append(self._tasks[key])
        return tuple(tasks)

    def _lengths(self, settings: EvalConfig) -> dict[str, Any]:
        """The lengths that fit every model's positions. Raises InputError."""
        room = self._positions - settings.max_new_tokens
        if settings.length and settings.length + SHORTEST_PROMPT > room:
            raise InputError(
                f"context_tokens: {settings.length}: with a question and max_new_tokens"
                f" {settings.max_new_tokens} it exceeds the model's"
                f" {self._positions} positions"
            )
        if room < SHORTEST_PROMPT:
            raise InputError(
                f"max_new_tokens: {settings.max_new_tokens}: leaves no room for a"
                f" prompt within {self._positions} positions"
            )
        lengths = {
            "window": min(settings.window, self._positions),
            "prompt_tokens": min(settings.prompt_tokens + settings.length, room),
            "one_shot_prompt_tokens": min(settings.one_shot_prompt_tokens, room),
        }
        if settings.thinks:
            longest = _longest_prompt(settings.model_copy(update=lengths))
            lengths["thought_limit"] = self._thought_limit(settings, longest)
        return lengths

    def _thought_limit(self, settings: EvalConfig, prompt: int) -> int:
        """The tokens that a thought may have after a prompt of so many."""
        answer = max(settings.max_new_tokens, _OPTION)
        room = self._positions - prompt - answer
        budget = max(1, room)
        if isinstance(settings.thinking, Budget):
            budget = settings.thinking.budget
        if budget > room:
            asked = settings.thinking if settings.thinking == "on" else budget
            raise InputError(
                f"thinking: {asked}: leaves no room for a prompt and an answer"
                f" within {self._positions} positions; a thought may have"
                f" {max(room, 0)} tokens"
            )
        return budget

    def _of_template(self, settings: EvalConfig, model: str) -> dict[str, Any]:
        """What the chat template decides: the form of thoughts, and the date if
        another one would change a prompt. Raises InputError for a template that is
        missing or changes a turn's text."""
        tokenizer = self._tokenizers[model]
        try_template(tokenizer, thinking=settings.thinks)
        day = settings.date or self._day
        prompters = []
        for some in (day, *_OTHER_DAYS):
            prompter = Prompter(
                tokenizer,
                chat=True,
                prompt_tokens=4096,
                one_shot_prompt_tokens=4096,
                thinking=settings.thinks,
                date=some,
            )
            prompters.append(prompter)
        prompts = [prompter.build(_SHORT, "open") for prompter in prompters]
        opened = (
            prompts[0].text.rstrip().endswith(tuple(each.start for each in FORMATS))
        )
        if opened and not settings.thinks:
            note = (
                f"{model}: the chat template opens a thought: --thinking lets the model"
                " end it"
            )
            self.notes[note] = None
        decided: dict[str, Any] = {"date": day if len({*prompts}) > 1 else None}
        if prompters[0].thoughts is not None:
            decided["thought_format"] = prompters[0].thoughts.format.name
        return decided

    def _load(self, config: EvalConfig, name: str) -> TaskData:
        plain = plain_task(name)
        key = (config.task, config.languages, json.dumps(config.given()))
        if (plain, *key) not in self._data:
            data = load_task(config.task, config.languages, plain, config.data_settings)
            self._data[plain, *key] = data
            if data.left_out:
                files = ", ".join(data.left_out)
                note = f"{plain}: {config.task}: these files are not read: {files}"
                self.notes[note] = None
        if (name, *key) not in self._data:
            self._data[name, *key] = self._data[plain, *key].named(name)
        return self._data[name, *key]

    def _try_lengths(
        self, questions: Sequence[Question], config: EvalConfig, model: str
    ) -> None:
        """Raises InputError if no item can have a context of the wanted length."""
        prompter = Prompter(
            self._tokenizers[model],
            chat=False,
            prompt_tokens=1,
            one_shot_prompt_tokens=1,
        )
        reasons = set()
        for question in questions:
            if question.excluded:
                continue
            try:
                lengthened(question.item, question.others, config.length, prompter)
            except InputError as error:
                reasons.add(str(error))
            else:
                return
        raise InputError(
            f"context_tokens: {config.length}: no item of {config.task} has it:"
            f" {', '.join(reasons)}"
        )

    def _prepared(self, data: TaskData, config: EvalConfig, model: str) -> PreparedTask:
        """A task, its windows of the model's tokens. Raises InputError for a
        template that cannot pose a question."""
        identity: list[object] = [data.name, data.digest, config.identifying()]
        questions: Sequence[Posed]
        if config.is_text:
            assert data.text is not None
            tokenizer = self._tokenizers[model]
            questions = windows = windows_of(
                data.name, data.text, tokenizer, config.window, self._positions
            )
            ids = b"".join(window.token_ids.tobytes() + b"|" for window in windows)
            identity.append(hashlib.sha256(ids).hexdigest())
        else:
            questions = items = questions_of(data, config)
            if config.length:
                self._try_lengths(items, config, model)
            if config.template is not None:
                try_prompts(config.template, _renderings(items, config))
        return PreparedTask(
            name=data.name,
            key=digest(identity),
            config=config,
            questions=tuple(questions),
        )


def _renderings(
    questions: Sequence[Question], config: EvalConfig
) -> list[tuple[Item, Sequence[str]]]:
    """All that a template is to render: solved examples, and items with each list of
    options."""
    rendered: list[tuple[Item, Sequence[str]]] = []
    if "one_shot" in config.formats:
        examples = {question.exemplar for question in questions if question.exemplar}
        rendered += [(example, ()) for example in examples]
    for question in questions:
        if question.excluded:
            continue
        if question.candidates:
            lists = dict.fromkeys(question.candidates.values())
            rendered += [(question.item, options) for options in lists]
        elif not question.lists_options:
            rendered.append((question.item, ()))
    return rendered
