"""One job before anything heavy starts, and its text: pruning and quantising share this."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from evaluator.checkpoints.files import digest_of_file, digest_once
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.errors import InputError
from pruning.calibration import passages, sequences
from pruning.calibration.passages import PassageSource, is_local
from pruning.calibration.sequences import Calibration, CalibrationManifest
from pruning.config import CalibrationConfig
from pruning.model.checkpoint import Checkpoint
from pruning.output import export

# Where a job runs and where its input lies do not change its result; digests tell whether the input is the same.
_NOT_IDENTITY = {"source", "device"}
_QUOTED = 80  # characters of a value in a message


class Settings(Protocol):
    """The fields that the configurations of all jobs share."""

    @property
    def source(self) -> Path: ...
    @property
    def calibration(self) -> CalibrationConfig | None: ...
    @property
    def seed(self) -> int: ...
    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


class Manifest(Protocol):
    """The fields that the manifests of all jobs share."""

    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def source_files(self) -> dict[str, str]: ...
    @property
    def calibration(self) -> CalibrationManifest | None: ...
    @property
    def files(self) -> dict[str, str]: ...


ConfigT = TypeVar("ConfigT", bound=Settings)
ManifestT = TypeVar("ManifestT", bound=Manifest)


@dataclass(frozen=True, slots=True)
class Job(Generic[ConfigT]):
    """A configuration, the checkpoint that it names, and the caller's texts."""

    config: ConfigT
    out: Path
    sources: Mapping[str, PassageSource]  # named passages that calibration may take
    held_out: Mapping[str, str]  # digests of texts that no passage may be, each with what it is
    checkpoint: Checkpoint = field(init=False)

    def __post_init__(self) -> None:
        """Raises InputError for a checkpoint that cannot be read."""
        object.__setattr__(self, "checkpoint", Checkpoint(self.config.source))

    def finished(self, read: Callable[[Path], ManifestT | None]) -> ManifestT | None:
        """The manifest of `out` if this very job has made it; None if nothing is there.

        Raises InputError if it is another job's, or damaged, or saw a text that is held out.
        """
        manifest = read(self.out)
        if manifest is not None:
            check_made(manifest, self.config, self.out, self.held_out, self.checkpoint)
        return manifest

    def tokenizer(self) -> Any:
        """The tokenizer if the job has a calibration, else None. Reads passages: one, of a source on the network.

        Raises InputError for a source that is unknown, out of reach or too short, or holds one of `held_out`.
        """
        calibration = self.config.calibration
        if calibration is None:
            return None
        tokenizer = load_tokenizer(self.checkpoint.directory)
        if is_local(calibration.source, self.sources):
            found = sequences.take_passages(calibration, self.config.seed, self.sources)
            sequences.check_passages(found, self.held_out)
        else:
            next(passages.iterate(calibration, 0, self.sources), None)
        return tokenizer

    def calibrate(self, tokenizer: Any) -> Calibration | None:
        """The text that the job sees, as `tokenizer` encodes it; None for a job without one. Raises InputError."""
        if self.config.calibration is None:
            return None
        return sequences.load(self.config.calibration, tokenizer, self.config.seed, self.sources, self.held_out)


def check_made(
    manifest: Manifest, config: Settings, out: Path, held_out: Mapping[str, str], source: Checkpoint | None = None
) -> None:
    """Raises InputError unless a job with these settings has made `out`, and its files are there.

    `source`: the checkpoint that it must have been made from.
    """
    differing = _difference(manifest, config, source)
    if differing is not None:
        raise InputError(f"out: {out} holds another job's checkpoint ({differing})")
    missing = [name for name in manifest.files if not (out / name).is_file()]
    if missing:
        raise InputError(f"{out / missing[0]}: the manifest lists this file, but it is missing; remove {out}")
    if manifest.calibration is not None:
        manifest.calibration.check_disjoint(held_out)
    Checkpoint(out)  # no shard is truncated


def _difference(manifest: Manifest, config: Settings, source: Checkpoint | None) -> str | None:
    """The first difference between a job and the one that the manifest describes."""
    mine = config.model_dump(mode="json")
    for name in {**mine, **manifest.config}:  # a field at its default may be absent
        there, here = manifest.config.get(name), mine.get(name)
        if name not in _NOT_IDENTITY and here != there:
            return f"field {name} is {json.dumps(there)[:_QUOTED]} there, {json.dumps(here)[:_QUOTED]} here"
    if source is not None and manifest.source_files != export.source_files(source, digest_once):
        return "field source differs"
    if manifest.calibration is not None and config.calibration is not None:
        files = config.calibration.files
        if manifest.calibration.files != {name: digest_of_file(path) for name, path in files if path.is_file()}:
            return "field calibration differs: its files have changed"
    return None
