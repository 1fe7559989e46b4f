"""A user's YAML file as plain data: strings, numbers, lists and mappings only.

One-line errors refuse:

- tags that make objects
- a key that appears twice
- aliases that stand for more than 100,000 entries: ten lines can stand for billions
- anything but a regular file"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from evaluator.core.config import KeysOnce
from evaluator.core.errors import MORE, InputError, meant, need_regular, one_line

_MOST_ENTRIES = 100_000  # a sweep of 1,000 checkpoints has a tenth
_QUOTED = 60  # characters of a value in a message
# yaml's name for a text without a file; the line follows
_NO_FILE = ' in "<unicode string>"'


def read_document(path: Path, what: str = "the sweep file") -> Any:
    """The content of a YAML file. Raises InputError naming the file and its purpose
    `what`."""
    try:
        text = need_regular(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8 text"
        if isinstance(error, OSError):
            missing = isinstance(error, FileNotFoundError)
            reason = f"{error.strerror}{meant(path) if missing else ''}"
        raise InputError(f"{path}: cannot read {what}: {reason}") from error
    try:
        return _Loader(text).get_single_data()
    # ValueError, TypeError: an impossible value, such as the 31st of February or a
    # number of 5,000 digits.
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        for mark in ("context_mark", "problem_mark"):
            if getattr(error, mark, None) is not None:
                getattr(error, mark).buffer = None  # quotes no line of the file
        raise InputError(
            f"{path}: not valid YAML: {one_line(error, 1000).replace(_NO_FILE, '')}"
        ) from error


class _Loader(KeysOnce, yaml.SafeLoader):
    """Strings, numbers, lists and mappings. Not libyaml's, which a file of a thousand
    brackets ends with the process."""

    def construct_document(self, node: yaml.Node) -> Any:
        if _entries(node, {}) > _MOST_ENTRIES:
            raise yaml.YAMLError(
                f"its aliases stand for more than {_MOST_ENTRIES:,} entries"
            )
        return super().construct_document(node)


def _entries(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """How many nodes it stands for with its aliases written out. Each is counted
    once."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if node not in known:
        known[node] = _MOST_ENTRIES + 1  # if it is found inside itself
        parts = node.value
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        known[node] = 1 + sum(_entries(part, known) for part in parts)
    return known[node]


def digest(document: object) -> str:
    """sha256 of a JSON document with sorted keys."""
    return hashlib.sha256(
        json.dumps(document, sort_keys=True, default=str).encode()
    ).hexdigest()


def differences(before: Any, after: Any, setting: str = "") -> Iterator[str]:
    """What differs inside two values, in words."""
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted(before.keys() | after.keys()):
            inner = f"{setting}.{name}" if setting else name
            yield from differences(before.get(name), after.get(name), inner)
        return
    there, here = map(_quoted, (before, after))
    yield f"{setting} is {there} there, {here} here"


def _quoted(value: object) -> str:
    """As JSON; of a long one its beginning and its end."""
    text = json.dumps(value)
    return text if len(text) <= _QUOTED else f"{text[:20]}{MORE}{text[-20:]}"
