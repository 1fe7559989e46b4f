"""`prune_manifest.json` describes a pruned checkpoint: how it was made, and the
digest of each file.

It is written last: a directory without it is no pruned checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from evaluator.checkpoints.files import Files, of_version, parse_manifest
from evaluator.core.config import Frozen
from pruning.calibration import CalibrationManifest
from pruning.methods.patterns import Unit

MANIFEST_NAME = "prune_manifest.json"
SCHEMA_VERSION = 1

# a manifest without such a field keeps its bytes
_LATER = Field(default=None, exclude_if=lambda value: value is None)


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
    # With a repair alone: squared output error on the calibration text as a share of
    # the dense outputs' square, before it and after it, and how many steps it took.
    pruned_error: float | None = _LATER
    repaired_error: float | None = _LATER
    repair_steps: int | None = _LATER


class RemovedParts(Frozen):
    """The parts that were taken out, by their numbers in the dense model."""

    unit: Unit  # heads: key-value heads, each with the query heads that share it
    of: int  # how many there were: layers, or heads or channels of each layer
    gone: tuple[str, ...]  # "20-25,28": of each layer; where layers went, one list
    # method `layers`: angular, of each block of so many layers by its first
    distances: tuple[float, ...] | None = None


class JobManifest(Frozen):
    """What the manifests of pruning and quantising share."""

    # First: it reveals another version before any other field fails.
    schema_version: Annotated[int, of_version(SCHEMA_VERSION)] = SCHEMA_VERSION
    method: str
    config: dict[str, Any]  # the PruneConfig or QuantiseConfig as JSON
    source_files: dict[str, str]  # sha256 of the files that it was made from
    calibration: CalibrationManifest | None
    versions: dict[str, str]  # of what did the work
    provenance: dict[str, Any]  # of the caller: commit, dirty flag, machine
    seconds: float
    files: Files  # every other file of the directory that is not a link


class PruneManifest(JobManifest):
    """A pruned checkpoint's provenance."""

    # "unstructured", "N:M"; of parts taken out "layers", "heads", "channels" or a list
    # of layers
    pattern: str
    sparsity: float  # requested; N / M for a pattern
    # zeros / weights over the pruned matrices; of parts taken out the share of the
    # weights of all layers' matrices
    measured_sparsity: float
    allocation: str
    repair: str | None = _LATER  # of the weights that stayed; None: there was none
    layer_sparsity: tuple[float, ...]  # requested of each layer
    matrices: tuple[MatrixRecord, ...]  # none where parts were taken out
    removed: RemovedParts | None = None  # None: weights were set to zero
    seed: int
    device: str
    dtype: str  # of the pruned matrices, as safetensors spells it
    compute_dtype: str  # of the forward passes
    # of the GPU where there is one, else resident memory of the process
    peak_memory_bytes: int


def read_manifest(directory: Path) -> PruneManifest | None:
    """The manifest of a pruned checkpoint; None where there is none. Raises
    InputError for a broken one."""
    return parse_manifest(directory / MANIFEST_NAME, PruneManifest)


def to_json(manifest: BaseModel) -> str:
    return manifest.model_dump_json(indent=2, by_alias=True) + "\n"
