"""`quantise_manifest.json`: how a quantised checkpoint was made, and the digest of each of its files.

It is written last: a directory without it is no checkpoint that a sweep has quantised.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from evaluator.checkpoints.files import Files, of_version, parse_manifest
from evaluator.checkpoints.quantisation import QUANTISE_MANIFEST
from evaluator.core.config import Frozen
from pruning.calibration.sequences import CalibrationManifest

SCHEMA_VERSION = 1


class QuantiseManifest(Frozen):
    """A quantised checkpoint's provenance."""

    schema_version: Annotated[int, of_version(SCHEMA_VERSION)] = SCHEMA_VERSION
    method: str
    scheme: str
    config: dict[str, Any]  # the QuantiseConfig as JSON
    source_files: dict[str, str]  # sha256 of the files that it was made from
    calibration: CalibrationManifest | None
    versions: dict[str, str]  # of what did the work
    provenance: dict[str, Any]  # of the caller: commit, dirty flag, machine
    seconds: float
    files: Files  # every other file of the directory that is not a link


def read_manifest(directory: Path) -> QuantiseManifest | None:
    """The manifest of a checkpoint that was quantised here; None where there is none.

    Raises InputError for a broken one.
    """
    return parse_manifest(directory / QUANTISE_MANIFEST, QuantiseManifest)
