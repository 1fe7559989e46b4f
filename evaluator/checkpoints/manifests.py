"""How a checkpoint was made: `prune_manifest.json` and `quantise_manifest.json`, with
the digest of each file.

A manifest is written last: a directory without one was not made here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from evaluator.checkpoints.files import is_inside
from evaluator.core.config import Frozen
from evaluator.core.errors import InputError, Json, read_bytes

SCHEMA_VERSION = 1

_Manifest = TypeVar("_Manifest", bound="JobManifest")


def _all_inside(files: dict[str, str]) -> dict[str, str]:
    for name in files:
        if not is_inside(name):
            raise ValueError(f"{name!r} is not in its directory")
    return files


def _this_version(version: int) -> int:
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"{version}: was written by another version of Resurface, this one reads"
            f" {SCHEMA_VERSION}"
        )
    return version


class PassageRecord(Frozen):
    """One sequence: where its text came from and how many tokens it gave."""

    origin: str
    row: int
    offset: int = 0  # of the sequence's first token in its document
    tokens: int
    sha256: str  # of the passage's UTF-8 text
    text_digest: str = ""  # of its normalised text, by `text_digest`


class CalibrationManifest(Frozen):
    """The text that a job saw; part of the checkpoint's manifest."""

    source: str
    samples: int
    sequence_length: int
    tokens: int
    cut: int  # passages that were longer than the sequence length
    ids_sha256: str  # of every sequence's length and ids, little-endian 64-bit
    files: dict[str, str]  # sha256 of the calibration files
    passages: tuple[PassageRecord, ...]


class MatrixRecord(Frozen):
    """One pruned matrix."""

    model_config = ConfigDict(populate_by_name=True)

    name: str
    rows: int
    columns: int
    # weights that the pattern takes; "asked" in the file
    requested: int = Field(alias="asked")
    # weights that are zero in the file; more than requested where dense ones were zero
    # already
    zeros: int
    # An expert's: how many tokens of the calibration text were sent to it. 0: it was
    # judged by its weights alone.
    tokens: int | None = None
    dead_columns: int | None = None  # inputs that were zero on every calibration token
    # SparseGPT: share of the Hessian's mean diagonal added to it
    damping: float | None = None
    solver_dtype: str | None = None  # SparseGPT: what the Hessian was factored in


class RemovedParts(Frozen):
    """The parts that were taken out, by their numbers in the dense model."""

    unit: Literal["layers", "experts"]
    of: int  # how many there were: layers, or experts of each layer
    gone: tuple[str, ...]  # "20-25,28": of each layer; where layers went, one list
    # method `layers`: angular, of each block of so many layers by its first
    distances: tuple[float, ...] | None = None


class JobManifest(Frozen):
    """What the manifests of pruning and quantising share."""

    FILE: ClassVar[str]

    # First: it reveals another version before any other field fails.
    schema_version: Annotated[int, AfterValidator(_this_version)] = SCHEMA_VERSION
    method: str
    config: Json  # the PruneConfig or QuantiseConfig as JSON
    source_files: dict[str, str]  # sha256 of the files that it was made from
    calibration: CalibrationManifest | None
    versions: dict[str, str]  # of what did the work
    provenance: Json  # of the caller: commit, dirty flag, machine
    seconds: float
    # sha256 of every other file of the directory that is not a link
    files: Annotated[dict[str, str], AfterValidator(_all_inside)]


class PruneManifest(JobManifest):
    """A pruned checkpoint's provenance."""

    FILE = "prune_manifest.json"

    # "unstructured", "N:M"; of parts taken out their unit, or a list of layers
    pattern: str
    sparsity: float  # requested; N / M for a pattern
    # zeros / weights over the pruned matrices; of parts taken out the share of the
    # weights of all layers' matrices
    measured_sparsity: float
    allocation: str
    layer_sparsity: tuple[float, ...]  # requested of each layer
    matrices: tuple[MatrixRecord, ...]  # none where parts were taken out
    removed: RemovedParts | None = None  # None: weights were set to zero
    seed: int
    device: str
    dtype: str  # of the pruned matrices, as safetensors spells it
    compute_dtype: str  # of the forward passes
    # of the GPU where there is one, else resident memory of the process
    peak_memory_bytes: int


class QuantiseManifest(JobManifest):
    """A quantised checkpoint's provenance."""

    FILE = "quantise_manifest.json"

    scheme: str
    # Of the matrices that were pruned before, as they were written; None: there were
    # none, or the layout is not known.
    pattern: str | None = None
    measured_sparsity: float | None = None  # zeros / weights


def read_manifest(directory: Path, kind: type[_Manifest]) -> _Manifest | None:
    """A directory's manifest of a kind; None where there is none. Raises InputError
    for a broken one, naming the file and the field."""
    file = directory / kind.FILE
    try:
        if not file.exists():
            return None
    except OSError as error:  # a long name
        raise InputError(f"{file}: {error.strerror}") from error
    try:
        return kind.model_validate_json(read_bytes(file))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(
            f"{file}: {where}: {first['msg'].removeprefix('Value error, ')}"
        ) from None


def to_json(manifest: JobManifest) -> str:
    return manifest.model_dump_json(indent=2, by_alias=True) + "\n"
