"""`resurface tasks`: what can be asked, each task with a sample item and its prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from evaluator.asking.prompts import prompt_text
from evaluator.tasks import TASKS, Task
from evaluator.tasks.distractors import choose_options
from launch.commands.terminal import printed

_DRAWN = "choice: the answer among three answers of other questions in its language"


def tasks(
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="one task only; all by default")] = None,
) -> None:
    """List the tasks, each with a sample item and its exact prompts. Without a network.

    Samples are our own; `resurface show-prompt` shows an item of the data itself, cut into a model's tokens.
    """
    for each in TASKS if task is None else (TASKS[task],):
        printed("\n".join([*_described(each), ""]))


def _described(task: Task) -> Iterator[str]:
    yield f"{task.name}   (--task {', '.join(task.spellings)})"
    yield f"  {task.help}"
    if task.sizes:
        listed = [f"{language} {size:,}" for language, size in task.sizes.items()]
        yield f"  items on the hub: {', '.join(listed)}"
    if task.open:
        yield f"  open answers: {task.open}"
    if task.choice_only:
        yield "  for the probes choice and hard_choice only"
    if task.sample is None:
        return
    item = task.sample()
    yield f"  sample, the prompt of the {'probe choice' if task.choice_only else 'format open'}:"
    yield from _block(prompt_text(item, "open"))
    if not item.options:
        yield f"  right: {' / '.join(item.answers)}"
        yield f"  {_DRAWN}"
        return
    options = choose_options(item, [item], seed=0)
    if not task.choice_only:
        yield "  the prompt of the format shown:"
        yield from _block(prompt_text(item, "shown", options.texts))
    yield "  choice, scored after the first prompt (* is right):"
    yield from (f"  {'*' if number == options.gold else ' '} {text}" for number, text in enumerate(options.texts))


def _block(text: str) -> Iterator[str]:
    yield from (f"    | {line}".rstrip() for line in text.split("\n"))
