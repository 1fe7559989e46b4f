"""Tasks that several prompts pose: which items checkpoints have right under each of them.

    for posed in posed_tasks(inputs):
        answers = posed.answers(["dense", "wanda-0.5"], "open", "greedy")
        answers.right["dense"]      # prompts x items, 0.0 or 1.0

Prompts are compared on the items that every one of them measured, so that no difference is one of items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import chdtrc

from evaluator.metrics.counting import joined_reasons
from evaluator.metrics.drops import CORRECT
from evaluator.metrics.inputs import ALL, Inputs, Subject
from evaluator.metrics.intervals import Floats, ItemNumbers
from evaluator.store.outcomes import MEASURED
from evaluator.tasks.base import PAPER, task_and_prompt

_KEY = ["language", "item_id"]


@dataclass(frozen=True, eq=False)
class Answers:
    """What some checkpoints have right of the items that all of them measured under every prompt."""

    prompts: tuple[str, ...]
    languages: np.ndarray[Any, Any]  # of each item
    contexts: ItemNumbers  # of each item, its context
    right: Mapping[str, Floats]  # by checkpoint, prompts x items
    dropped: Mapping[str, int]  # per language: items that only some prompts or checkpoints measured

    def of_language(self, language: str) -> Answers:
        """Those of one language, or of all."""
        if language == ALL:
            return self
        here = self.languages == language
        right = {name: each[:, here] for name, each in self.right.items()}
        return Answers(self.prompts, self.languages[here], self.contexts[here], right, self.dropped)

    def left_out(self, language: str) -> int:
        """How many items of a language, or of all, were dropped."""
        return sum(self.dropped.values()) if language == ALL else self.dropped.get(language, 0)


@dataclass(frozen=True, eq=False)
class PosedTask:
    """A task and its prompts, the paper's first."""

    inputs: Inputs
    task: str
    tasks: Mapping[str, str]  # prompt -> the name of the task that it makes
    _known: dict[tuple[str, ...], pd.DataFrame] = field(default_factory=dict)

    @property
    def subjects(self) -> list[Subject]:
        """Every checkpoint that two of the prompts or more were asked of, in display order."""
        found: dict[str, list[Subject]] = {}
        for subject in self.inputs.checkpoints:
            if subject.task in self.tasks.values():
                found.setdefault(subject.checkpoint, []).append(subject)
        return [each[0] for each in found.values() if len(each) > 1]

    def languages(self) -> list[str]:
        """Those of all prompts."""
        return sorted({language for name in self.tasks.values() for language in self.inputs.languages(name)})

    def few(self, *checkpoints: str) -> str | None:
        """Which of these were asked a few items only, under which prompt: all prompts are compared on those alone.

        Nothing of what every table says of the first under the first prompt.
        """
        out = self.inputs.decided_early
        places = [(self.tasks[prompt], name, prompt) for prompt in self.tasks for name in checkpoints]
        told = [place for place in places if place[:2] in out and place[:2] != (self.task, checkpoints[0])]
        return joined_reasons(*(f"{name}, {prompt}: {out[task, name]}" for task, name, prompt in told))

    def answers(self, checkpoints: Sequence[str], format: str, probe: str) -> Answers | None:
        """What the checkpoints have right; None where they share fewer than two prompts or no item."""
        measured = {
            (name, prompt): part
            for name in checkpoints
            for prompt in self.tasks
            if not (part := self._measured(name, prompt, format, probe)).empty
        }
        prompts = tuple(each for each in self.tasks if all((name, each) in measured for name in checkpoints))
        if len(prompts) < 2:
            return None
        wanted = [(name, prompt) for name in checkpoints for prompt in prompts]
        joined = pd.concat({each: measured[each]["right"] for each in wanted}, axis=1)
        whole = joined.dropna().sort_index()
        if whole.empty:
            return None
        some = joined.index.difference(whole.index).get_level_values(0)
        # An item's number is its place within the task, whichever checkpoint measured it.
        numbers = measured[wanted[0]]["item"].loc[whole.index]
        return Answers(
            prompts=prompts,
            languages=whole.index.get_level_values(0).to_numpy(),
            contexts=self.inputs.contexts(self.tasks[prompts[0]], numbers.to_numpy(np.intp)),
            right={name: whole[name].to_numpy(np.float64).T for name in checkpoints},
            dropped={str(language): int(count) for language, count in some.value_counts().items()},
        )

    def _measured(self, checkpoint: str, prompt: str, format: str, probe: str) -> pd.DataFrame:
        key = (checkpoint, prompt, format, probe)
        if key not in self._known:
            items = self.inputs.outcomes_of(checkpoint, self.tasks[prompt], format)
            items = items[items[f"{probe}_status"].isin(MEASURED)]
            right = items[CORRECT[probe]].astype("float64")
            self._known[key] = items[[*_KEY, "item"]].assign(right=right).set_index(_KEY)
        return self._known[key]


def posed_tasks(inputs: Inputs) -> list[PosedTask]:
    """The tasks of a run that two prompts or more pose."""
    found: dict[str, dict[str, str]] = {}
    for name in dict.fromkeys(subject.task for subject in inputs.checkpoints):
        task, prompt = task_and_prompt(name)
        found.setdefault(task, {})[prompt] = name
    ordered = {task: dict(sorted(names.items(), key=lambda each: each[0] != PAPER)) for task, names in found.items()}
    return [PosedTask(inputs, task, names) for task, names in ordered.items() if len(names) > 1]


def cochran_p(right_PI: Floats) -> float:
    """Whether prompts differ at all: the p of Cochran's Q (Biometrika 37, 1950), approximate where items are few or
    share contexts. 1 where every item is right under all prompts or under none.

    `right_PI`: prompts x items, 0.0 or 1.0.
    """
    prompts = len(right_PI)
    by_prompt, by_item = right_PI.sum(axis=1), right_PI.sum(axis=0)
    total = right_PI.sum()
    within = prompts * total - (by_item**2).sum()
    if within == 0:
        return 1.0
    q = (prompts - 1) * (prompts * (by_prompt**2).sum() - total**2) / within
    return float(chdtrc(prompts - 1, q))
