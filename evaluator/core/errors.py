"""The exceptions of every package, and checked access to JSON that others wrote: items,
configurations, manifests.

ResurfaceError                the base of every package's errors for users
|-- InputError                something that the user can mend: one line, exit code 2
`-- EngineError               an engine failed while it worked: exit code 1 if retries
                              do not help

A check that fails raises an InputError of one line, which names the place, the field
and the value.
"""

import difflib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evaluator.core.removed import REMOVED

Json = dict[str, Any]  # an object of JSON
Document = Mapping[str, Any]  # one that is only read
# characters of an error's text that are told from its beginning, and from its end
_HALF = 2000
_LISTED = 50  # names
_KINDS: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}


class ResurfaceError(Exception):
    """For a user to read: one complete line. The middle of a long text, which may
    quote anything, is left out."""

    def __str__(self) -> str:
        text = super().__str__()
        return (
            text if len(text) <= 2 * _HALF else f"{text[:_HALF]} [...] {text[-_HALF:]}"
        )


class InputError(ResurfaceError):
    """A file, field or value is wrong. The message names all three."""


class JobError(ResurfaceError):
    """A job that prunes or quantises failed, and not because of its input."""


class EngineError(ResurfaceError):
    """An engine died or answered nonsense; the work in flight was lost, records were
    not."""


# Names of environment variables with secret values; and what looks like a secret,
# wherever it comes from.
_SECRET_NAME = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|_PWD|(^|_|API)KEY(_ID)?|CREDENTIALS?"
    r"|WEBHOOK(_URL)?|_DSN)$",
    re.IGNORECASE,
)
_SECRET = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bhf_(?:jwt|oauth)_[\w.-]{16,}"
    r"|\b(?:sk|pk|rk|glpat|xox[a-z])-[\w-]{16,}|\b(?:gh[a-z]|github_pat)_\w{16,}"
    r"|\bAKIA[A-Z0-9]{16}|(?<=\b[Bb]earer )[^\s'\"]{8,}|(?<=://)[^/\s@]+(?=@)"
    r"|(?<=://hooks\.)[^\s'\"]+|(?<=/webhooks/)[^\s'\"]+"
    r"|(?<=[?&])[\w.-]+=[^\s'\"&#]+"
)
SHORTEST_SECRET = 8  # characters; hiding shorter values would garble ordinary words


def redacted(text: str) -> str:
    """A text without secrets of this process's environment, known kinds of tokens,
    and passwords, queries and webhooks in addresses."""
    for name, value in os.environ.items():
        if len(value) >= SHORTEST_SECRET and _SECRET_NAME.search(name):
            text = text.replace(value, "***")
    return _SECRET.sub("***", text)


MORE = "\N{HORIZONTAL ELLIPSIS}"  # where a text was cut


def one_line(error: BaseException | str, limit: int = 200) -> str:
    """An error's text as one line of at most `limit` characters, cut between words: half
    a path would be another one. The name of its type where it has no text."""
    text = redacted(" ".join(str(error).split()))
    if not text and isinstance(error, BaseException):
        return type(error).__name__
    if len(text) <= limit:
        return text
    return f"{text[: limit - 1].rpartition(' ')[0] or text[: limit - 2]} {MORE}"


# Control characters except the end of a line; lone surrogates, which have no encoding;
# marks of direction, separators of lines, and what is invisible. Indic and Persian
# spelling needs the joiners U+200C and U+200D.
HIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0"
    "\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def printable(text: str) -> str:
    """A foreign text in one line, without the characters that HIDDEN has."""
    return HIDDEN.sub("\N{REPLACEMENT CHARACTER}", text.replace("\n", "\r"))


PLUGIN = "a plugin adds others: entry point resurface.plugins, or RESURFACE_PLUGINS"
# what plugins may register
_PLUGGED = ("engine", "method", "probe", "table", "task")


def counted(number: int, what: str) -> str:
    """`1 item`, `2 items`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def lasting(seconds: float) -> str:
    """A time as `2.4 s`, `2 min 24 s`, `3 h 5 min` or `2 d 4 h`."""
    left = round(seconds)
    if left < 60:
        return f"{seconds:.1f} s"
    parts: list[str] = []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(part for part in parts[:2] if part[0] != "0")


def unknown(what: str, value: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not one of `known`, with its replacement or the
    nearest valid name; it lists at most 50."""
    if instead := REMOVED.get(f"{what} {value}"):
        return InputError(f"{what} {value!r} was removed: {instead}")
    names = sorted(known)
    hint = nearest(value, names)
    listed = ", ".join(names[:_LISTED])
    if len(names) > _LISTED:
        listed += f" and {len(names) - _LISTED:,} more"
    if what.removeprefix("--") in _PLUGGED:
        listed += f"; {PLUGIN}"
    return InputError(f"unknown {what} {value!r}{hint} (known: {listed})")


def nearest(value: str, known: Iterable[str]) -> str:
    """Suggests the name that is spelled nearly as `value` is; empty for none."""
    spellings = {name.lower(): name for name in known}
    typed = value.lower()
    if typed.isdecimal():  # numbers are not misspelled
        return ""
    # one wrong letter is half of a language's code
    cutoff = 0.6 if len(value) > 3 else 0.4
    near = difflib.get_close_matches(typed, spellings, n=1, cutoff=cutoff)
    near = near or [name for name in spellings if typed and name.startswith(typed)]
    return f"; did you mean {spellings[near[0]]!r}?" if near else ""


def meant(path: Path, *names: str) -> str:
    """Suggests the file beside a missing one, or the name, that is spelled nearly as it
    is; empty for none."""
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    known = [*map(str, beside), *names]
    near = difflib.get_close_matches(str(path), known, n=1, cutoff=0.8)
    return f"; did you mean {near[0]!r}?" if near else ""


def need_regular(path: Path) -> Path:
    """The path itself, a missing one too. Raises InputError for a pipe, a socket or
    a device, which may never end."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return path
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(f"{path}: is a pipe, a socket or a device, not a regular file")
    return path


def read_bytes(file: Path) -> bytes:
    """What a file holds. Raises InputError, naming it, if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from error


def parse(text: bytes, place: str) -> Any:
    """The JSON value in UTF-8 text. Raises InputError that names `place`, also for a
    key given twice."""

    def each_once(pairs: list[tuple[str, Any]]) -> Json:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(
                key
                for key, count in Counter(key for key, _ in pairs).items()
                if count > 1
            )
            raise InputError(f"{place}: key {twice!r} occurs twice")
        return found

    try:
        return json.loads(text.decode("utf-8-sig"), object_pairs_hook=each_once)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{place}: not UTF-8 text (byte {error.start}: {error.reason})"
        ) from error
    except json.JSONDecodeError as error:
        raise InputError(f"{place}: not JSON ({error})") from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # a number of thousands of digits; brackets nested too deep
        raise InputError(f"{place}: not JSON that can be read ({error})") from error


def json_text(value: object, **options: Any) -> str:
    """A value as JSON, which has no infinite numbers: they become "Infinity" and
    "-Infinity", and NaN becomes null.

    So does Protocol Buffers' JSON; `float` and JavaScript's `Number` read the words.
    `options`: those of json.dumps.
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        plain = json.loads(
            json.dumps(value, **options),
            parse_constant=lambda name: None if name == "NaN" else name,
        )
        return json.dumps(plain, allow_nan=False, **options)


def _in_one_spelling(value: Any) -> Any:
    """A JSON value in the one spelling of its equals: 1.0 as 1, and a list of one text
    as that text."""
    if isinstance(value, Mapping):
        return {name: _in_one_spelling(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        is_text = len(value) == 1 and isinstance(value[0], str)
        return value[0] if is_text else [*map(_in_one_spelling, value)]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def spelled(value: Any) -> str:
    """A JSON value as text: that of equal values is equal, in any order of keys."""
    value = _in_one_spelling(value)
    if isinstance(value, str):
        return value
    return json_text(value, sort_keys=True, ensure_ascii=False, default=str)


def field(record: Any, name: str, kind: type, place: str) -> Any:
    """`record[name]`, which must be there and of `kind` (str, list or dict). Raises
    InputError."""
    checked = of_kind(record, dict, place)
    if name not in checked:
        raise InputError(f"{place}: field {name!r} is missing")
    return of_kind(checked[name], kind, f"{place}: field {name!r}")


def text_field(record: Any, name: str, place: str) -> str:
    """`record[name]`, a string that names something: not blank. Raises InputError."""
    text: str = field(record, name, str, place)
    if not text.strip():
        raise InputError(f"{place}: field {name!r} is empty")
    return text


def strings(values: Any, place: str) -> tuple[str, ...]:
    """A list of strings. Raises InputError."""
    return tuple(
        of_kind(value, str, f"{place}[{number}]")
        for number, value in enumerate(of_kind(values, list, place))
    )


def mapping_at(document: Any, *keys: Any) -> Document:
    """What JSON holds under one key after another; empty where it holds no object
    there. Raises nothing."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document if isinstance(document, Mapping) else {}


def rows_at(document: Document, key: str) -> list[Document]:
    """The objects of the list that JSON holds under a key; none where it holds no
    list. Raises nothing."""
    found = document.get(key)
    return (
        [row for row in found if isinstance(row, Mapping)]
        if isinstance(found, list)
        else []
    )


def of_kind(value: Any, kind: type, place: str) -> Any:
    """`value` itself if it is of `kind`, and if a string then one that can be
    written as UTF-8. Raises InputError."""
    if not isinstance(value, kind):
        shown = json.dumps(value, ensure_ascii=True, default=str)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise InputError(f"{place} must be {_KINDS[kind]}, not {shown}")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            # JSON can spell half of a surrogate pair; no tokenizer and no file format
            # takes it.
            raise InputError(
                f"{place} holds a lone surrogate at character {error.start}"
            ) from error
    return value
