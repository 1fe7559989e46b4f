"""Whether a pruned checkpoint is what its manifest says."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.files import digest_of_file
from evaluator.checkpoints.manifests import MatrixRecord, PruneManifest, RemovedParts
from evaluator.checkpoints.sparsity import groups_hold
from evaluator.checkpoints.tensors import FLOATS
from evaluator.core.errors import InputError
from pruning.methods.masks import count_zeros
from pruning.methods.patterns import NofM, Pattern, parse, read_numbers
from pruning.model.decoder import Decoder
from pruning.output import export
from pruning.structured import experts
from pruning.structured.cut import Cut, slices
from pruning.structured.write import differences


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Every way in which a checkpoint differs from its manifest."""

    problems: list[str]
    # the dense checkpoint that what stays was compared with, where parts were taken out
    source: Path | None = None


def examine(directory: Path) -> VerifyResult:
    """Hold a directory against its manifest: files are re-hashed, zeros re-counted, an
    N:M pattern checked by group. Where parts were taken out, what stays must be the
    dense checkpoint's byte for byte, if that is still where it was.
    """
    checkpoint = Checkpoint(directory)
    try:
        manifest = checkpoint.pruned
    except InputError as error:
        return VerifyResult([str(error)])
    if manifest is None:
        return VerifyResult([f"{directory / PruneManifest.FILE}: no such file"])
    problems = list(_verify_files(directory, manifest))
    source: Checkpoint | None = None
    try:
        checkpoint.check_directory()
        if manifest.removed is None:
            problems += _verify_matrices(checkpoint, manifest)
        else:
            source = _unchanged_source(manifest)
            problems += _verify_removed(checkpoint, manifest.removed, source)
    except InputError as error:
        problems.append(str(error))
    return VerifyResult(problems, None if source is None else source.path)


def _verify_files(directory: Path, manifest: PruneManifest) -> Iterator[str]:
    for name, digest in manifest.files.items():
        file = directory / name
        if not file.is_file():
            yield f"{file}: missing"
        elif digest_of_file(file) != digest:
            yield f"{file}: its sha256 is not the manifest's"
    listed = {*manifest.files, manifest.FILE}
    for file in sorted(directory.rglob("*")):
        if file.is_file() and str(file.relative_to(directory)) not in listed:
            yield f"{file}: not in the manifest"


def _unchanged_source(manifest: PruneManifest) -> Checkpoint | None:
    """The dense checkpoint, if it is at its place."""
    source = Checkpoint(Path(str(manifest.config.get("source"))))
    with suppress(InputError, OSError):
        source.check_directory()
        if export.source_files(source) == manifest.source_files:
            return source
    return None


def _verify_removed(
    checkpoint: Checkpoint, removed: RemovedParts, source: Checkpoint | None
) -> list[str]:
    file = checkpoint.path / PruneManifest.FILE
    try:
        gone = tuple(read_numbers(text) for text in removed.gone)
    except ValueError as error:
        return [f"{file}: removed.gone: {error}"]
    if removed.unit == "experts":
        return list(experts.problems(checkpoint, removed, source))
    if len(gone) != 1:
        return [f"{file}: removed.gone: {len(gone)} lists, not one of layers"]
    numbers = gone[0]
    left = len(Decoder(checkpoint, torch.device("cpu")))
    if left + len(numbers) != removed.of or numbers[-1] >= removed.of:
        return [
            f"{file}: removed: of {removed.of} layers {left} are left, and another"
            " number went"
        ]
    if source is None:
        return []
    decoder = Decoder(source, torch.device("cpu"))
    if len(decoder) != removed.of:
        return [f"{file}: removed: {source.path} has another number of layers"]
    cut = Cut(of=removed.of, gone=numbers)
    return list(differences(checkpoint, source, slices(decoder, cut)))


def _verify_matrices(checkpoint: Checkpoint, manifest: PruneManifest) -> Iterator[str]:
    file = checkpoint.path / manifest.FILE
    ratio = None if ":" in manifest.pattern else manifest.sparsity
    try:
        pattern = parse(manifest.pattern, ratio)
    except ValueError as error:
        yield f"{file}: {error}"
        return
    weights = sum(matrix.rows * matrix.columns for matrix in manifest.matrices)
    zeros = sum(matrix.zeros for matrix in manifest.matrices)
    if not weights:
        yield f"{file}: matrices: there are none"
    elif manifest.measured_sparsity != zeros / weights:
        yield (
            f"{file}: measured_sparsity: {manifest.measured_sparsity}: its matrices'"
            f" counts give {zeros / weights}"
        )
    for matrix in manifest.matrices:
        yield from _verify_matrix(checkpoint, matrix, pattern, manifest.pattern)


def _verify_matrix(
    checkpoint: Checkpoint, matrix: MatrixRecord, pattern: Pattern, stated: str
) -> Iterator[str]:
    tensor = checkpoint.tensors.get(matrix.name)
    shape = matrix.rows, matrix.columns
    if tensor is None or tensor.dtype not in FLOATS or tensor.shape != shape:
        yield (
            f"{checkpoint.path}: matrix {matrix.name} is missing or has another type or"
            " shape"
        )
        return
    weight_OI = tensor.read()
    zeros = count_zeros(weight_OI)
    if zeros != matrix.zeros or zeros < matrix.requested:
        yield (
            f"{tensor.file}: matrix {matrix.name} holds {zeros} zeros, the manifest"
            f" says {matrix.zeros}, at least {matrix.requested} were requested"
        )
    if isinstance(pattern, NofM) and not groups_hold(
        weight_OI == 0, pattern.n, pattern.m
    ):
        yield f"{tensor.file}: matrix {matrix.name} breaks the pattern {stated}"
