"""Renders a checkpoint's chat template once in a separate process, before this process renders it for every item.

A template is a program in Jinja. transformers' sandbox keeps it from files, the network and Python. The sandbox does
not prevent endless loops or texts of gigabytes. So the process has limits on processor time and memory; a template that
exceeds them is refused before the run starts. (A template that misbehaves for a certain item only is not found.)

    python -m evaluator.asking.template_trial < {"template": "...", "variables": {...}}
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from evaluator.core.errors import InputError

_SECONDS = 10  # of processor time; a template takes a millisecond
_BYTES = 2**30  # of memory, beyond the libraries' own
LONGEST = 1_000_000  # characters that a template may add to a turn
TOO_LARGE = 3  # exit code
_ROOT = Path(__file__).resolve().parents[2]
_TURN = "resurface"


def try_template(tokenizer: Any) -> None:
    """Raises InputError for a tokenizer whose chat template runs or writes without end.

    Its other faults appear when it is used.
    """
    try:
        template = tokenizer.get_chat_template()
    except ValueError:  # several templates, without a default
        return
    if problem := problem_of(template, json.dumps(tokenizer.special_tokens_map, default=str)):
        raise InputError(f"{tokenizer.name_or_path}: chat: the chat template {problem}")


@cache  # checkpoints of a sweep have their base's
def problem_of(template: str, variables: str = "{}", *, seconds: int = _SECONDS) -> str | None:
    """A template's fault, in words; `variables` are its other variables, as JSON."""
    asked = {"template": template, "variables": json.loads(variables), "seconds": seconds}
    return tried(__name__, asked, seconds)[0]


def tried(module: str, asked: object, seconds: int) -> tuple[str | None, bytes]:
    """Run a module with `asked` as JSON on its stdin. Returns how it exceeded its limits, in words, and its output.

    The module calls `limit` before it renders anything.
    """
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-P", "-m", module],
        input=json.dumps(asked).encode(),
        env={**os.environ, "PYTHONPATH": path, "USE_TORCH": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode == TOO_LARGE:
        return f"writes more than {LONGEST:,} characters, or takes more than {_BYTES / 2**30:.0f} GiB", b""
    if done.returncode < 0:
        return f"takes more than {seconds} s of processor time or {_BYTES / 2**30:.0f} GiB", b""
    return None, done.stdout


def main() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    asked = json.load(sys.stdin)
    limit(asked["seconds"])
    try:
        rendered, _ = render_jinja_template(
            [[{"role": "user", "content": _TURN}]],
            chat_template=asked["template"],
            add_generation_prompt=True,
            enable_thinking=False,
            **asked["variables"],
        )
    except MemoryError:
        sys.exit(TOO_LARGE)
    except Exception:  # the template's user reports the error
        return
    if len(rendered[0]) > LONGEST:
        sys.exit(TOO_LARGE)


def limit(seconds: int) -> None:
    """Limit this process to one rendering's resources, beyond its use so far."""
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + _BYTES
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    for kind, limit in ((resource.RLIMIT_AS, most), (resource.RLIMIT_CPU, used + seconds), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


if __name__ == "__main__":
    main()
