"""The name of a task that is posed with a prompt of its own: `xquad+terse` is `xquad` with the prompt `terse`.

Such a task has the items of the plain one and its own records, shards and rows in every table, so that nothing pools
over prompts; the tables `prompts` and `prompt_order` join them. No other name of a task has a plus.
"""

from __future__ import annotations

from collections.abc import Iterable

PAPER = "paper"  # the prompts of evaluator/asking/prompts.py
PLUS = "+"


def posed_as(task: str, prompt: str) -> str:
    """What records call `task` when it is posed with `prompt`."""
    return task if prompt == PAPER else task + PLUS + prompt


def task_and_prompt(name: str) -> tuple[str, str]:
    """The plain task and the prompt that a name stands for."""
    task, plus, prompt = name.partition(PLUS)
    return (task, prompt) if plus else (task, PAPER)


def one_of_each(names: Iterable[str]) -> list[str]:
    """Of the tasks that differ in their prompts alone one: with the paper's prompt, or else the first."""
    found: dict[str, str] = {}
    for name in names:
        task, prompt = task_and_prompt(name)
        if prompt == PAPER or task not in found:
            found[task] = name
    return list(found.values())
