"""The exceptions of the evaluator.

ResurfaceError                what every package of Resurface raises for its users
|-- InputError                something that the user can mend: one line, exit code 2
`-- EngineError               an engine failed while it worked: exit code 1 if retries do not help
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ResurfaceError(Exception):
    """Base of everything that is raised for a user to read; its text is one complete line."""


class InputError(ResurfaceError):
    """A file, field or value is wrong. The message names all three."""


class EngineError(ResurfaceError):
    """An engine died or answered nonsense; the work in flight was lost, records were not."""


def one_line(error: BaseException | str, limit: int = 200) -> str:
    """An error's text as one line of at most `limit` characters; the name of its type where it has no text.

    Libraries raise errors of many lines; a message to a user quotes them with this.
    """
    text = " ".join(str(error).split())
    if not text and isinstance(error, BaseException):
        return type(error).__name__
    return text[:limit]


def unknown(what: str, value: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not one of `known`, with the nearest valid name suggested."""
    names = sorted(known)
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InputError(f"unknown {what} {value!r}{hint} (known: {', '.join(names)})")
