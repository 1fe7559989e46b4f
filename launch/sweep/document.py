"""A sweep file as plain data, checked against a model: YAML with strings, numbers,
lists and mappings only.

One-line errors refuse:

- tags that make objects
- a key that appears twice
- anything but a regular file"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from evaluator.core.config import KeysOnce
from evaluator.core.errors import InputError, need_regular, one_line, unknown

_SHOWN = 120  # characters of a wrong value
# Pydantic names Python's types; a YAML author knows other names.
_MEANT = {
    "tuple_type": "a list is needed: [...], or a line with '- ' for each entry",
    "dict_type": (
        "a mapping is needed: {name: value}, or a line 'name: value' for each entry"
    ),
}
_Model = TypeVar("_Model", bound=BaseModel)
# yaml's name for a text without a file; the line follows
_NO_FILE = ' in "<unicode string>"'


def read_document(path: Path, what: str = "the sweep file") -> Any:
    """The content of a YAML file. Raises InputError naming the file and its purpose
    `what`."""
    try:
        text = need_regular(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"{path}: cannot read {what}: {reason}") from error
    try:
        document = _Loader(text).get_single_data()
        json.dumps(document, default=str)  # ValueError: an alias contains itself
        return document
    # ValueError, TypeError: an impossible value, such as the 31st of February or a
    # number of 5,000 digits.
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path}: not valid YAML: {one_line(error, 1000).replace(_NO_FILE, '')}"
        ) from error


class _Loader(KeysOnce, yaml.SafeLoader):
    """Strings, numbers, lists and mappings."""


def validated(
    model: type[_Model],
    document: Mapping[str, Any],
    where: str,
    field_of: Callable[[tuple[int | str, ...]], str] | None = None,
) -> _Model:
    """Raises InputError with the first problem: where, field (as `field_of` spells
    it; may be empty) and value."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        # An unknown key often explains why another one is missing.
        problems = error.errors()
        problem = min(problems, key=lambda each: each["type"] != "extra_forbidden")
        place, kind = problem["loc"], problem["type"]
        spelled = field_of or _dotted
        field = spelled(place)
        if kind == "extra_forbidden":
            key = unknown("key", str(place[-1]), _known_keys(model, place))
            raise InputError(f"{where}: {key}, at {field}") from error
        message = problem["msg"].removeprefix("Value error, ")
        # the message names the fields
        if not (place and field) and kind == "value_error":
            raise InputError(f"{where}: {message}") from error
        value = json.dumps(problem["input"], default=str)
        if len(value) > _SHOWN:
            value = f"{value[:_SHOWN]}..."
        shown = field if kind == "missing" else f"{field}: {value}"
        raise InputError(f"{where}: {shown}: {_MEANT.get(kind, message)}") from error


def _dotted(place: tuple[int | str, ...]) -> str:
    return ".".join(map(str, place)) or "(top level)"


def _known_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The valid keys at the location of an unknown key, from the model's
    annotations."""
    fields = model.model_fields
    for part in location[:-1]:
        if isinstance(part, int) or part not in fields:
            continue
        leaves: list[Any] = [fields[part].annotation]
        while leaves and not hasattr(leaves[0], "model_fields"):
            leaves = [*getattr(leaves[0], "__args__", ()), *leaves[1:]]
        if leaves:
            fields = leaves[0].model_fields
    return list(fields)


def digest(document: object) -> str:
    """sha256 of a JSON document with sorted keys."""
    return hashlib.sha256(
        json.dumps(document, sort_keys=True, default=str).encode()
    ).hexdigest()
