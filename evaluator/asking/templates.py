"""A user's prompts: a template in Jinja replaces the paper's wording.

    wording = Wording(PromptTemplate(name="terse", text="{{ context }}\\n\\nQ: {{
    question }}\\nA:")) before, context, after = wording.around(item, item.context,
    options=())

A template is an untrusted program. It runs in Jinja's sandbox, without files and
randomness, and with the item's FIELDS alone. A trial in a process with limits comes
first (template_checks.py). `parsed` is safe before the trial: it compiles nothing, since Jinja
computes constants (`10 ** 10 ** 10`) while it compiles.

The context is cut if a prompt is too long, so the prompt must contain it once and
unchanged: `{{ context }}`. A placeholder in its place finds its position."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from evaluator.core.config import Frozen
from evaluator.core.errors import InputError, one_line, unknown
from evaluator.core.records import Item
from evaluator.tasks.base import PAPER

if TYPE_CHECKING:
    from jinja2 import Environment, Template

FIELDS = ("context", "question", "options", "language", "id")
# in place of the context; letters and spaces, so that a filter would change it
_MARK = "\ue000The  context\n\ue001"
_ANSWERS = ("answer", "answers")
_OF_JINJA = {"loop", "caller", "varargs", "kwargs"}  # which loops and macros define


class PromptTemplate(Frozen):
    """A template under its name. `checked` says whether it can be one."""

    name: str
    text: str


def checked(text: str) -> str:
    """The text of a template if it could pose a question. Raises ValueError for its
    first problem."""
    names = _names(text)
    if leaked := sorted(names & {*_ANSWERS}):
        raise ValueError(
            f"field {leaked[0]!r}: a prompt that holds the right answer measures"
            " nothing"
        )
    for name in sorted(names - {*FIELDS} - _environment().globals.keys() - _OF_JINJA):
        raise ValueError(str(unknown("field", name, FIELDS)))
    if "question" not in names:
        raise ValueError(
            "field 'question': a prompt needs the question; write {{ question }}"
        )
    return text


def checked_name(name: str) -> str:
    """The name of a template, which becomes part of a task's name. Raises
    ValueError."""
    if name == PAPER:
        raise ValueError(
            f"{name!r} is the name of the paper's own prompts, which are always"
            " posed too"
        )
    if name == "all":
        raise ValueError(f"{name!r} is the name of all prompts together in tables")
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"name {name!r}: letters, digits, '.', '_' and '-' only")
    return name


def lists_options(text: str) -> bool:
    """Whether a template that has been checked lists options."""
    return "options" in _names(text)


class Wording:
    """A template, compiled: what stands around an item's context. The same call
    gives the same text."""

    def __init__(self, template: PromptTemplate) -> None:
        self.template = template
        self._compiled = _compiled(template.text)
        self._shows_context = "context" in _names(template.text)

    def around(
        self, item: Item, context: str, options: Sequence[str]
    ) -> tuple[str, str, str]:
        """The text before the context, the context, the text after; all is before an
        empty one. Raises InputError."""
        if not context or not self._shows_context:
            return self.whole(item, context, options), "", ""
        before, mark, after = self._rendered(
            item, _Context(context), options
        ).partition(_MARK)
        return (before, context, after) if mark else (before, "", "")

    def whole(self, item: Item, context: str, options: Sequence[str]) -> str:
        """The prompt as Jinja writes it. Raises InputError where the template fails."""
        return self._rendered(item, str(context), options)

    def problem(self, item: Item, context: str, options: Sequence[str]) -> str | None:
        """Why the template cannot pose this item, in words."""
        other = f"{_MARK} other"
        try:
            whole = self.whole(item, context, options)
            asks_other = self.whole(
                replace(item, question=item.question + other), context, options
            )
            shows_other = (
                self.whole(item, other + context + other, options) if context else whole
            )
            before, marked, after = self.around(item, context, options)
        except InputError as error:
            return str(error)
        if asks_other == whole:
            return "field 'question': the prompt does not hold the question"
        if _MARK in after:
            return (
                "field 'context': is in the prompt more than once, so it cannot be cut"
                " to fit"
            )
        if before + marked + after != whole or (shows_other != whole and not marked):
            return (
                "field 'context': must be in the prompt unchanged, {{ context }}, so"
                " that it can be cut to fit"
            )
        return None

    def _rendered(self, item: Item, context: str, options: Sequence[str]) -> str:
        try:
            return self._compiled.render(
                context=context,
                question=item.question,
                options=list(options),
                language=item.language,
                id=item.item_id,
            )
        except MemoryError:
            raise
        except Exception as error:  # a template divides by zero as it likes
            raise InputError(one_line(error)) from error


class _Context(str):
    """A context whose place is wanted: it is written as _MARK."""

    __slots__ = ()


def _written(value: Any) -> Any:
    """Jinja's output for a value. A list or an object in Python's notation is an
    error."""
    from jinja2 import Undefined

    if isinstance(value, _Context):
        return _MARK
    if not isinstance(value, str | int | float | Undefined):
        kind = type(value).__name__
        raise ValueError(
            f"a {kind} is no text; write a list with a loop, or as in {{{{ options |"
            " join(', ') }}"
        )
    return value


@cache
def _environment() -> Environment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, autoescape=False, finalize=_written
    )
    # The same prompt every time: no randomness.
    del environment.globals["lipsum"], environment.filters["random"]
    return environment


@cache
def _names(text: str) -> frozenset[str]:
    """The names that a template reads and does not define. Not by `jinja2.meta`: it
    compiles. Raises ValueError."""
    from jinja2 import TemplateSyntaxError, nodes

    try:
        tree = _environment().parse(text)
        names = list(tree.find_all(nodes.Name))
        macros = {macro.name for macro in tree.find_all(nodes.Macro)}
    except TemplateSyntaxError as error:
        raise ValueError(
            f"not a Jinja template: line {error.lineno}:"
            f" {one_line(error.message or error)}"
        ) from error
    except RecursionError as error:
        raise ValueError(
            "not a Jinja template that can be read: nested too deep"
        ) from error
    read = {each.name for each in names if each.ctx == "load"}
    return frozenset(
        read - {each.name for each in names if each.ctx != "load"} - macros
    )


@cache
def _compiled(text: str) -> Template:
    try:
        return _environment().from_string(text)
    except MemoryError:
        raise
    except Exception as error:
        raise InputError(one_line(error)) from error
