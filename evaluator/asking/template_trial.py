"""A checkpoint's chat template, rendered once in a separate process before this one renders it for every item.

A template is a program in Jinja. transformers runs it in a sandbox, which keeps it from files, the network and Python,
and not from loops that never end or texts of gigabytes. The process has limits on processor time and memory; what
outruns them is refused before anything has started. (A template that waits for a certain item to do so is not found.)

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
_BYTES = 2**30  # of memory, beyond what the libraries take
LONGEST = 1_000_000  # characters that a template may add to a turn
TOO_LARGE = 3  # exit code
_ROOT = Path(__file__).resolve().parents[2]
_TURN = "resurface"


def try_template(tokenizer: Any) -> None:
    """Raises InputError for a tokenizer whose chat template runs on and on, or writes without end.

    What else may be wrong with it is found, and told, when it is used.
    """
    try:
        template = tokenizer.get_chat_template()
    except ValueError:  # several, none of them the usual one
        return
    if problem := problem_of(template, json.dumps(tokenizer.special_tokens_map, default=str)):
        raise InputError(f"{tokenizer.name_or_path}: chat: the chat template {problem}")


@cache  # checkpoints of a sweep have their base's
def problem_of(template: str, variables: str = "{}", *, seconds: int = _SECONDS) -> str | None:
    """A template's problem, in words; `variables` are its other inputs, as JSON."""
    asked = {"template": template, "variables": json.loads(variables), "seconds": seconds}
    return tried(__name__, asked, seconds)[0]


def tried(module: str, asked: object, seconds: int) -> tuple[str | None, bytes]:
    """Run a module with `asked` as JSON on its stdin: how it outran its limits, in words, and its output.

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
    except Exception:  # the one who uses the template says what
        return
    if len(rendered[0]) > LONGEST:
        sys.exit(TOO_LARGE)


def limit(seconds: int) -> None:
    """Limit this process to the cost of one rendering, on top of its use so far."""
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
