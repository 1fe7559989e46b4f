"""One quantisation before anything heavy starts: is it done already, and could it be done?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.errors import InputError
from pruning.calibration import sequences
from pruning.calibration.passages import PassageSource, is_local
from pruning.calibration.sequences import Calibration
from pruning.digests import digest_of_file, digest_once
from pruning.model.checkpoint import Checkpoint
from pruning.output import export
from quantising.config import QuantiseConfig
from quantising.manifest import QuantiseManifest, read_manifest
from quantising.methods import METHODS
from quantising.methods.base import Method


@dataclass(frozen=True, slots=True)
class Job:
    """A configuration, the checkpoint that it names, and what the caller knows of texts."""

    config: QuantiseConfig
    out: Path
    sources: Mapping[str, PassageSource]  # named passages that calibration may take
    held_out: Mapping[str, str]  # digests of texts that no passage may be, each with what it is
    checkpoint: Checkpoint = field(init=False)

    def __post_init__(self) -> None:
        """Raises InputError for a checkpoint that cannot be read."""
        object.__setattr__(self, "checkpoint", Checkpoint(self.config.source))

    @property
    def method(self) -> Method:
        return METHODS[self.config.method]

    def finished(self) -> QuantiseManifest | None:
        """The manifest of `out` if this very job has made it; None if nothing is there.

        Raises InputError if it is another job's, or damaged, or saw a text that is held out.
        """
        manifest = read_manifest(self.out)
        if manifest is None:
            return None
        check_made(manifest, self.config, self.out, self.held_out)
        if manifest.source_files != export.source_files(self.checkpoint, digest_once):
            raise _anothers(self.out, "source")
        return manifest

    def check(self) -> None:
        """Raises InputError for what cannot be done; no weights are read."""
        self.method.check(self.checkpoint, self.config.wanted)
        export.check_place(self.checkpoint, self.out)
        calibration = self.config.calibration
        if calibration is None:
            return
        if is_local(calibration.source, self.sources):
            found = sequences.take_passages(calibration, self.config.seed, self.sources)
            sequences.check_passages(found, self.held_out)
        else:
            sequences.check_source(calibration, self.sources)

    def calibrate(self) -> Calibration | None:
        """The text that the method looks at."""
        if self.config.calibration is None:
            return None
        tokenizer = load_tokenizer(self.checkpoint.directory)
        return sequences.load(self.config.calibration, tokenizer, self.config.seed, self.sources, self.held_out)


def check_made(manifest: QuantiseManifest, config: QuantiseConfig, out: Path, held_out: Mapping[str, str]) -> None:
    """Raises InputError unless a manifest is that of a job with these settings, and its files are there."""
    mine = config.model_dump(mode="json", exclude={"source"})
    differing = next((name for name in mine if mine[name] != manifest.config.get(name)), None)
    if differing is not None:
        raise _anothers(out, differing)
    missing = [name for name in manifest.files if not (out / name).is_file()]
    if missing:
        raise InputError(f"{out / missing[0]}: the manifest lists this file, and it is gone; remove {out}")
    if manifest.calibration is not None:
        manifest.calibration.check_disjoint(held_out)
        files = [] if config.calibration is None else config.calibration.files
        if manifest.calibration.files != {name: digest_of_file(path) for name, path in files if path.is_file()}:
            raise _anothers(out, "calibration")
    Checkpoint(out)  # no shard is truncated


def _anothers(out: Path, field: str) -> InputError:
    return InputError(f"out: {out} holds another quantisation's checkpoint (field {field} differs)")
