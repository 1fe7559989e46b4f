"""One pruning job before anything heavy starts: is it done already, and could it be done?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.errors import InputError
from pruning.calibration import sequences
from pruning.calibration.passages import PassageSource, is_local
from pruning.config import PruneConfig
from pruning.digests import digest_of_file, digest_once
from pruning.methods.masks import check_divides
from pruning.model.checkpoint import Checkpoint
from pruning.model.decoder import Decoder
from pruning.output import export
from pruning.output.manifest import PruneManifest, read_manifest
from pruning.structured.choose import check

# Where a job runs and where its input lies do not change what it makes; digests say whether the input is the same.
_NOT_IDENTITY = {"source", "device"}
_QUOTED = 80  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class Job:
    """A configuration, the checkpoint that it names, and what the caller knows of texts."""

    config: PruneConfig
    out: Path
    sources: Mapping[str, PassageSource]  # named passages that calibration may take
    held_out: Mapping[str, str]  # digests of texts that no passage may be (see `check_disjoint`), each with what it is
    checkpoint: Checkpoint = field(init=False)

    def __post_init__(self) -> None:
        """Raises InputError for a checkpoint that cannot be read."""
        object.__setattr__(self, "checkpoint", Checkpoint(self.config.source))

    def finished(self) -> PruneManifest | None:
        """The manifest of `out` if this very job has made it; None if nothing is there.

        Raises InputError if it is another job's, or damaged, or saw a text that is held out.
        """
        manifest = read_manifest(self.out)
        if manifest is None:
            return None
        differing = self._difference(manifest)
        if differing is not None:
            raise InputError(f"out: {self.out} holds another pruning's checkpoint ({differing})")
        missing = [name for name in manifest.files if not (self.out / name).is_file()]
        if missing:
            raise InputError(
                f"{self.out / missing[0]}: the manifest lists this file, and it is gone; remove {self.out}"
            )
        if manifest.calibration is not None:
            manifest.calibration.check_disjoint(self.held_out)
        Checkpoint(self.out)  # no shard is truncated
        return manifest

    def _difference(self, manifest: PruneManifest) -> str | None:
        """In which field, first, this job differs from the one that the manifest describes, and how."""
        mine = self.config.model_dump(mode="json")
        for name in PruneConfig.model_fields:  # what is at its default may be unsaid
            there, here = manifest.config.get(name), mine.get(name)
            if name not in _NOT_IDENTITY and here != there:
                return f"field {name} is {json.dumps(there)[:_QUOTED]} there, {json.dumps(here)[:_QUOTED]} here"
        if manifest.source_files != export.source_files(self.checkpoint, digest_once):
            return "field source differs"
        if manifest.calibration is not None and self.config.calibration is not None:
            files = self.config.calibration.files
            if manifest.calibration.files != {name: digest_of_file(path) for name, path in files if path.is_file()}:
                return "field calibration differs: its files have changed"
        return None

    @property
    def reads_network(self) -> bool:
        """Whether the calibration passages have to be fetched."""
        calibration = self.config.calibration
        return calibration is not None and not is_local(calibration.source, self.sources)

    def decoder(self) -> Decoder:
        """The model without its weights. Raises InputError."""
        return Decoder(self.checkpoint, _device(self.config.device))

    def check(self) -> tuple[Decoder, Any]:
        """The decoder, and the tokenizer if the job has a calibration. Raises InputError; no weights are read."""
        decoder = self.decoder()
        if self.config.removes:
            check(decoder, self.config.removed)
        else:
            check_divides(decoder.matrices(), self.config.weights_pattern)
        export.check_place(self.checkpoint, self.out)
        if self.config.calibration is None:
            return decoder, None
        tokenizer = load_tokenizer(self.checkpoint.directory)
        if not self.reads_network:
            found = sequences.take_passages(self.config.calibration, self.config.seed, self.sources)
            sequences.check_passages(found, self.held_out)
        return decoder, tokenizer


def _device(name: str) -> torch.device:
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if available else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (not available or (device.index or 0) >= torch.cuda.device_count()):
        raise InputError(f"device: {name!r} is not on this machine")
    return device
