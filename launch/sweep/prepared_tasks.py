"""From a sweep's tasks to questions: reads data, fits settings to the models, cuts
texts into windows."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from itertools import chain, islice
from random import Random
from typing import Any

from evaluator.asking.long_contexts import lengthened
from evaluator.asking.prompts import CAPPED_FORMATS, DATE, opening_of
from evaluator.asking.questions import Posed, Question, Window
from evaluator.asking.template_checks import try_prompts, try_template
from evaluator.asking.thoughts import FORMATS
from evaluator.core.controls import ORDER
from evaluator.core.document import digest
from evaluator.core.errors import InputError, Json
from evaluator.core.records import Item
from evaluator.probes.config import SHORTEST_PROMPT, EvalConfig
from evaluator.probes.item import Budget
from evaluator.probes.perplexity import windows_of
from evaluator.probes.planning import (
    apart,
    exemplars_of,
    few_shot_pool,
    prompter_of,
    questions_of,
)
from evaluator.tasks import TaskData, load_task, spelled
from evaluator.tasks.base import plain_task
from evaluator.tasks.loading import DEEP_ITEMS, is_here, select, with_examples
from launch.sweep.jobs import CheckpointJob

# room for the longest gold answer of a byte-level vocabulary after a full prompt
_OPTION_TOKENS = 1024
_OPTION = 128  # and of a usual one, after a thought
_LONGER = 4  # times the limit: an answer that is posed again
_ORDER = 1  # the seed of the control `order`
_TRIED = 500  # items whose prompts are made before the run
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
    # identifies its data; of a text its windows, of solved examples these too
    content: tuple[str, ...] = ()

    @property
    def windows(self) -> tuple[Window, ...]:
        return tuple(each for each in self.questions if isinstance(each, Window))

    @property
    def texts(self) -> Iterator[str]:
        """What it asks, and the options that it scores; texts may come twice."""
        for each in self.questions:
            if isinstance(each, Question):
                yield each.item.question
                yield from each.option_texts

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
            + max(config.max_new_tokens, config.recheck_limit)
            + _OPTION_TOKENS
        )


Asked = Mapping[str, Sequence[PreparedTask]]  # by the checkpoint's name
Tokenizers = Mapping[str, Any]  # by the model's name


def _examples(data: TaskData, config: EvalConfig) -> str:
    """A digest of the items that are solved examples, of every language: as long as
    these are the same, each item has the examples that it had."""
    used = set[tuple[str, str, int]]()
    for language, pool in data.every_pool.items():
        subset = select(pool, config.items)
        training = data.examples.get(language, pool)
        for examples, count in (
            (exemplars_of(pool, subset), int("one_shot" in config.formats)),
            (few_shot_pool(training, subset), config.few_shot),
        ):
            for item in subset if count else ():
                for each in islice(apart(item, examples), count):
                    used.add((language, each.item_id, count))
    return digest(sorted(used))


def _longest_prompt(config: EvalConfig) -> int:
    capped = any(form in CAPPED_FORMATS for form in config.formats)
    return max(config.prompt_tokens, config.one_shot_prompt_tokens * capped)


def lengths(settings: EvalConfig, positions: int) -> Json:
    """The lengths that fit a model's positions. Raises InputError."""
    room = positions - settings.max_new_tokens
    if settings.length and settings.length + SHORTEST_PROMPT > room:
        raise InputError(
            f"context_tokens: {settings.length}: with a question and max_new_tokens"
            f" {settings.max_new_tokens} it exceeds the model's {positions} positions"
        )
    if room < SHORTEST_PROMPT:
        raise InputError(
            f"max_new_tokens: {settings.max_new_tokens}: leaves no room for a prompt"
            f" within {positions} positions"
        )
    fitted: Json = {
        "window": min(settings.window, positions),
        "prompt_tokens": min(settings.prompt_tokens + settings.length, room),
        "one_shot_prompt_tokens": min(settings.one_shot_prompt_tokens, room),
    }
    if settings.thinks:
        longest = _longest_prompt(settings.model_copy(update=fitted))
        fitted["thought_limit"] = _thought_limit(settings, positions, longest)
    if settings.recheck_cut:
        fitted |= _recheck(settings.model_copy(update=fitted), positions)
    return fitted


def _recheck(settings: EvalConfig, positions: int) -> Json:
    """The limit of answers that are posed again; no such setting where no probe writes
    any. Raises InputError."""
    if not {"greedy", "sample"}.intersection(settings.probes):
        return {"recheck_cut": False}
    room = positions - _longest_prompt(settings) - settings.thought_limit
    if room <= settings.max_new_tokens:
        raise InputError(
            f"recheck_cut: {positions} positions leave no room for more than"
            f" max_new_tokens {settings.max_new_tokens} after prompt and thought"
        )
    return {"recheck_limit": min(_LONGER * settings.max_new_tokens, room)}


def _thought_limit(settings: EvalConfig, positions: int, prompt: int) -> int:
    """The tokens that a thought may have after a prompt of so many."""
    room = positions - prompt - max(settings.max_new_tokens, _OPTION)
    budget = max(1, room)
    if isinstance(settings.thinking, Budget):
        budget = settings.thinking.budget
    if budget > room:
        asked = settings.thinking if settings.thinking == "on" else budget
        raise InputError(
            f"thinking: {asked}: leaves no room for a prompt and an answer"
            f" within {positions} positions; a thought may have {max(room, 0)} tokens"
        )
    return budget


def today() -> date:
    """The day in UTC, so that a machine's time zone changes no prompt."""
    return datetime.now(UTC).date()


@dataclass(eq=False)
class ReadTasks:
    """The data and the questions of tasks, each read once, without any checkpoint."""

    _data: dict[tuple[object, ...], TaskData] = field(default_factory=dict)
    _questions: dict[str, list[Question]] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)  # in their order, each once

    @property
    def groups(self) -> set[str]:
        """The users' groups of all questions so far."""
        every = chain(*self._questions.values())
        return {group for each in every for group in each.item.groups or ()}

    def check(self, job: CheckpointJob) -> bool:
        """Whether all its data are on this machine. Raises InputError for such data
        that cannot be asked."""
        here = {name: is_here(config.task) for name, config in job.tasks.items()}
        for name, config in job.tasks.items():
            if here[name]:
                self.data(config, name)
                if not config.is_text:
                    self.questions(config, name)
        return all(here.values())

    def data(self, config: EvalConfig, name: str) -> TaskData:
        """Raises InputError for data that cannot be read."""
        plain = plain_task(name)
        few = config.few_shot > 0
        key = (config.task, config.languages, json.dumps(config.given()), few)
        if (plain, *key) not in self._data:
            data = load_task(config.task, config.languages, plain, config.data_settings)
            if config.few_shot:
                data = with_examples(data, config.task, config.data_settings)
            self._data[plain, *key] = data
            if data.left_out:
                note = f"{plain}: {config.task}: not read: {', '.join(data.left_out)}"
                self.notes[note] = None
        if (name, *key) not in self._data:
            self._data[name, *key] = self._data[plain, *key].named(name)
        return self._data[name, *key]

    def questions(self, config: EvalConfig, name: str) -> list[Question]:
        """Raises InputError for questions that cannot be asked or graded."""
        key = name + config.model_dump_json()
        if key not in self._questions:
            self._questions[key] = questions_of(self.data(config, name), config)
        return self._questions[key]


@dataclass(eq=False)
class TaskPreparation:
    """Makes the tasks of checkpoints; equal tasks are one object."""

    _positions: int  # the fewest of any model
    _tokenizers: Tokenizers  # by the name of the dense model
    _day: date = DATE  # of the run
    _read: ReadTasks = field(default_factory=ReadTasks)
    _tasks: dict[tuple[str, str | None], PreparedTask] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)  # in their order, each once

    def tasks_of(self, job: CheckpointJob) -> tuple[PreparedTask, ...]:
        """The tasks of one checkpoint. Raises InputError for data and settings that
        do not fit."""
        tasks = []
        for name, settings in job.tasks.items():
            fitted = lengths(settings, self._positions)
            if settings.chat:
                fitted |= self._of_template(settings, job.model)
            else:
                self._note_template(job, is_text=settings.is_text)
            data = self._read.data(settings, name)
            # the data's spelling, so that "sw" and "swahili" are one task
            if settings.languages is not None:
                languages = spelled(name, settings.languages, data.every_pool)
                fitted["languages"] = languages
            config = settings.model_copy(update=fitted)
            key = name + config.model_dump_json(), job.model if config.is_text else None
            if key not in self._tasks:
                items = () if config.is_text else self._read.questions(settings, name)
                self._tasks[key] = self._prepared(data, items, config, job.model)
            tasks.append(_of_control(self._tasks[key], job))
        return tuple(tasks)

    def check_templates(self, job: CheckpointJob) -> None:
        """Raises InputError for a chat template that a task of this checkpoint cannot
        use."""
        for settings in job.tasks.values():
            if settings.chat:
                self._of_template(settings, job.model)

    def _note_template(self, job: CheckpointJob, *, is_text: bool) -> None:
        """Notes an instruct model that is asked without its template, and what plain
        prompts take from it all the same."""
        tokenizer = self._tokenizers.get(job.model)
        if tokenizer is None or not tokenizer.chat_template or job.base is not None:
            return
        if opening := opening_of(tokenizer):
            written = "".join(tokenizer.convert_ids_to_tokens(opening))
            self.notes[
                f"{job.name}: every text begins with {written}, as its chat template"
                " does and its tokenizer does not"
            ] = None
        if not is_text:
            note = (
                f"{job.name}: has a chat template, but the prompts are plain text: --chat"
                " (chat: true in a sweep file) asks an instruct model as it was trained"
            )
            self.notes[note] = None

    def _of_template(self, settings: EvalConfig, model: str) -> Json:
        """What the chat template decides: the form of thoughts, and the date if
        another one would change a prompt. Raises InputError for a template that is
        missing or changes a turn's text."""
        tokenizer = self._tokenizers[model]
        try_template(tokenizer, thinking=settings.thinks)
        day = settings.date or self._day
        prompts = []
        for some in (day, *_OTHER_DAYS):
            of_day = {"prompt_tokens": 4096, "template": None, "date": some}
            prompter = prompter_of(tokenizer, settings.model_copy(update=of_day))
            prompts.append(prompter.build(_SHORT, "open"))
        starts = tuple(each.start for each in FORMATS)
        if prompts[0].text.rstrip().endswith(starts) and not settings.thinks:
            note = (
                f"{model}: the chat template opens a thought: --thinking lets the model"
                " end it"
            )
            self.notes[note] = None
        decided: Json = {"date": day if len({*prompts}) > 1 else None}
        if prompter.thoughts is not None:
            decided["thought_format"] = prompter.thoughts.format.name
        return decided

    def _try_lengths(
        self, questions: Sequence[Question], config: EvalConfig, model: str
    ) -> None:
        """Raises InputError if no item can have a context of the wanted length."""
        prompter = prompter_of(self._tokenizers[model], config)
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

    def _note_cuts(
        self, questions: Sequence[Question], config: EvalConfig, model: str
    ) -> None:
        """Notes of how many items `prompt_tokens` cuts the context."""
        cap, long = config.prompt_tokens, []
        for question in questions[:_TRIED]:
            if len(question.item.context.encode()) > cap:  # bytes: no fewer than tokens
                long.append(question)
        if config.length or "open" not in config.formats or not long:
            return
        prompter, cut = prompter_of(self._tokenizers[model], config), 0
        for question in long:
            options = question.candidates.get("open", ())
            with suppress(InputError):  # the run leaves it out
                prompt = prompter.build(
                    question.item,
                    "open",
                    candidates=options,
                    examples=question.examples,
                )
                cut += prompt.truncated
        if cut:
            note = (
                f"{config.task}: prompts of {cap} tokens cut the contexts of {cut} of"
                f" the first {len(questions[:_TRIED])} items; --prompt-tokens"
                " (prompt_tokens in a sweep file) allows more"
            )
            self.notes[note] = None

    def _note_depth(self, questions: Sequence[Question], config: EvalConfig) -> None:
        deep = [probe.name for probe in config.item_probes if probe.deep]
        if deep and not all(question.deep for question in questions):
            probes, task = ", ".join(deep), questions[0].item.task
            note = f"{task}: {probes}: only {DEEP_ITEMS} items of each language"
            self.notes[note] = None

    def _prepared(
        self, data: TaskData, items: Sequence[Question], config: EvalConfig, model: str
    ) -> PreparedTask:
        """A task, its windows of the model's tokens. Raises InputError for a
        template that cannot pose a question."""
        content = [data.digest]
        if "one_shot" in config.formats or config.few_shot:
            content.append(_examples(data, config))
        questions: Sequence[Posed] = items
        if config.is_text:
            assert data.text is not None
            tokenizer = self._tokenizers[model]
            questions = windows = windows_of(
                data.name, data.text, tokenizer, config.window, self._positions
            )
            ids = b"".join(window.token_ids.tobytes() + b"|" for window in windows)
            content.append(hashlib.sha256(ids).hexdigest())
        else:
            self._note_depth(items, config)
            if config.length:
                self._try_lengths(items, config, model)
            if config.template is not None:
                try_prompts(config.template, _renderings(items, config))
            self._note_cuts(items, config, model)
        return PreparedTask(
            name=data.name,
            key=digest([data.name, *content, config.identifying()]),
            config=config,
            questions=tuple(questions),
            content=tuple(content),
        )


def _of_control(task: PreparedTask, job: CheckpointJob) -> PreparedTask:
    """The questions that a control asks, in its order; any other checkpoint's task as
    it is."""
    questions, most = list(task.questions), job.most or len(task.questions)
    if len(questions) > most:  # of every part, and so of every language
        questions = [questions[at * len(questions) // most] for at in range(most)]
    if job.change == ORDER:
        Random(_ORDER).shuffle(questions)
    elif len(questions) == len(task.questions):
        return task
    key = digest([task.key, job.change, job.most])
    return replace(task, key=key, questions=tuple(questions))


def _renderings(
    questions: Sequence[Question], config: EvalConfig
) -> list[tuple[Item, Sequence[str]]]:
    """All that a template is to render: solved examples, and items with each list of
    options."""
    rendered: list[tuple[Item, Sequence[str]]] = []
    if "one_shot" in config.formats:
        examples = {question.exemplar for question in questions if question.exemplar}
        rendered += [(example, ()) for example in examples]
    shots = {example for question in questions for example in question.examples}
    rendered += [(example, example.options) for example in shots]
    for question in questions:
        if question.excluded:
            continue
        if question.candidates:
            lists = dict.fromkeys(question.candidates.values())
            rendered += [(question.item, options) for options in lists]
        elif not question.lists_options:
            rendered.append((question.item, ()))
    return rendered
