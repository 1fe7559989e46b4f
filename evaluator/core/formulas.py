"""Equality of formulas by the library math-verify (the extra `math`).

It works in a process of its own, which has a limit of memory, and of processor time
for each answer: a formula that takes more ends that process, and counts as no answer.
There `eval` is an error: sympy's parser of plain text would run what a model wrote. So
only LaTeX is read, by math-verify's grammar, and its numbers by `_number`.

    python -m evaluator.core.formulas      that process: a line of JSON in, one out
"""

import atexit
import builtins
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from string import ascii_lowercase
from threading import Lock
from typing import Any, NoReturn

from evaluator.core.errors import InputError
from evaluator.core.isolated import environment

# What a text's last line says plainly: behind a verb or a colon, or all of it.
_SAID = re.compile(r"(?:\b(?:is|are|ist|est|es|é|è)\b|[:：是])\s*")
# A power of numbers in plain text: 10^3, 2*10**3.
_POWER = re.compile(r"[\d.\s*]+(?:\^|\*\*)\s*-?\d+")
_NAME = re.compile(r"\\(?:text|mathrm|mbox|textbf) *\{([^{}]*)\}")
_COMMAND = re.compile(r"\\[a-zA-Z]+\*?(?: *\{[a-zA-Z*]+\})?|[^\w\\]+|[\d_]+")
_SECONDS = 5  # of the processor, for each answer
_BYTES = 4 << 30
_LONGEST = 1000  # characters of what is read: a line is written at once
_process: "subprocess.Popen[str] | None" = None
_lock = Lock()  # one question at a time


@lru_cache(maxsize=4096)
def compared(
    golds: tuple[str, ...], said: str, plain: str
) -> tuple[bool, tuple[str, ...]]:
    """Whether the formula that a text gives as its answer equals a gold one, and that
    formula as it stands there; `plain` is read where the text has none in LaTeX. Empty:
    there is none, or it took too long. Its last line may also give a gold one as it is
    written. Raises InputError without the extra."""
    line = _SAID.split((said.strip().splitlines() or [""])[-1])[-1].strip(" .*$")
    if _POWER.fullmatch(line):
        base, _, exponent = line.replace("**", "^").partition("^")
        plain = f"{base}^{{{exponent.strip()}}}".replace("*", "\\cdot ")
    right, found = _asked([golds, said, plain]) or (False, ())
    if not right and "\\boxed" not in said and (written := _as_written(golds, said)):
        return True, (written,)
    return right, tuple(found)


@lru_cache(maxsize=4096)
def is_formula(gold: str) -> bool:
    """Whether a gold answer equals itself, in a box and between dollars, and is no
    prose: `Monday` would be a product of letters, unlike `xyz`."""
    words = _COMMAND.sub(" ", _NAME.sub(" ", gold)).split()
    named = any(each[2:].islower() and each not in ascii_lowercase for each in words)
    if not re.search(r"\d", gold) and (named or words in (["no"], ["No"])):
        return False
    marked = gold if gold.startswith("$") and gold.endswith("$") else f"${gold}$"
    answers = (
        _asked([(gold,), f"\\boxed{{{gold}}}", ""]),
        _asked([(gold,), marked, ""]),
    )
    return all(answer is not None and answer[0] for answer in answers)


def _as_written(golds: Sequence[str], said: str) -> str:
    """What the last line gives as its answer, if that is a gold one as it is written;
    else empty."""
    line = (said.strip().splitlines() or [""])[-1]
    pieces = (line, _SAID.split(line)[-1])
    wanted = {*map(_bare, golds)} - {""}
    return next((each.strip(" .") for each in pieces if _bare(each) in wanted), "")


def _bare(text: str) -> str:
    """A text without white space, dollars, a full stop, and the commands of names."""
    text = "".join(_NAME.sub(r"\1", text).split()).casefold()
    text = text.lstrip("$*").rstrip("$*.")
    letter = text.strip("()")
    return letter if len(letter) == 1 else text


def _asked(question: Sequence[Any]) -> Any:
    """The process's answer; None: it died of the question."""
    with _lock:
        return _reply(question)


def _reply(question: Sequence[Any]) -> Any:
    for _ in range(2):  # an idle one may have been killed
        process = _process or _started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
        except OSError:
            _end()
            continue
        if line := process.stdout.readline():
            return json.loads(line)
        _end()
        break
    return None


@atexit.register
def _end() -> None:
    global _process
    if _process is not None:
        _process.kill()
        with suppress(OSError):
            _process.communicate()
    _process = None


def _started() -> "subprocess.Popen[str]":
    if find_spec("math_verify") is None:
        raise InputError(
            "grader math: the package math-verify is not installed: pip install"
            " 'resurface[math]'"
        )
    global _process
    _process = subprocess.Popen(
        [sys.executable, "-m", "evaluator.core.formulas"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    assert _process.stdout is not None
    if not _process.stdout.readline():
        _end()
        raise InputError("grader math: math-verify cannot be imported")
    return _process


def _refuse(*_: object) -> NoReturn:
    raise ValueError("a formula is not evaluated")


def _number(text: str, **_: object) -> Any:
    """A number, or the name of one of sympy's own objects, which sympy would read with
    `eval`. Raises ValueError for anything else."""
    from sympy import Float, Integer, Symbol

    if text.isidentifier():
        return Symbol(text)
    return Integer(int(text)) if text.isdecimal() else Float(str(float(text)))


def _answers() -> None:
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy.integrals import manualintegrate  # noqa: F401  defines a tuple by `eval`
    from sympy.parsing import sympy_parser

    sympy_parser.parse_expr = _number
    builtins.eval = _refuse
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer

    def reply(value: object) -> None:
        print(json.dumps(value), file=replies, flush=True)

    # 0: the library's own limits are of the clock, so a grade would depend on the load
    def read(text: str) -> list[Any]:
        found: list[Any] = parse(text, [LatexExtractionConfig()], parsing_timeout=0)
        return found

    reply("ready")
    for line in sys.stdin:
        golds, said, plain = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        right, found = False, []
        try:
            found = read(said) or (read(f"${plain}$") if plain else [])
            wanted = [read(f"\\boxed{{{gold}}}") for gold in golds]
            right = bool(found) and any(
                verify(gold, found, timeout_seconds=0) for gold in wanted if gold
            )
        except (Exception, RecursionError, MemoryError):
            found = found or []
        signal.setitimer(signal.ITIMER_PROF, 0)
        reply([right, [str(each)[:_LONGEST] for each in found[-1:]]])


if __name__ == "__main__":
    _answers()
