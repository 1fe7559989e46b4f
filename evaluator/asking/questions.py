"""What a task asks: its questions with their candidates, or the windows of its text.

`evaluator.probes.planning` makes questions, which are pure text, and adds their token
ids for a tokenizer. A `Window` is tokenised from the start."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from evaluator.core.records import Format, Item
from evaluator.tasks.distractors import Options

if TYPE_CHECKING:
    from evaluator.asking.prompts import Continuation, Prompt

# their prompts list candidates
LISTING_FORMATS: tuple[Format, ...] = ("shown", "distractors_only", "unrelated")
# Why an item is not asked: the text of its excluded records, and a line of the report.
NO_GOLD = "no gold answer that could be found in an output"
NO_DISTRACTOR = "no other answer of the language differs from its gold answers"
NO_UNRELATED = "no answer of another language to list"
NO_EXEMPLAR = (
    "no item of the language is left as the example: all are evaluated, or share its"
    " question or context; use fewer items"
)
TOO_LONG_CONTEXT = "the prompt with context_tokens is longer than its cap or the model"
TOO_LONG = "the prompt is over its token cap even without the context"
NOTHING_PREDICTED = "a window of a single token: nothing in it is predicted"
NOT_OPEN = (
    "it needs the base's greedy answer to the open prompt, and the format open is not"
    " asked"
)
TEXT_LANGUAGE = "text"  # the language of every window


@dataclass(frozen=True, slots=True, kw_only=True)
class Posed:
    """An item, and its prompts in token ids once it is tokenised; records of a format
    without a prompt are `excluded`."""

    item: Item  # that records are named by
    prompts: Mapping[Format, Prompt] = field(default_factory=dict)
    # answers after the open prompt, by their text
    scored: Mapping[str, Continuation] = field(default_factory=dict)
    context_depth: float | None = None  # of the records


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Posed):
    # no gold answer that grading could find: recorded, never sent
    excluded: bool = False
    # among the first 100 of its language, which some probes are limited to
    deep: bool = False
    # gold answer and drawn distractors; None: nothing needs them, or there are none
    options: Options | None = None
    # gold answer and the distractors most like it; None as above
    hard_options: Options | None = None
    no_options: str = NO_DISTRACTOR  # why there are none, if there are none
    # the list in a format's prompt, in order
    candidates: Mapping[Format, tuple[str, ...]]
    # the one-shot exemplar; None: no item of the language can be
    exemplar: Item | None = None
    # solved ones before its prompt, each with its answer alone (`Prompter.build`)
    examples: tuple[Item, ...] = ()
    lists_options: bool = False  # its template lists options in every format
    # passages of its language that may lengthen its context; all items share them
    others: tuple[str, ...] = ()
    unfit: str = ""  # why a prompt with others is lacking, if nothing else is

    @property
    def option_texts(self) -> tuple[str, ...]:
        """The options of the choice probe, in their order; empty where there are
        none."""
        return () if self.options is None else self.options.texts

    def asked(self, format: Format) -> Item:
        """The item as a format's prompt poses it."""
        return self.item.posed(self.candidates.get(format, ()))

    def can_pose(self, format: Format) -> bool:
        """Whether the question has everything that the format's prompt shows."""
        if format == "one_shot":
            return self.exemplar is not None
        return not (self.lists_options or format in LISTING_FORMATS) or bool(
            self.candidates.get(format)
        )

    def why_not(self, format: Format) -> str:
        """Why the item cannot be asked; if nothing is lacking, its prompt was too
        long for this tokenizer."""
        if self.excluded:
            return NO_GOLD
        if format == "one_shot" and self.exemplar is None:
            return NO_EXEMPLAR
        if format == "unrelated" and not self.can_pose(format):
            return NO_UNRELATED
        if (
            format in ("shown", "distractors_only") or self.lists_options
        ) and self.options is None:
            return self.no_options
        return self.unfit or TOO_LONG


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Posed):
    """A piece of a text, tokenised. Its item has no text."""

    number: int
    token_ids: array[int]  # each is predicted from those before it; the first is not

    @classmethod
    def of(cls, task: str, number: int, token_ids: array[int]) -> Window:
        name = f"window-{number:06d}"
        item = Item(
            task=task,
            language=TEXT_LANGUAGE,
            item_id=name,
            context="",
            question="",
            answers=(),
            cluster=name,
        )
        return cls(item=item, number=number, token_ids=token_ids)
