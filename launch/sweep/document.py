"""A sweep file as plain data, checked against a model: YAML with strings, numbers,
lists and mappings only.

One-line errors refuse:

- tags that make objects
- a key that appears twice
- aliases that expand to too many entries (a few lines can mean billions)
- deeper nesting than any sweep needs
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

_LARGEST_FILE = 2**22  # bytes
# with every alias expanded: a sweep of 1,000 checkpoints has a tenth of that
_MOST_NODES = 100_000
_DEEPEST = 100
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
        if need_regular(path).stat().st_size > _LARGEST_FILE:
            raise InputError(
                f"{path}: cannot read {what}: it has more than {_LARGEST_FILE:,} bytes"
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"{path}: cannot read {what}: {reason}") from error
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded(node, {}, 1) > _MOST_NODES:
            raise InputError(
                f"{path}: its aliases expand to more than {_MOST_NODES:,} entries"
            )
        return loader.construct_document(node)
    # ValueError, TypeError: an impossible value, such as the 31st of February or a
    # number of 5,000 digits.
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path}: not valid YAML: {one_line(error, 1000).replace(_NO_FILE, '')}"
        ) from error


def _expanded(node: yaml.Node, sizes: dict[int, int], depth: int) -> int:
    """The number of nodes with every alias expanded. Visits each node once."""
    if depth > _DEEPEST:
        raise yaml.MarkedYAMLError(
            problem=f"nested more than {_DEEPEST} deep", problem_mark=node.start_mark
        )
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in sizes:
        sizes[id(node)] = _MOST_NODES + 1  # a node that contains itself finds this
        parts = [
            part
            for pair in node.value
            for part in (pair if isinstance(pair, tuple) else (pair,))
        ]
        sizes[id(node)] = min(
            _MOST_NODES + 1,
            1 + sum(_expanded(part, sizes, depth + 1) for part in parts),
        )
    return sizes[id(node)]


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
        problem = min(
            error.errors(), key=lambda problem: problem["type"] != "extra_forbidden"
        )
        place, kind = problem["loc"], problem["type"]
        field = (
            field_of(place)
            if field_of is not None
            else ".".join(map(str, place)) or "(top level)"
        )
        if kind == "extra_forbidden":
            known = _known_keys(model, place)
            raise InputError(
                f"{where}: {unknown('key', str(place[-1]), known)}, at {field}"
            ) from error
        message = problem["msg"].removeprefix("Value error, ")
        # the message names the fields
        if not (place and field) and kind == "value_error":
            raise InputError(f"{where}: {message}") from error
        value = json.dumps(problem["input"], default=str)
        value = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
        shown = field if kind == "missing" else f"{field}: {value}"
        raise InputError(f"{where}: {shown}: {_MEANT.get(kind, message)}") from error


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
