"""`quantise_manifest.json`: how a quantised checkpoint was made, and the digest of each of its files.

It is written last: a directory without it is no checkpoint that a sweep has quantised.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError, field_validator

from evaluator.checkpoints.files import is_inside
from evaluator.checkpoints.quantisation import QUANTISE_MANIFEST
from evaluator.config import Frozen
from evaluator.errors import InputError
from pruning.calibration.sequences import CalibrationManifest

SCHEMA_VERSION = 1


class QuantiseManifest(Frozen):
    """A quantised checkpoint's provenance."""

    schema_version: int = SCHEMA_VERSION
    method: str
    scheme: str
    config: dict[str, Any]  # the QuantiseConfig as JSON
    source_files: dict[str, str]  # sha256 of the files that it was made from
    calibration: CalibrationManifest | None
    versions: dict[str, str]  # of what did the work
    provenance: dict[str, Any]  # of the caller: commit, dirty flag, machine
    seconds: float
    files: dict[str, str]  # sha256 of every other file of the directory that is not a link

    @field_validator("schema_version")
    @classmethod
    def _of_this_version(cls, version: int) -> int:
        if version != SCHEMA_VERSION:
            raise ValueError(f"{version}: was written by another version of Resurface, this one reads {SCHEMA_VERSION}")
        return version

    @field_validator("files")
    @classmethod
    def _inside(cls, files: dict[str, str]) -> dict[str, str]:
        for name in files:
            if not is_inside(name):
                raise ValueError(f"{name!r} is not in its directory")
        return files


def read_manifest(directory: Path) -> QuantiseManifest | None:
    """The manifest of a checkpoint that was quantised here; None where there is none.

    Raises InputError for a broken one.
    """
    file = directory / QUANTISE_MANIFEST
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from None
    try:
        return QuantiseManifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{file}: {where}: {first['msg'].removeprefix('Value error, ')}") from None
