"""`prune_manifest.json`: what a pruned checkpoint is, how it was made, and the digest of each of its files.

It is written last: a directory without it is no pruned checkpoint. `verify` holds the directory against it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from evaluator.errors import InputError
from pruning.calibration.passages import digest_of_file
from pruning.calibration.sequences import CalibrationManifest
from pruning.layers.counts import count_zeros
from pruning.methods.masks import groups_hold
from pruning.model.checkpoint import FLOATS, Checkpoint
from pruning.patterns import NofM, parse

MANIFEST_NAME = "prune_manifest.json"
SCHEMA_VERSION = 1


class Record(BaseModel):
    """Base of what the manifest holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MatrixRecord(Record):
    """One pruned matrix."""

    name: str
    rows: int
    columns: int
    asked: int  # weights that the pattern takes
    zeros: int  # weights that are zero in the file; more than asked where dense ones were zero already
    dead_columns: int | None = None  # inputs that were zero on every calibration token
    damping: float | None = None  # SparseGPT: share of the Hessian's mean diagonal added to it
    solver_dtype: str | None = None  # SparseGPT: what the Hessian was factored in


class PruneManifest(Record):
    """A pruned checkpoint's provenance."""

    schema_version: int = SCHEMA_VERSION
    method: str
    pattern: str  # "unstructured" or "N:M"
    sparsity: float  # asked; N / M for a pattern
    measured_sparsity: float  # zeros / weights over the pruned matrices
    allocation: str
    layer_sparsity: tuple[float, ...]  # asked of each layer
    config: dict[str, Any]  # the PruneConfig as JSON
    source_files: dict[str, str]  # sha256 of the dense checkpoint's files
    matrices: tuple[MatrixRecord, ...]
    calibration: CalibrationManifest | None
    versions: dict[str, str]
    provenance: dict[str, Any]  # of the caller: commit, dirty flag
    seed: int
    device: str
    dtype: str  # of the pruned matrices, as safetensors spells it
    compute_dtype: str  # of the forward passes
    seconds: float
    peak_memory_bytes: int  # of the GPU where there is one, else resident memory of the process
    files: dict[str, str]  # sha256 of every other file of the directory


def read_manifest(directory: Path) -> PruneManifest | None:
    """The manifest of a pruned checkpoint; None where there is none. Raises InputError for a broken one."""
    file = directory / MANIFEST_NAME
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from None
    try:
        return PruneManifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{file}: {where}: {first['msg']}") from None


def to_json(manifest: PruneManifest) -> str:
    return manifest.model_dump_json(indent=2) + "\n"


def verify(directory: Path) -> list[str]:
    """Every way in which the directory differs from its manifest; empty if it is what it says.

    Files are re-hashed; zeros are re-counted; an N:M pattern is checked group by group.
    """
    try:
        manifest = read_manifest(directory)
    except InputError as error:
        return [str(error)]
    if manifest is None:
        return [f"{directory / MANIFEST_NAME}: no such file"]
    problems = []
    for name, digest in manifest.files.items():
        file = directory / name
        if not file.is_file():
            problems.append(f"{file}: missing")
        elif digest_of_file(file) != digest:
            problems.append(f"{file}: its sha256 is not the manifest's")
    listed = {*manifest.files, MANIFEST_NAME}
    present = {str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file()}
    problems += [f"{directory / name}: not in the manifest" for name in sorted(present - listed)]
    try:
        problems += _verify_matrices(Checkpoint(directory), manifest)
    except InputError as error:
        problems.append(str(error))
    return problems


def _verify_matrices(checkpoint: Checkpoint, manifest: PruneManifest) -> list[str]:
    file = checkpoint.directory / MANIFEST_NAME
    try:
        pattern = parse(manifest.pattern, None if ":" in manifest.pattern else manifest.sparsity)
    except ValueError as error:
        return [f"{file}: {error}"]
    weights = sum(matrix.rows * matrix.columns for matrix in manifest.matrices)
    zeros = sum(matrix.zeros for matrix in manifest.matrices)
    problems = []
    if not weights:
        problems.append(f"{file}: matrices: there are none")
    elif manifest.measured_sparsity != zeros / weights:
        problems.append(
            f"{file}: measured_sparsity: {manifest.measured_sparsity}: its matrices' counts make {zeros / weights}"
        )
    for matrix in manifest.matrices:
        entry = checkpoint.entries.get(matrix.name)
        if entry is None or entry.dtype not in FLOATS or entry.shape != (matrix.rows, matrix.columns):
            problems.append(f"{checkpoint.directory}: matrix {matrix.name} is missing or has another type or shape")
            continue
        weight_OI = checkpoint.read(matrix.name)
        zeros = count_zeros(weight_OI)
        if zeros != matrix.zeros or zeros < matrix.asked:
            problems.append(
                f"{entry.file}: matrix {matrix.name} holds {zeros} zeros, the manifest says {matrix.zeros}, "
                f"at least {matrix.asked} were asked"
            )
        if isinstance(pattern, NofM) and not groups_hold(weight_OI == 0, pattern.n, pattern.m):
            problems.append(f"{entry.file}: matrix {matrix.name} breaks the pattern {manifest.pattern}")
    return problems
