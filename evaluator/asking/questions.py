"""Which questions a task asks, and with which candidates: everything about an item that does not depend on a model.

Pure text, made once per task and shipped to every engine; tokenising it is `probes.plan`'s work.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from evaluator.errors import InputError
from evaluator.probes.config import EvalConfig
from evaluator.records import Format, Item, Probe
from evaluator.tasks import DEEP_ITEMS, TaskData, is_excluded, select
from evaluator.tasks.distractors import Options, choose_hard_options, choose_options, unrelated_candidates

# Formats whose prompt lists candidates.
CANDIDATE_FORMATS: tuple[Format, ...] = ("shown", "distractors_only", "unrelated")
# Why an item is not asked: the text of its excluded records, and a line of the report.
NO_GOLD = "no gold answer that could be found in an output"
NO_DISTRACTOR = "no other answer of the language differs from its gold answers"
NO_UNRELATED = "no answer of another language to list"
NO_EXEMPLAR = "no item of the language is left to be the example: all are evaluated; ask for fewer items"
TOO_LONG = "the prompt is over its token cap even without the context"
NOTHING_PREDICTED = "a window of a single token: nothing in it is predicted"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A piece of a text, tokenised: what the perplexity probe is asked of."""

    number: int
    token_ids: array[int]  # each is predicted from those before it, the first is not


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One item as it will be asked."""

    item: Item
    excluded: bool = False  # no gold answer that grading could find: recorded, never sent
    deep: bool = False  # among the first 100 of its language, which beam and sample probes are asked of
    options: Options | None = None  # of the choice probe; None: nothing needs them, or there is no distractor
    hard_options: Options | None = None  # of the hard_choice probe; None as above
    candidates: Mapping[Format, tuple[str, ...]]  # what a format's prompt lists, in order
    exemplar: Item | None = None  # the one-shot exemplar of the item's language; None: every item is evaluated
    window: Window | None = None  # set: this is no question, but a piece of a text

    def can_pose(self, form: Format) -> bool:
        """Whether there is what the format's prompt shows."""
        if form == "one_shot":
            return self.exemplar is not None
        return form not in CANDIDATE_FORMATS or bool(self.candidates.get(form))

    def why_not(self, what: Format | Probe) -> str:
        """Why a format, or a probe that chooses among options, cannot be asked of the item on this checkpoint.

        What the question has all it needs for can only have failed at the prompt's length, which a tokenizer decides.
        """
        if self.window is not None:
            return NOTHING_PREDICTED
        if self.excluded:
            return NO_GOLD
        if what == "one_shot" and self.exemplar is None:
            return NO_EXEMPLAR
        if what == "unrelated" and not self.can_pose("unrelated"):
            return NO_UNRELATED
        options = self.hard_options if what == "hard_choice" else self.options
        if what in ("choice", "hard_choice", "shown", "distractors_only") and options is None:
            return NO_DISTRACTOR
        return TOO_LONG


def exemplar_of(pool: Sequence[Item], subset: Sequence[Item]) -> Item | None:
    """The one-shot exemplar of a language: its first item, in file order, that is neither evaluated nor excluded."""
    evaluated = {item.item_id for item in subset}
    return next((item for item in pool if item.item_id not in evaluated and not is_excluded(item)), None)


def questions_of(data: TaskData, config: EvalConfig) -> list[Question]:
    """The questions of a task, language by language in the data's order, each language's in its drawn order.

    A probe or format for which an item's pool has no candidate is left out of its question. Raises InputError when
    nothing could be asked for that reason.
    """
    wants_options = "choice" in config.probes or any(form in ("shown", "distractors_only") for form in config.formats)
    questions = []
    refusals: list[InputError] = []

    def tried(choose: Callable[[], _T]) -> _T | None:
        try:
            return choose()
        except InputError as error:
            refusals.append(error)
            return None

    for pool in data.pools.values():
        subset = select(pool, config.items)
        exemplar = exemplar_of(pool, subset)
        for position, item in enumerate(subset):
            excluded = is_excluded(item)
            options = hard = unrelated = None
            if wants_options and not excluded:
                options = tried(partial(choose_options, item, pool, config.seed))
            if "hard_choice" in config.probes and not excluded:
                hard = tried(partial(choose_hard_options, item, pool, config.seed))
            if "unrelated" in config.formats and not excluded:
                unrelated = tried(partial(unrelated_candidates, item, data.every_pool, config.seed))
            questions.append(
                Question(
                    item=item,
                    excluded=excluded,
                    deep=position < DEEP_ITEMS,
                    options=options,
                    hard_options=hard,
                    candidates=_candidates(options, unrelated, config),
                    exemplar=exemplar,
                )
            )
    if refusals and not any(_can_be_asked(question, config) for question in questions):
        raise refusals[0]
    return questions


def _candidates(
    options: Options | None, unrelated: tuple[str, ...] | None, config: EvalConfig
) -> dict[Format, tuple[str, ...]]:
    listed: dict[Format, tuple[str, ...]] = {}
    if options is not None:
        if "shown" in config.formats:
            listed["shown"] = options.texts
        if "distractors_only" in config.formats:
            listed["distractors_only"] = tuple(t for i, t in enumerate(options.texts) if i != options.gold)
    if unrelated is not None:
        listed["unrelated"] = unrelated
    return listed


def _can_be_asked(question: Question, config: EvalConfig) -> bool:
    """Whether any probe of any format has what it needs."""
    if question.excluded:
        return False
    return (
        "rank" in config.probes
        or (question.deep and ("beam" in config.probes or "sample" in config.probes))
        or ("choice" in config.probes and question.options is not None)
        or question.hard_options is not None
        or ("greedy" in config.probes and any(question.can_pose(form) for form in config.formats))
    )
