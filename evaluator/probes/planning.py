"""From a task's items to questions with their candidates, and from questions to
token ids.

Questions are pure text, made once per task and shipped to every engine. A plan is
made once for all checkpoints that share a tokenizer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from evaluator.asking.questions import NO_DISTRACTOR, TOO_LONG_CONTEXT, Question, Window
from evaluator.core.errors import InputError
from evaluator.core.records import Format, Item
from evaluator.core.text import normalise
from evaluator.probes.base import blame
from evaluator.probes.config import EvalConfig
from evaluator.probes.item import Plan
from evaluator.probes.lengthening import in_order, lengthened
from evaluator.tasks.distractors import (
    Options,
    ambiguous,
    by_kind,
    choose_hard_options,
    choose_options,
    unrelated_candidates,
)
from evaluator.tasks.loading import DEEP_ITEMS, TaskData, is_excluded, select

if TYPE_CHECKING:
    from evaluator.asking.prompts import Continuation, Prompt, Prompter

_T = TypeVar("_T")


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
    question, context = normalise(item.question), normalise(item.context)
    for each in exemplars:
        same_context = context and normalise(each.context) == context
        if normalise(each.question) != question and not same_context:
            return each
    return None


def questions_of(
    data: TaskData, config: EvalConfig, *, refuse: bool = True
) -> list[Question]:
    """The questions of a task, language by language in the data's order, each
    language's in its drawn order, without candidates that its pool lacks. With
    `refuse`, raises InputError if so no probe can evaluate any.
    """
    questions = []
    refusals: list[InputError] = []
    hard_options = any(probe.options == "hard" for probe in config.item_probes)

    def tried(choose: Callable[[], _T]) -> _T | None:
        try:
            return choose()
        except InputError as error:
            refusals.append(error)
            return None

    for pool in data.pools.values():
        subset = select(pool, config.items)
        exemplars = exemplars_of(pool, subset) if "one_shot" in config.formats else []
        others = (
            in_order(pool, config.context_tokens[0]) if config.context_tokens[0] else ()
        )
        kinds = (
            by_kind(pool) if config.draws_options and config.options != "any" else None
        )
        for position, item in enumerate(subset):
            excluded = is_excluded(item)
            why = "" if excluded else ambiguous(item)
            options = hard = unrelated = None
            if why and config.draws_options:
                refusals.append(
                    InputError(f"task {item.task!r}, item {item.item_id!r}: {why}")
                )
            elif config.draws_options and not excluded:
                options = tried(partial(choose_options, item, pool, config.seed, kinds))
            if hard_options and not excluded:
                hard = tried(partial(choose_hard_options, item, pool, config.seed))
            if "unrelated" in config.formats and not excluded:
                unrelated = tried(
                    partial(unrelated_candidates, item, data.every_pool, config.seed)
                )
            questions.append(
                Question(
                    item=item,
                    excluded=excluded,
                    deep=position < DEEP_ITEMS,
                    options=options,
                    no_options=why or NO_DISTRACTOR,
                    hard_options=hard,
                    candidates=_candidates(options, unrelated, config),
                    exemplar=exemplar_for(item, exemplars),
                    lists_options=config.lists_options,
                    others=others,
                )
            )
    asked = [question for question in questions if not question.excluded]
    if (
        refuse
        and refusals
        and not any(
            probe.fits(each, config) for probe in config.item_probes for each in asked
        )
    ):
        raise refusals[0]
    return questions


def _candidates(
    options: Options | None, unrelated: tuple[str, ...] | None, config: EvalConfig
) -> dict[Format, tuple[str, ...]]:
    listed: dict[Format, tuple[str, ...]] = {}
    if options is not None:
        if config.lists_options:
            listed |= {"open": options.texts, "open_capped": options.texts}
        if "shown" in config.formats:
            listed["shown"] = options.texts
        if "distractors_only" in config.formats:
            listed["distractors_only"] = tuple(
                t for i, t in enumerate(options.texts) if i != options.gold
            )
    if unrelated is not None:
        listed["unrelated"] = unrelated
    return listed


def plan_of(
    question: Question | Window, prompter: Prompter, config: EvalConfig
) -> Plan:
    """Tokenise a question for its probes (a window is); always alike. A prompt is left
    out without its candidates, or if over its token cap even with an empty context.
    Raises ResurfaceError where a probe fails.
    """
    if isinstance(question, Window) or question.excluded:
        return Plan(question=question, prompts={}, scored={})
    formats: set[Format] = set()
    answers: dict[str, None] = {}  # each once, in the order of the probes
    for probe in config.item_probes:
        if question.deep or not probe.deep:
            try:
                formats.update(probe.formats(config))
                answers.update(dict.fromkeys(probe.continuations(question)))
            except Exception as error:
                raise blame(probe.name, question.item, error) from error
    item, depth = question.item, None
    if length := config.context_tokens[0]:
        try:
            long = lengthened(item, question.others, length, prompter)
        except InputError as error:
            return Plan(
                question=replace(question, unfit=str(error)), prompts={}, scored={}
            )
        item, depth = replace(item, context=long.text), long.depth
        # says why any prompt is left out below
        question = replace(question, unfit=TOO_LONG_CONTEXT)
    direct: Prompt | None = None
    prompts: dict[Format, Prompt] = {}
    for format in sorted(formats):
        if question.can_pose(format):
            candidates = question.candidates.get(format, ())
            with contextlib.suppress(InputError):
                prompt = prompter.build(
                    item, format, candidates=candidates, exemplar=question.exemplar
                )
                # the cut may take the item's own passage
                if not (length and prompt.truncated):
                    prompts[format] = prompt
    if config.thinking != "off" and "open" in prompts:
        with contextlib.suppress(InputError):
            candidates = question.candidates.get("open", ())
            direct = prompter.build(item, "open", candidates=candidates, thinking=False)
    scored: dict[str, Continuation] = {}
    if answers and "open" in prompts:
        continuations = prompter.continuations(prompts["open"], list(answers))
        scored = dict(zip(answers, continuations, strict=True))
    return Plan(
        question=question,
        prompts=prompts,
        scored=scored,
        context_depth=depth,
        direct=direct,
    )
