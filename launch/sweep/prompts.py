"""A sweep's prompts: named templates, and the tasks that they pose.

prompts:                                 # name: template (docs/your-data.md); or a file
                                         with such a mapping
  terse: "{{ context }}\\n\\nQ: {{ question }}\\nA:"
tasks:
  - {task: xquad, prompts: [paper, terse]}     # default: the paper's prompt and all of
    these
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator

from evaluator.asking.questions import LISTING_FORMATS
from evaluator.asking.templates import (
    PromptTemplate,
    checked,
    checked_name,
    lists_options,
)
from evaluator.core.config import Frozen
from evaluator.core.errors import unknown
from evaluator.core.records import Format
from evaluator.probes.config import EvalConfig
from evaluator.tasks.base import PAPER

Prompts = dict[
    Annotated[str, AfterValidator(checked_name)],
    Annotated[str, AfterValidator(checked)],
]


class PromptFile(Frozen):
    """The schema of a file of prompts."""

    prompts: Prompts


def problem_of(tasks: Sequence[EvalConfig], prompts: Mapping[str, str]) -> str | None:
    """The first mistake in the tasks' use of prompts, in words; None if there is
    none."""
    for number, task in enumerate(tasks):
        place = f"tasks.{number}"
        if any(each.suite for each in tasks):  # it stands for several tasks
            place = f"tasks: {task.task}"
        if task.template is not None:
            return (
                f"{place}.template: a template has a name under prompts; a task uses it"
                " with prompts: [NAME]"
            )
        if task.prompts is not None and task.is_text:
            return f"{place}.prompts: task {task.task!r} is a text and has no prompt"
        for name in names_for(task, prompts):
            if name != PAPER and name not in prompts:
                return f"{place}.prompts: {unknown('prompt', name, [PAPER, *prompts])}"
            template = task.usual_template
            if name != PAPER:
                template = PromptTemplate(name=name, text=prompts[name])
            if template and (why := misfit(task.formats, template)):
                out = f"; leave it out with prompts: [{PAPER}]" if name != PAPER else ""
                return f"{place}.formats: {why}{out}"
    return None


def misfit(formats: Sequence[Format], template: PromptTemplate) -> str | None:
    """Why a template cannot pose these formats, in words; None if it can."""
    lists = lists_options(template.text)
    for format in formats:
        if format in LISTING_FORMATS and not lists:
            return (
                f"{format!r} lists candidates, but prompts.{template.name} has no field"
                " 'options' for them"
            )
        if format == "one_shot" and lists:
            return (
                f"{format!r} shows a solved example without options, but"
                f" prompts.{template.name} needs 'options'"
            )
    return None


def names_for(task: EvalConfig, prompts: Mapping[str, str]) -> tuple[str, ...]:
    if task.is_text:
        return (PAPER,)
    return (PAPER, *prompts) if task.prompts is None else task.prompts
