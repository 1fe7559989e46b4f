"""A task's questions and their candidates: everything about an item that does not depend on a model.

Pure text, made once per task and shipped to every engine; `probes.planning` tokenises it. A task of text has no
questions but windows, and a `Window` is tokenised from the start.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from evaluator.core.errors import InputError
from evaluator.core.records import Format, Item
from evaluator.tasks import DEEP_ITEMS, TaskData, is_excluded, select
from evaluator.tasks.distractors import Options, by_kind, choose_hard_options, choose_options, unrelated_candidates

LISTING_FORMATS: tuple[Format, ...] = ("shown", "distractors_only", "unrelated")  # their prompts list candidates
# Why an item is not asked: the text of its excluded records, and a line of the report.
NO_GOLD = "no gold answer that could be found in an output"
NO_DISTRACTOR = "no other answer of the language differs from its gold answers"
NO_UNRELATED = "no answer of another language to list"
NO_EXEMPLAR = "no item of the language is left as the example: all are evaluated; use fewer items"
TOO_LONG = "the prompt is over its token cap even without the context"
NOTHING_PREDICTED = "a window of a single token: nothing in it is predicted"
TEXT_LANGUAGE = "text"  # the language of every window
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One item as it will be asked."""

    item: Item
    excluded: bool = False  # no gold answer that grading could find: recorded, never sent
    deep: bool = False  # among the first 100 of its language, which some probes are limited to
    options: Options | None = None  # gold answer and drawn distractors; None: nothing needs them, or there are none
    hard_options: Options | None = None  # gold answer and the distractors most like it; None as above
    candidates: Mapping[Format, tuple[str, ...]]  # the list in a format's prompt, in order
    exemplar: Item | None = None  # the one-shot exemplar of the item's language; None: every item is evaluated
    lists_options: bool = False  # its template lists options in every format

    @property
    def option_texts(self) -> tuple[str, ...]:
        """The options of the choice probe, in their order; empty where there are none."""
        return () if self.options is None else self.options.texts

    def can_pose(self, format: Format) -> bool:
        """Whether the question has everything that the format's prompt shows."""
        if format == "one_shot":
            return self.exemplar is not None
        return not (self.lists_options or format in LISTING_FORMATS) or bool(self.candidates.get(format))

    def why_not(self, format: Format) -> str:
        """Why the item cannot be asked in a format on this checkpoint.

        A question that has all that the format shows can only have failed at the length of its prompt, which depends on
        the tokenizer.
        """
        if self.excluded:
            return NO_GOLD
        if format == "one_shot" and self.exemplar is None:
            return NO_EXEMPLAR
        if format == "unrelated" and not self.can_pose(format):
            return NO_UNRELATED
        if (format in ("shown", "distractors_only") or self.lists_options) and self.options is None:
            return NO_DISTRACTOR
        return TOO_LONG


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A piece of a text, tokenised. Like a question it has an item, without a text, that its records are named by."""

    item: Item
    number: int
    token_ids: array[int]  # each is predicted from those before it; the first is not

    @classmethod
    def of(cls, task: str, number: int, token_ids: array[int]) -> Window:
        """The window of this number of the text of a task."""
        name = f"window-{number:06d}"
        item = Item(task=task, language=TEXT_LANGUAGE, item_id=name, context="", question="", answers=(), cluster=name)
        return cls(item=item, number=number, token_ids=token_ids)


Posed = Question | Window  # both have the `item` that records name


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The questions to make from a task, and their candidates; `EvalConfig.wanted` returns it for its probes."""

    items: int  # per language; 0: all
    seed: int  # of the distractors
    formats: tuple[Format, ...] = ("open",)
    options: bool = False  # drawn distractors, for a probe; a format that lists them needs no mention
    alike: bool = True  # they are like the answer: `options: alike`; otherwise drawn from all answers
    hard_options: bool = False
    lists_options: bool = False  # by a template, in every format; `options` are then drawn too
    fits: Callable[[Question], bool] = lambda question: True  # whether a question can be evaluated at all

    @property
    def draws(self) -> bool:
        """Whether a probe, a format or a template needs options."""
        listing = any(format in ("shown", "distractors_only") for format in self.formats)
        return self.options or self.lists_options or listing


def exemplar_of(pool: Sequence[Item], subset: Sequence[Item]) -> Item | None:
    """The one-shot exemplar of a language: its first item, in file order, that is neither evaluated nor excluded."""
    evaluated = {item.item_id for item in subset}
    return next((item for item in pool if item.item_id not in evaluated and not is_excluded(item)), None)


def questions_of(data: TaskData, wanted: Wanted) -> list[Question]:
    """The questions of a task, language by language in the data's order, each language's in its drawn order.

    A question omits candidates that its pool lacks. Raises InputError if no question remains for that reason.
    """
    questions = []
    refusals: list[InputError] = []

    def tried(choose: Callable[[], _T]) -> _T | None:
        try:
            return choose()
        except InputError as error:
            refusals.append(error)
            return None

    for pool in data.pools.values():
        subset = select(pool, wanted.items)
        exemplar = exemplar_of(pool, subset)
        kinds = by_kind(pool) if wanted.draws and wanted.alike else None
        for position, item in enumerate(subset):
            excluded = is_excluded(item)
            options = hard = unrelated = None
            if wanted.draws and not excluded:
                options = tried(partial(choose_options, item, pool, wanted.seed, kinds))
            if wanted.hard_options and not excluded:
                hard = tried(partial(choose_hard_options, item, pool, wanted.seed))
            if "unrelated" in wanted.formats and not excluded:
                unrelated = tried(partial(unrelated_candidates, item, data.every_pool, wanted.seed))
            questions.append(
                Question(
                    item=item,
                    excluded=excluded,
                    deep=position < DEEP_ITEMS,
                    options=options,
                    hard_options=hard,
                    candidates=_candidates(options, unrelated, wanted),
                    exemplar=exemplar,
                    lists_options=wanted.lists_options,
                )
            )
    if refusals and not any(wanted.fits(question) for question in questions if not question.excluded):
        raise refusals[0]
    return questions


def _candidates(
    options: Options | None, unrelated: tuple[str, ...] | None, wanted: Wanted
) -> dict[Format, tuple[str, ...]]:
    listed: dict[Format, tuple[str, ...]] = {}
    if options is not None:
        if wanted.lists_options:
            listed |= {"open": options.texts, "open_capped": options.texts}
        if "shown" in wanted.formats:
            listed["shown"] = options.texts
        if "distractors_only" in wanted.formats:
            listed["distractors_only"] = tuple(t for i, t in enumerate(options.texts) if i != options.gold)
    if unrelated is not None:
        listed["unrelated"] = unrelated
    return listed
