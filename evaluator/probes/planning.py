"""From questions and windows to token ids, once for all checkpoints that share a tokenizer.

A plan holds one item's or window's token ids. Both kinds have a `question` with the item that records name.

An error of a probe ends the run in one line that names probe and item (`Blaming`). No engine is restarted for it.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from types import TracebackType

from evaluator.asking.prompts import Prompt, Prompter
from evaluator.asking.questions import Posed, Question, Window
from evaluator.core.errors import InputError, ResurfaceError, one_line
from evaluator.core.records import Format, Item
from evaluator.probes.base import ItemPlan, References
from evaluator.probes.config import EvalConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """A window of a text, which is tokenised when it is cut."""

    question: Window
    references: References | None = None


Plan = ItemPlan | WindowPlan


class Planner:
    """Makes the plans of one task for one tokenizer. The same question gives the same plan."""

    def __init__(self, prompter: Prompter, config: EvalConfig) -> None:
        self._prompter = prompter
        self._config = config

    def plan(self, posed: Posed) -> Plan:
        """Tokenise one question; a window is tokenised already."""
        return WindowPlan(question=posed) if isinstance(posed, Window) else self.of_question(posed)

    def of_question(self, question: Question) -> ItemPlan:
        """A prompt that does not fit its token cap even with an empty context is left out.

        Raises ResurfaceError where a probe fails.
        """
        if question.excluded:
            return ItemPlan(question=question, prompts={}, scored={})
        formats: set[Format] = set()
        answers: dict[str, None] = {}  # each once, in the order of the probes
        for probe in self._config.item_probes:
            if question.deep or not probe.deep:
                with Blaming(probe.name, question.item):
                    formats.update(probe.formats(self._config))
                    answers.update(dict.fromkeys(probe.continuations(question)))
        prompts: dict[Format, Prompt] = {}
        for format in sorted(formats):
            prompt = self._prompt(question, format)
            if prompt is not None:
                prompts[format] = prompt
        if not answers or "open" not in prompts:
            return ItemPlan(question=question, prompts=prompts, scored={})
        continuations = self._prompter.continuations(prompts["open"], list(answers))
        return ItemPlan(question=question, prompts=prompts, scored=dict(zip(answers, continuations, strict=True)))

    def _prompt(self, question: Question, format: Format) -> Prompt | None:
        """None if the question lacks the format's candidates, or the prompt is too long without any context."""
        if not question.can_pose(format):
            return None
        candidates = question.candidates.get(format, ())
        with contextlib.suppress(InputError):
            return self._prompter.build(question.item, format, candidates=candidates, exemplar=question.exemplar)
        return None


_log = logging.getLogger(__name__)


class Blaming:
    """Turns an error of `probe` on `item` into a ResurfaceError that names both. The log gets the traceback.

    A ResurfaceError is passed on unchanged: it is clear by itself.
    """

    __slots__ = ("_item", "_probe")

    def __init__(self, probe: str, item: Item) -> None:
        self._probe = probe
        self._item = item

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not isinstance(error, Exception) or isinstance(error, ResurfaceError):
            return
        line = (
            f"probe {self._probe!r} failed on item {self._item.item_id!r} ({self._item.language}) of task "
            f"{self._item.task!r}: {type(error).__name__}: {one_line(error)}"
        )
        _log.error(line, exc_info=error)
        raise ResurfaceError(line) from error
