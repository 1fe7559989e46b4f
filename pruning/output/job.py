"""One job before anything heavy starts, and its text: pruning and quantising share
this."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.manifests import JobManifest, read_manifest
from evaluator.checkpoints.tokenizer import eos_ids_of, load_tokenizer
from evaluator.core.document import differences
from evaluator.core.errors import InputError
from pruning.calibration import (
    Calibration,
    Sources,
    check_disjoint,
    digests_of,
    iterate,
    load,
    take_passages,
)
from pruning.config import JobConfig
from pruning.output import export

# Where a job runs and where its input lies do not change its result; digests tell
# whether the input is the same.
_NOT_IDENTITY = {"source", "device"}

NOTHING: Mapping[str, Any] = MappingProxyType({})  # the default of a mapping

ConfigT = TypeVar("ConfigT", bound=JobConfig)
ManifestT = TypeVar("ManifestT", bound=JobManifest)


@dataclass(eq=False)
class Job(Generic[ConfigT]):
    """A configuration, the checkpoint that it names, and the caller's texts. Raises
    InputError."""

    config: ConfigT
    out: Path
    sources: Sources  # named passages
    held_out: Mapping[str, str]  # digests of texts that no passage may be, with names

    def __post_init__(self) -> None:
        self.checkpoint = Checkpoint(self.config.source)
        self.checkpoint.check_directory()

    def finished(self, kind: type[ManifestT]) -> ManifestT | None:
        """`out`'s manifest, or None. Raises InputError if another job's, damaged, or
        made with a text now held out."""
        manifest = read_manifest(self.out, kind)
        if manifest is not None:
            check_made(manifest, self.config, self.out, self.held_out, self.checkpoint)
        return manifest

    def tokenizer(self) -> Any:
        """The tokenizer; None if there is none, and no calibration. Reads one passage
        of a remote source.

        Raises InputError for a bad source of calibration, a bad tokenizer and bad ids
        that end an answer.
        """
        calibration, directory = self.config.calibration, self.checkpoint.path
        if calibration is None and not any(directory.glob("tokenizer*")):
            return None
        tokenizer = load_tokenizer(directory)
        eos_ids_of(tokenizer)
        if calibration is None:
            return tokenizer
        source = calibration.source
        # no network
        if source in self.sources or source.partition(":")[0] in ("text", "jsonl"):
            check_disjoint(
                take_passages(calibration, self.config.seed, self.sources),
                self.held_out,
            )
        else:
            next(iterate(calibration, 0, self.sources), None)
        return tokenizer

    def calibrate(self, tokenizer: Any) -> Calibration | None:
        """The text that the job sees, as `tokenizer` encodes it; None for a job
        without one. Raises InputError."""
        if self.config.calibration is None:
            return None
        return load(
            self.config.calibration,
            tokenizer,
            self.config.seed,
            self.sources,
            self.held_out,
        )


def check_made(
    manifest: JobManifest,
    config: JobConfig,
    out: Path,
    held_out: Mapping[str, str],
    source: Checkpoint | None = None,
) -> None:
    """Raises InputError unless such a job has made `out`, from `source` if given,
    and its files are there."""
    differing = None
    if source is not None and manifest.source_files != export.source_files(source):
        differing = "field source differs"
    text, wanted = manifest.calibration, config.calibration
    if text is not None and wanted is not None and text.files != digests_of(wanted):
        differing = differing or "field calibration differs: its files have changed"
    both = manifest.config, config.model_dump(mode="json")
    there, here = (
        {k: v for k, v in each.items() if k not in _NOT_IDENTITY} for each in both
    )
    for told in differences(there, here):  # a field at its default may be absent
        differing = f"field {told}"
        break
    if differing is not None:
        raise InputError(
            f"out: {out} holds another job's checkpoint ({differing}); remove it, and"
            " the same command makes this one"
        )
    missing = [name for name in manifest.files if not (out / name).is_file()]
    if missing:
        raise InputError(
            f"{out / missing[0]}: the manifest lists this file, but it is missing;"
            f" remove {out}"
        )
    if manifest.calibration is not None:
        check_disjoint(manifest.calibration.passages, held_out)
    made = Checkpoint(out)
    made.check_directory()
    _ = made.tensors  # no shard is truncated
