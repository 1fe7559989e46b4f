"""What manifests of checkpoints that were made here have in common: how one is read, and what is checked of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ValidationError

from evaluator.checkpoints.files import is_inside
from evaluator.core.errors import InputError

_Manifest = TypeVar("_Manifest", bound=BaseModel)


def _all_inside(files: dict[str, str]) -> dict[str, str]:
    for name in files:
        if not is_inside(name):
            raise ValueError(f"{name!r} is not in its directory")
    return files


Files = Annotated[dict[str, str], AfterValidator(_all_inside)]  # sha256 of files of the manifest's directory, by name


def of_version(wanted: int) -> AfterValidator:
    """Of a field: it has the version that this code reads and writes."""

    def check(version: int) -> int:
        if version != wanted:
            raise ValueError(f"{version}: was written by another version of Resurface, this one reads {wanted}")
        return version

    return AfterValidator(check)


def read(file: Path, kind: type[_Manifest]) -> _Manifest | None:
    """A manifest; None where there is none. Raises InputError for a broken one, naming the file and the field."""
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from None
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{file}: {where}: {first['msg'].removeprefix('Value error, ')}") from None
