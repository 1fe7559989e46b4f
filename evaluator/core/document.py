"""A user's YAML file as plain data: strings, numbers, lists and mappings only.

One-line errors refuse:

- tags that make objects
- a key that appears twice
- anything but a regular file"""

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from evaluator.core.config import KeysOnce
from evaluator.core.errors import InputError, meant, need_regular, one_line

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
    """Strings, numbers, lists and mappings. Not libyaml's, which a file of a thousand
    brackets ends with the process."""


def digest(document: object) -> str:
    """sha256 of a JSON document with sorted keys."""
    return hashlib.sha256(
        json.dumps(document, sort_keys=True, default=str).encode()
    ).hexdigest()
