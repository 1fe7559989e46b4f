"""Renders a prompt template for all its items in a separate process, with limits on time and memory.

Only then this process renders it: see template_trial.py.

    python -m evaluator.asking.prompt_trial < {"template": {...}, "posed": [[item, context, options], ...], ...}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from evaluator.asking.template_trial import LONGEST, TOO_LARGE, limit, tried
from evaluator.asking.templates import PromptTemplate, Wording
from evaluator.core.errors import InputError
from evaluator.core.records import Item

_SECONDS = 10  # of processor time, and again for each this many items:
_ITEMS = 10_000

Posed = tuple[Item, Sequence[str]]  # with the options that the prompt may list


def try_prompts(template: PromptTemplate, posed: Iterable[Posed]) -> None:
    """Raises InputError for a template that cannot pose one of these items, or that runs on and on."""
    items = [[asdict(item), list(options)] for item, options in posed]
    seconds = _SECONDS * (1 + len(items) // _ITEMS)
    asked = {"template": template.model_dump(), "posed": items, "seconds": seconds}
    outran, printed = tried(__name__, asked, seconds)
    problem = f"the template {outran}" if outran else json.loads(printed or b'"the template cannot be tried"')
    if problem is not None:
        raise InputError(f"prompts.{template.name}: {problem}")


def main() -> None:
    asked = json.load(sys.stdin)
    limit(asked["seconds"])
    try:
        print(json.dumps(_problem(PromptTemplate(**asked["template"]), asked["posed"])))
    except MemoryError:
        sys.exit(TOO_LARGE)


def _problem(template: PromptTemplate, posed: Sequence[Sequence[Any]]) -> str | None:
    try:
        wording = Wording(template)
    except InputError as error:
        return str(error)
    for fields, options in posed:
        item = Item(**fields)
        if problem := wording.problem(item, item.context, options):
            return f"{problem} (task {item.task!r}, item {item.item_id!r})"
        if len(wording.whole(item, item.context, options)) > LONGEST + len(item.context):
            sys.exit(TOO_LARGE)
    return None


if __name__ == "__main__":
    main()
