"""Renders a template in a separate process, with limits on time and memory, before this
process renders it.

A template is a program in Jinja: a checkpoint's chat template, or a user's prompt
template (`templates.py`). The sandbox keeps it from files, the network and Python, but
not from endless loops or texts of gigabytes: a template that exceeds the limits is
refused before the run starts. A chat template is tried once, a prompt template with all
its items.

    python -m evaluator.asking.template_checks < {"chat": "...", "variables": {...}, "seconds":
    10} python -m evaluator.asking.template_checks < {"template": {...}, "posed": [[item,
    options], ...], "seconds": 10}
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from evaluator.asking.templates import PromptTemplate, Wording
from evaluator.asking.thoughts import thinking_variables
from evaluator.core.errors import InputError
from evaluator.core.isolated import environment
from evaluator.core.records import Item

# of processor time; for a prompt template, again for each this many items:
_SECONDS = 10
_ITEMS = 10_000
_BYTES = 2**30  # of memory, beyond the libraries' own
LONGEST = 1_000_000  # characters that a template may add to a turn
_TOO_LARGE = 3  # exit code


def try_template(tokenizer: Any, *, thinking: bool = False) -> None:
    """Raises InputError for a chat template that runs or writes without end; other
    faults appear when it is used."""
    try:
        template = tokenizer.get_chat_template()
    except ValueError:  # several templates, without a default
        return
    variables = {**tokenizer.special_tokens_map, **thinking_variables(thinking)}
    if problem := problem_of(template, json.dumps(variables, default=str)):
        raise InputError(f"{tokenizer.name_or_path}: chat: the chat template {problem}")


@cache  # checkpoints of a sweep have their base's
def problem_of(
    template: str, variables: str = "{}", *, seconds: int = _SECONDS
) -> str | None:
    """A chat template's fault, in words; `variables` are its other variables, as
    JSON."""
    return _tried(
        {"chat": template, "variables": json.loads(variables), "seconds": seconds}
    )[0]


def try_prompts(
    template: PromptTemplate, posed: Iterable[tuple[Item, Sequence[str]]]
) -> None:
    """Raises InputError for a template that cannot pose an item with its options, or
    that runs on and on."""
    items = [[asdict(item), list(options)] for item, options in posed]
    seconds = _SECONDS * (1 + len(items) // _ITEMS)
    outran, printed = _tried(
        {"template": template.model_dump(), "posed": items, "seconds": seconds}
    )
    problem = (
        f"the template {outran}"
        if outran
        else json.loads(printed or b'"the template cannot be tried"')
    )
    if problem is not None:
        raise InputError(f"prompts.{template.name}: {problem}")


def _tried(job: Mapping[str, Any]) -> tuple[str | None, bytes]:
    """Run `main` on a job in its own process. Returns how it exceeded its limits, in
    words, and its output."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__],
        input=json.dumps(job).encode(),
        env=environment(USE_TORCH="0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode == _TOO_LARGE:
        return (
            (
                f"writes more than {LONGEST:,} characters, or takes more than"
                f" {_BYTES / 2**30:.0f} GiB"
            ),
            b"",
        )
    if done.returncode < 0:
        return (
            (
                f"takes more than {job['seconds']} s of processor time or"
                f" {_BYTES / 2**30:.0f} GiB"
            ),
            b"",
        )
    return None, done.stdout


def main() -> None:
    job = json.load(sys.stdin)
    _limit(job["seconds"])
    try:
        if "chat" in job:
            _render_chat(job["chat"], job["variables"])
        else:
            print(json.dumps(_problem(PromptTemplate(**job["template"]), job["posed"])))
    except MemoryError:
        sys.exit(_TOO_LARGE)


def _render_chat(template: str, variables: Mapping[str, Any]) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    user = {"role": "user", "content": "resurface"}
    settings = {"add_generation_prompt": True, **variables}
    rendered: list[str] = []
    for turns in ([user], [user | {"role": "system"}, user]):
        try:
            rendered += render_jinja_template(
                [turns], chat_template=template, **settings
            )[0]
        except MemoryError:
            raise
        except Exception:  # the template's user reports the error
            break
    if any(len(each) > LONGEST for each in rendered):
        sys.exit(_TOO_LARGE)


def _problem(template: PromptTemplate, posed: Sequence[Sequence[Any]]) -> str | None:
    try:
        wording = Wording(template)
    except InputError as error:
        return str(error)
    for fields, options in posed:
        item = Item(**fields)
        if problem := wording.problem(item, item.context, options):
            return f"{problem} (task {item.task!r}, item {item.item_id!r})"
        if len(wording.whole(item, item.context, options)) > LONGEST + len(
            item.context
        ):
            sys.exit(_TOO_LARGE)
    return None


def _limit(seconds: int) -> None:
    """Limit this process to one rendering's resources, beyond its use so far."""
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + _BYTES
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    for kind, limit in (
        (resource.RLIMIT_AS, most),
        (resource.RLIMIT_CPU, used + seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


if __name__ == "__main__":
    main()
