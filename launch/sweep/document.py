"""A sweep file as plain data: YAML with strings, numbers, lists and mappings only.

One-line errors refuse:

- tags that make objects
- a key that appears twice
- aliases that expand to too many entries (a few lines can mean billions)
- deeper nesting than any sweep needs
- anything but a regular file
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from evaluator.core.errors import InputError, one_line

_LARGEST_FILE = 2**22  # bytes
_MOST_NODES = 100_000  # with every alias expanded: a sweep of 1,000 checkpoints has a tenth of that
_DEEPEST = 100
_NO_FILE = ' in "<unicode string>"'  # yaml's name for a text without a file; the line follows


def read_document(path: Path, what: str = "the sweep file") -> Any:
    """The content of a YAML file. Raises InputError naming the file and its purpose `what`."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: cannot read {what}: not a regular file")
        if path.stat().st_size > _LARGEST_FILE:
            raise InputError(f"{path}: cannot read {what}: it has more than {_LARGEST_FILE:,} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"{path}: cannot read {what}: {reason}") from error
    try:
        return _content(text, path)
    # ValueError, TypeError: an impossible value, such as the 31st of February or a number of 5,000 digits.
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not valid YAML: {one_line(error, 1000).replace(_NO_FILE, '')}") from error


def _content(text: str, path: Path) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded(node, {}, 1) > _MOST_NODES:
            raise InputError(f"{path}: its aliases expand to more than {_MOST_NODES:,} entries")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _expanded(node: yaml.Node, sizes: dict[int, int], depth: int) -> int:
    """The number of nodes with every alias expanded. Visits each node once."""
    if depth > _DEEPEST:
        raise yaml.MarkedYAMLError(problem=f"nested more than {_DEEPEST} deep", problem_mark=node.start_mark)
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in sizes:
        sizes[id(node)] = _MOST_NODES + 1  # a node that contains itself finds this
        parts = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        sizes[id(node)] = min(_MOST_NODES + 1, 1 + sum(_expanded(part, sizes, depth + 1) for part in parts))
    return sizes[id(node)]


class _Loader(yaml.SafeLoader):
    """Refuses a repeated key. YAML would silently keep the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} appears here twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)
