"""Whether a pruned checkpoint is what its manifest says."""

from __future__ import annotations

from pathlib import Path

from evaluator.errors import InputError
from pruning.digests import digest_of_file
from pruning.layers.counts import count_zeros
from pruning.methods.masks import groups_hold
from pruning.model.checkpoint import FLOATS, Checkpoint
from pruning.output.manifest import MANIFEST_NAME, PruneManifest, read_manifest
from pruning.patterns import NofM, parse


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
            f"{file}: measured_sparsity: {manifest.measured_sparsity}: its matrices' counts give {zeros / weights}"
        )
    for matrix in manifest.matrices:
        entry = checkpoint.entries.get(matrix.name)
        if entry is None or entry.dtype not in FLOATS or entry.shape != (matrix.rows, matrix.columns):
            problems.append(f"{checkpoint.directory}: matrix {matrix.name} is missing or has another type or shape")
            continue
        weight_OI = checkpoint.read(matrix.name)
        zeros = count_zeros(weight_OI)
        if zeros != matrix.zeros or zeros < matrix.requested:
            problems.append(
                f"{entry.file}: matrix {matrix.name} holds {zeros} zeros, the manifest says {matrix.zeros}, "
                f"at least {matrix.requested} were requested"
            )
        if isinstance(pattern, NofM) and not groups_hold(weight_OI == 0, pattern.n, pattern.m):
            problems.append(f"{entry.file}: matrix {matrix.name} breaks the pattern {manifest.pattern}")
    return problems
