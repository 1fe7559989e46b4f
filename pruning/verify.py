"""Whether a pruned checkpoint is what its manifest says."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from evaluator.checkpoints.files import digest_of_file
from evaluator.checkpoints.sparsity import groups_hold
from evaluator.core.errors import InputError
from pruning.methods.masks import count_zeros
from pruning.methods.patterns import NofM, parse, read_numbers
from pruning.model.checkpoint import FLOATS, Checkpoint
from pruning.model.decoder import Decoder
from pruning.output import export
from pruning.output.manifest import (
    MANIFEST_NAME,
    PruneManifest,
    RemovedParts,
    read_manifest,
)
from pruning.structured.cut import Cut, parts_of, slices
from pruning.structured.write import content


@dataclass(frozen=True, slots=True)
class Verdict:
    """Every way in which a checkpoint differs from its manifest."""

    problems: list[str]
    # the dense checkpoint that what stays was compared with, where parts were taken out
    source: Path | None = None


def examine(directory: Path) -> Verdict:
    """Hold a directory against its manifest: files are re-hashed, zeros re-counted, an
    N:M pattern checked by group. Where parts were taken out, what stays must be the
    dense checkpoint's byte for byte, if that is still where it was.
    """
    try:
        manifest = read_manifest(directory)
    except InputError as error:
        return Verdict([str(error)])
    if manifest is None:
        return Verdict([f"{directory / MANIFEST_NAME}: no such file"])
    problems = []
    for name, digest in manifest.files.items():
        file = directory / name
        if not file.is_file():
            problems.append(f"{file}: missing")
        elif digest_of_file(file) != digest:
            problems.append(f"{file}: its sha256 is not the manifest's")
    listed = {*manifest.files, MANIFEST_NAME}
    present = {
        str(file.relative_to(directory))
        for file in directory.rglob("*")
        if file.is_file()
    }
    problems += [
        f"{directory / name}: not in the manifest" for name in sorted(present - listed)
    ]
    source: Checkpoint | None = None
    try:
        checkpoint = Checkpoint(directory)
        if manifest.removed is None:
            problems += _verify_matrices(checkpoint, manifest)
        else:
            # it has to be at its place, and unchanged
            with suppress(InputError, OSError):
                found = Checkpoint(Path(str(manifest.config.get("source"))))
                source = (
                    found
                    if export.source_files(found) == manifest.source_files
                    else None
                )
            problems += _verify_removed(checkpoint, manifest.removed, source)
    except InputError as error:
        problems.append(str(error))
    return Verdict(problems, None if source is None else source.directory)


def _verify_removed(
    checkpoint: Checkpoint, removed: RemovedParts, source: Checkpoint | None
) -> list[str]:
    file = checkpoint.directory / MANIFEST_NAME
    try:
        gone = tuple(read_numbers(text) for text in removed.gone)
    except ValueError as error:
        return [f"{file}: removed.gone: {error}"]
    left = parts_of(Decoder(checkpoint, torch.device("cpu")), removed.unit)
    if any(
        left + len(numbers) != removed.of or numbers[-1] >= removed.of
        for numbers in gone
    ):
        return [
            f"{file}: removed: of {removed.of} {removed.unit} {left} are left, and"
            " another number went"
        ]
    if source is None:
        return []
    decoder = Decoder(source, torch.device("cpu"))
    layers = 1 if removed.unit == "layers" else len(decoder)
    if parts_of(decoder, removed.unit) != removed.of or len(gone) != layers:
        return [
            f"{file}: removed: {source.directory} has another number of"
            f" {removed.unit} or layers"
        ]
    return list(
        _differences(
            checkpoint, decoder, Cut(unit=removed.unit, of=removed.of, gone=gone)
        )
    )


def _differences(checkpoint: Checkpoint, source: Decoder, cut: Cut) -> Iterator[str]:
    """Every tensor that is not what stays of the source's."""
    kept = slices(source, cut)
    expected = {part.name for part in kept.values() if part is not None}
    for name in sorted(expected ^ checkpoint.entries.keys()):
        yield (
            f"{checkpoint.directory}: tensor {name} is"
            f" {'missing' if name in expected else 'one too many'}"
        )
    for name, part in kept.items():
        entry = None if part is None else checkpoint.entries.get(part.name)
        if part is None or entry is None:
            continue
        ours, theirs = (
            entry.chunks(),
            content(source.checkpoint, source.checkpoint.entries[name], part),
        )
        if entry.shape != part.shape or _digest(ours) != _digest(theirs):
            yield (
                f"{entry.file}: tensor {part.name} is not what stays of {name} of"
                f" {source.checkpoint.directory}"
            )


def _digest(chunks: Iterable[bytes | memoryview]) -> bytes:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.digest()


def _verify_matrices(checkpoint: Checkpoint, manifest: PruneManifest) -> list[str]:
    file = checkpoint.directory / MANIFEST_NAME
    try:
        pattern = parse(
            manifest.pattern, None if ":" in manifest.pattern else manifest.sparsity
        )
    except ValueError as error:
        return [f"{file}: {error}"]
    weights = sum(matrix.rows * matrix.columns for matrix in manifest.matrices)
    zeros = sum(matrix.zeros for matrix in manifest.matrices)
    problems = []
    if not weights:
        problems.append(f"{file}: matrices: there are none")
    elif manifest.measured_sparsity != zeros / weights:
        problems.append(
            f"{file}: measured_sparsity: {manifest.measured_sparsity}: its matrices'"
            f" counts give {zeros / weights}"
        )
    for matrix in manifest.matrices:
        entry = checkpoint.entries.get(matrix.name)
        if (
            entry is None
            or entry.dtype not in FLOATS
            or entry.shape != (matrix.rows, matrix.columns)
        ):
            problems.append(
                f"{checkpoint.directory}: matrix {matrix.name} is missing or has"
                " another type or shape"
            )
            continue
        weight_OI = checkpoint.read(matrix.name)
        zeros = count_zeros(weight_OI)
        if zeros != matrix.zeros or zeros < matrix.requested:
            problems.append(
                f"{entry.file}: matrix {matrix.name} holds {zeros} zeros, the manifest"
                f" says {matrix.zeros}, at least {matrix.requested} were requested"
            )
        if isinstance(pattern, NofM) and not groups_hold(
            weight_OI == 0, pattern.n, pattern.m
        ):
            problems.append(
                f"{entry.file}: matrix {matrix.name} breaks the pattern"
                f" {manifest.pattern}"
            )
    return problems
