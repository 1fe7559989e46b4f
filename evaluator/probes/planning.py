"""From what is asked to token ids, once for all checkpoints that share a tokenizer.

A plan is what one item or window brings to an engine: both kinds have the `question` whose item records name.

An error of a probe ends the run in one line that names probe and item (`Blaming`). No engine is restarted for it.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn

from evaluator.asking.prompts import Prompt, Prompter
from evaluator.asking.questions import Posed, Question, Window
from evaluator.core.errors import InputError, ResurfaceError, one_line
from evaluator.core.records import Format, Item
from evaluator.probes.base import Asking, Excluded, Inquiry, ItemPlan, Reading, References
from evaluator.probes.config import EvalConfig
from evaluator.probes.recording import Decode


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """A window of a text, which is tokenised when it is cut."""

    question: Window
    references: References | None = None


Plan = ItemPlan | WindowPlan


def inquiries(
    plan: Plan, config: EvalConfig, eos_ids: frozenset[int], decode: Decode, serial: int
) -> dict[str, Inquiry]:
    """One by the name of each probe that is asked, in the registry's order; an `Excluded` where it cannot be asked.

    `serial` is unique in the stream. Raises ResurfaceError where a probe fails.
    """
    found: dict[str, Inquiry] = {}
    if isinstance(plan, WindowPlan):
        reading = Reading(window=plan.question, config=config, serial=serial, references=plan.references)
        for text_probe in config.text_probes:
            with Blaming(text_probe.name, plan.question.item):
                found[text_probe.name] = text_probe.ask(reading)
        return found
    asking = Asking(plan, config, eos_ids, decode, serial)
    for probe in config.item_probes:
        if probe.deep and not plan.question.deep:
            continue
        with Blaming(probe.name, plan.question.item):
            why = probe.why_not(plan)
            asked = probe.ask(asking) if why is None else Excluded(probe, why, plan.prompts.get("open"))
        found[probe.name] = asked
    return found


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
        """None where the question lacks what the format shows, or the prompt is too long without any context."""
        if not question.can_pose(format):
            return None
        candidates = question.candidates.get(format, ())
        with contextlib.suppress(InputError):
            return self._prompter.build(question.item, format, candidates=candidates, exemplar=question.exemplar)
        return None


_log = logging.getLogger(__name__)


class Blaming:
    """Within, what `probe` raises on `item` becomes a ResurfaceError that names both; its traceback goes to the log.

    A ResurfaceError is passed on: it says itself what is wrong. Where every streamed token passes, `blame` is called
    from an `except` instead, which costs nothing until it is needed.
    """

    __slots__ = ("_item", "_probe")

    def __init__(self, probe: str, item: Item) -> None:
        self._probe = probe
        self._item = item

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, Exception):
            blame(self._probe, self._item, error)


def blame(probe: str, item: Item, error: Exception) -> NoReturn:
    """Raise what `probe` raised on `item` as a ResurfaceError that names both."""
    if isinstance(error, ResurfaceError):
        raise error
    line = (
        f"probe {probe!r} failed on item {item.item_id!r} ({item.language}) of task {item.task!r}: "
        f"{type(error).__name__}: {one_line(error)}"
    )
    _log.error(line, exc_info=error)
    raise ResurfaceError(line) from error
