"""From what is asked to token ids, once for all checkpoints that share a tokenizer.

A plan is what one item or window brings to an engine: both kinds have the `question` whose item records name, and begin
the inquiries of the probes that are asked of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from evaluator.asking.prompts import Continuation, Prompt, Prompter
from evaluator.asking.questions import Posed, Question, Window
from evaluator.errors import InputError
from evaluator.probes.base import Asking, Excluded, Inquiry
from evaluator.probes.config import EvalConfig
from evaluator.records import Format


class Plan(Protocol):
    """What a question and the window of a text have in common once they are tokenised."""

    @property
    def question(self) -> Posed: ...

    def inquiries(self, config: EvalConfig, eos_ids: frozenset[int], serial: int) -> list[Inquiry]:
        """One for each probe that is asked, in the registry's order. `serial` is unique in the stream."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPlan:
    """A question in token ids.

    A format without a prompt cannot be asked of the item: its records are `excluded`.
    """

    question: Question
    prompts: Mapping[Format, Prompt]
    scored: Mapping[str, Continuation]  # answers after the open prompt, by their text

    def inquiries(self, config: EvalConfig, eos_ids: frozenset[int], serial: int) -> list[Inquiry]:
        """See `Plan`; a probe that cannot be asked of the item gives an `Excluded`."""
        asking = Asking(self, config, eos_ids, serial)
        found: list[Inquiry] = []
        for probe in config.item_probes:
            if probe.deep and not self.question.deep:
                continue
            why = probe.why_not(self)
            found.append(probe.ask(asking) if why is None else Excluded(probe, why, self.prompts.get("open")))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """A window of a text, which is tokenised when it is cut."""

    question: Window

    def inquiries(self, config: EvalConfig, eos_ids: frozenset[int], serial: int) -> list[Inquiry]:
        """See `Plan`."""
        return [probe.ask(self.question, serial) for probe in config.text_probes]


class Planner:
    """Makes the plans of one task for one tokenizer. The same question gives the same plan."""

    def __init__(self, prompter: Prompter, config: EvalConfig) -> None:
        self._prompter = prompter
        self._config = config

    def plan(self, posed: Posed) -> Plan:
        """Tokenise one question; a window is tokenised already."""
        return WindowPlan(question=posed) if isinstance(posed, Window) else self.of_question(posed)

    def of_question(self, question: Question) -> ItemPlan:
        """A prompt that does not fit its token cap even with an empty context is left out."""
        if question.excluded:
            return ItemPlan(question=question, prompts={}, scored={})
        probes = [probe for probe in self._config.item_probes if question.deep or not probe.deep]
        prompts: dict[Format, Prompt] = {}
        for format in sorted({format for probe in probes for format in probe.formats(self._config)}):
            prompt = self._prompt(question, format)
            if prompt is not None:
                prompts[format] = prompt
        answers = list(dict.fromkeys(answer for probe in probes for answer in probe.continuations(question)))
        if not answers or "open" not in prompts:
            return ItemPlan(question=question, prompts=prompts, scored={})
        continuations = self._prompter.continuations(prompts["open"], answers)
        return ItemPlan(question=question, prompts=prompts, scored=dict(zip(answers, continuations, strict=True)))

    def _prompt(self, question: Question, format: Format) -> Prompt | None:
        """None where the question lacks what the format shows, or the prompt is too long without any context."""
        if not question.can_pose(format):
            return None
        candidates = question.candidates.get(format, ())
        with contextlib.suppress(InputError):
            return self._prompter.build(question.item, format, candidates=candidates, exemplar=question.exemplar)
        return None
