"""From a task's items to questions with their candidates, and from questions to
token ids.

Questions are pure text, made once per task and shipped to every engine. They are
tokenised once for all checkpoints that share a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from evaluator.asking.long_contexts import in_order, lengthened
from evaluator.asking.questions import (
    LISTING_FORMATS,
    NO_DISTRACTOR,
    NO_UNRELATED,
    TOO_LONG_CONTEXT,
    Posed,
    Question,
)
from evaluator.core.errors import InputError
from evaluator.core.graders import GRADERS
from evaluator.core.records import Format, Item
from evaluator.core.text import normalise
from evaluator.probes.base import blame
from evaluator.probes.config import EvalConfig
from evaluator.tasks.distractors import (
    ByKind,
    Options,
    ambiguous,
    by_kind,
    choose_hard_options,
    choose_options,
    unrelated_candidates,
)
from evaluator.tasks.loading import (
    DEEP_ITEMS,
    TaskData,
    gold_option,
    is_excluded,
    select,
)

if TYPE_CHECKING:
    from evaluator.asking.prompts import Continuation, Prompt, Prompter


def exemplars_of(pool: Sequence[Item], subset: Sequence[Item]) -> list[Item]:
    """The items of a language that may be examples, in file order: neither evaluated
    nor excluded."""
    evaluated = {item.item_id for item in subset}
    return [
        item for item in pool if item.item_id not in evaluated and not is_excluded(item)
    ]


def exemplar_for(item: Item, exemplars: Sequence[Item]) -> Item | None:
    """The first that shares neither question nor context with the item: either would
    show it the answer."""
    return next(iter(apart(item, exemplars)), None)


def apart(item: Item, others: Iterable[Item]) -> Iterator[Item]:
    question, context = normalise(item.question), normalise(item.context)
    for each in others:
        same_context = context and normalise(each.context) == context
        if normalise(each.question) != question and not same_context:
            yield each


def few_shot_pool(pool: Sequence[Item], subset: Sequence[Item]) -> list[Item]:
    """The items of a training split or of all that may be solved examples, in the order
    in which they are: none that is evaluated. A run that grows keeps the first ones."""
    asked = {(item.context, item.question) for item in subset}
    found = []
    for item in reversed(select(pool, 0)):
        if (item.context, item.question) not in asked and not is_excluded(item):
            found.append(item)
    return found


def few_shots(item: Item, pool: Sequence[Item], config: EvalConfig) -> tuple[Item, ...]:
    """The solved examples of an item. Raises InputError if there are too few, for one
    that lacks the options which the template lists, and for formats that list options
    where it does not: an example would not look like its prompt."""
    place, count = f"task {item.task!r}", config.few_shot
    listing = sorted({*LISTING_FORMATS}.intersection(config.formats))
    if listing and not config.lists_options:
        raise InputError(
            f"{place}: few_shot: {count}: the format {listing[0]} lists options and its"
            " examples do not: use a template that lists {{ options }}"
        )
    if len(pool) < count:
        raise InputError(
            f"{place}: few_shot: {count}: needs {count} {item.language} questions that"
            f" are not evaluated, and there are {len(pool)}: use fewer items"
        )
    place += f", item {item.item_id!r}: few_shot: {count}:"
    found = list(islice(apart(item, pool), count))
    if len(found) < count:
        raise InputError(
            f"{place} {len(found)} examples are left: all others share its question or"
            " context; use fewer items"
        )
    shown = []
    for each in found:
        options = None
        if config.lists_options:
            options = choose_options(each, [each], config.seed)
            if options is None:
                raise InputError(
                    f"{place} the prompt lists options, and example {each.item_id!r}"
                    " has none"
                )
        listed = () if options is None else options.texts
        answer = GRADERS[config.grader].stated(each.posed(listed))
        shown.append(replace(each, options=listed, answers=(answer,)))
    return tuple(shown)


def questions_of(
    data: TaskData, config: EvalConfig, *, refuse: bool = True, asked: bool = True
) -> list[Question]:
    """The questions of a task, language by language in the data's order, each
    language's in its drawn order, without candidates that its pool lacks. With
    `refuse`, raises InputError if so no probe can evaluate any. Not `asked`: none of
    them is, so that each may be an example.
    """
    questions = []
    hard_options = any(probe.options == "hard" for probe in config.item_probes)
    draws_options = config.draws_options
    for language, pool in data.pools.items():
        subset = select(pool, config.items)
        exemplars = exemplars_of(pool, subset) if "one_shot" in config.formats else []
        others = in_order(pool, config.length) if config.length else ()
        examples: Sequence[Item] = ()
        if config.few_shot:
            training = data.examples.get(language, pool)
            examples = few_shot_pool(training, subset if asked else ())
        by_type = draws_options and config.options not in ("any", "near")
        kinds = by_kind(pool) if by_type else None
        for position, item in enumerate(subset):
            options = hard = None
            unrelated: tuple[str, ...] = ()
            excluded = is_excluded(item)
            why = "" if excluded or config.suite else ambiguous(item)
            if draws_options and not excluded and not why:
                options = _options(item, pool, config, kinds)
            if hard_options and not excluded:
                hard = choose_hard_options(item, pool, config.seed)
            if "unrelated" in config.formats and not excluded:
                unrelated = unrelated_candidates(item, data.every_pool, config.seed)
            questions.append(
                Question(
                    item=item,
                    excluded=excluded,
                    deep=position < DEEP_ITEMS,
                    options=options,
                    no_options=why or NO_DISTRACTOR,
                    hard_options=hard,
                    candidates=_candidates(options, unrelated, config),
                    exemplar=exemplar_for(item, exemplars) if exemplars else None,
                    examples=few_shots(item, examples, config)
                    if config.few_shot
                    else (),
                    lists_options=config.lists_options,
                    others=others,
                )
            )
    if refuse and questions and all(question.excluded for question in questions):
        raise InputError(
            f"task {data.name!r}: none of the {len(questions)} items to evaluate has a"
            " gold answer that can be graded"
        )
    for question, format in product(
        questions, config.formats if config.grader != "text" else ()
    ):
        why = GRADERS[config.grader].problem(question.asked(format))
        if why and not question.excluded:
            raise InputError(
                f"task {config.task!r}, item {question.item.item_id!r}: answers: {why}"
                f" (grader {config.grader})"
            )
    drawn = draws_options or hard_options
    if refuse and (drawn or "unrelated" in config.formats):
        _need_one_to_ask(questions, config, NO_UNRELATED if not drawn else None)
    return questions


def _options(
    item: Item, pool: Sequence[Item], config: EvalConfig, kinds: ByKind | None
) -> Options | None:
    """What `choice` scores; of a suite in the order of the data. Raises InputError for
    a question without the blank that they fill."""
    if config.blank and config.blank not in item.question:
        raise InputError(
            f"task {config.task!r}, item {item.item_id!r}: field 'question' has no blank"
            f" {config.blank!r}"
        )
    if config.suite:
        gold = item.options.index(gold_option(item))
        return Options(texts=item.options, gold=gold)
    near = config.options == "near"
    return choose_options(item, pool, config.seed, kinds, near=near)


def _need_one_to_ask(
    questions: Sequence[Question], config: EvalConfig, lacks: str | None
) -> None:
    """Raises InputError if no probe can evaluate any question for want of
    candidates."""
    gradable = [question for question in questions if not question.excluded]
    for question in gradable:
        if any(probe.fits(question, config) for probe in config.item_probes):
            return
    for question in gradable:
        if question.options is None and question.hard_options is None:
            item, why = question.item, lacks or question.no_options
            raise InputError(f"task {item.task!r}, item {item.item_id!r}: {why}")


def _candidates(
    options: Options | None, unrelated: tuple[str, ...], config: EvalConfig
) -> dict[Format, tuple[str, ...]]:
    """What the prompts of each format list, for those that have something to list."""
    listed: dict[Format, tuple[str, ...]] = {}
    if options is not None:
        if config.lists_options:
            listed |= {"open": options.texts, "open_capped": options.texts}
        if "shown" in config.formats:
            listed["shown"] = options.texts
        if "distractors_only" in config.formats:
            before, after = options.texts[: options.gold], options.texts[options.gold :]
            listed["distractors_only"] = before + after[1:]
    if unrelated:
        listed["unrelated"] = unrelated
    return listed


def prompter_of(tokenizer: Any, config: EvalConfig) -> Prompter:
    """Makes the prompts of a task. Raises InputError as Prompter does."""
    from evaluator.asking.prompts import Prompter

    prompter = Prompter(
        tokenizer,
        chat=config.chat,
        prompt_tokens=config.prompt_tokens,
        one_shot_prompt_tokens=config.one_shot_prompt_tokens,
        template=config.template,
        thinking=config.thinks,
        date=config.date,
    )
    prompter.system = config.system or ""
    prompter.blank, prompter.whole = config.blank, config.texts is not None
    return prompter


def tokenised(posed: Posed, prompter: Prompter, config: EvalConfig) -> Posed:
    """A question with the prompts and answers that its probes need, in token ids;
    always alike. A window already has its own.

    A prompt is left out without its candidates, or if over its token cap even with an
    empty context. Raises ResurfaceError where a probe fails.
    """
    if not isinstance(posed, Question) or posed.excluded:
        return posed
    question, item = posed, posed.item
    formats, answers = _wanted(question, config)
    depth = None
    if config.length:
        try:
            context, depth = lengthened(item, question.others, config.length, prompter)
        except InputError as error:
            return replace(question, unfit=str(error))
        item = replace(item, context=context)
        # says why any prompt is left out below
        question = replace(question, unfit=TOO_LONG_CONTEXT)

    def build(format: Format) -> Prompt | None:
        if not question.can_pose(format):
            return None
        with suppress(InputError):
            return prompter.build(
                item,
                format,
                candidates=question.candidates.get(format, ()),
                exemplar=question.exemplar,
                examples=question.examples,
            )
        return None

    prompts: dict[Format, Prompt] = {}
    for format in sorted(formats):
        prompt = build(format)
        # the cut may take the item's own passage
        if prompt is not None and not (config.length and prompt.truncated):
            prompts[format] = prompt
    scored: dict[str, Continuation] = {}
    if "open" in prompts and answers:
        continuations = prompter.continuations(prompts["open"], answers)
        scored = dict(zip(answers, continuations, strict=True))
    return replace(question, prompts=prompts, scored=scored, context_depth=depth)


def _wanted(question: Question, config: EvalConfig) -> tuple[set[Format], list[str]]:
    """The formats and the answers to the open prompt that the probes need; each
    answer once, in the order of the probes."""
    formats: set[Format] = set()
    answers: dict[str, None] = {}
    for probe in config.item_probes:
        if not probe.asks(question):
            continue
        try:
            formats.update(probe.formats(config))
            answers.update(dict.fromkeys(probe.continuations(question)))
        except Exception as error:
            raise blame(probe.name, question.item, error) from error
    return formats, list(answers)
