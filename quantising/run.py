"""One quantisation: a checkpoint and a configuration in, a quantised checkpoint out."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from evaluator.checkpoints.info import MANIFEST as PRUNE_MANIFEST
from evaluator.checkpoints.quantisation import QUANTISE_MANIFEST
from evaluator.checkpoints.tensors import INDEX
from pruning.calibration.passages import PassageSource
from pruning.digests import digest_of_file
from pruning.output import export, owner
from quantising.config import QuantiseConfig
from quantising.errors import QuantiseError
from quantising.job import Job, check_made
from quantising.manifest import QuantiseManifest, read_manifest

_WEIGHTS = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".msgpack", ".h5")  # nothing reads these here


def check(
    config: QuantiseConfig,
    out: Path,
    *,
    sources: Mapping[str, PassageSource] | None = None,
    held_out: Mapping[str, str] | None = None,
    source_to_come: bool = False,
) -> None:
    """Look for every bad input that shows before heavy work. Raises InputError; writes nothing.

    `source_to_come`: `config.source` stands for a checkpoint that is not there yet, and has the same architecture.
    """
    made = read_manifest(out)
    if made is not None and source_to_come:
        check_made(made, config, out, held_out or {})
        return
    job = Job(config, out, sources or {}, held_out or {})
    if made is None or job.finished() is None:
        job.check()


def quantise(
    config: QuantiseConfig,
    out: Path,
    *,
    sources: Mapping[str, PassageSource] | None = None,
    held_out: Mapping[str, str] | None = None,
    provenance: Mapping[str, object] | None = None,
) -> QuantiseManifest:
    """Quantise `config.source` into `out`, which is complete afterwards, or absent if anything fails.

    The arguments are those of `pruning.run.prune`. Raises InputError for what the user can mend and QuantiseError for a
    job that failed.
    """
    started = time.perf_counter()
    job = Job(config, out, sources or {}, held_out or {})
    finished = job.finished()
    if finished is not None:
        return finished
    job.check()
    job.method.check_here()  # another machine than the one that the run was checked on may have to install something
    job.checkpoint.check_finite()
    with export.open_export(job.checkpoint, out) as target:
        calibration = job.calibrate()
        sequences = () if calibration is None else calibration.sequences
        versions = job.method.write(job.checkpoint, target.partial, config.wanted, sequences)
        _check_weights(target.partial)
        _add_companions(job, target.partial)
        manifest = QuantiseManifest(
            method=config.method,
            scheme=config.scheme,
            config=config.model_dump(mode="json"),
            source_files=export.source_files(job.checkpoint),
            calibration=None if calibration is None else calibration.manifest,
            versions=versions,
            provenance=dict(provenance or {}),
            seconds=round(time.perf_counter() - started, 3),
            files=_digests(target.partial),
        )
        (target.partial / QUANTISE_MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        target.appear()
    return manifest


def _check_weights(folder: Path) -> None:
    """Raises QuantiseError where weights are not safetensors only."""
    others = [file.name for file in sorted(folder.rglob("*")) if file.suffix in _WEIGHTS]
    if others or not any(folder.glob("*.safetensors")):
        raise QuantiseError(f"weights were written as {others[0] if others else 'nothing'}, not as safetensors")


def _add_companions(job: Job, folder: Path) -> None:
    """Tokenizer, licence and how the source was pruned, byte for byte as they are there."""
    source = job.checkpoint.directory
    for name in (*export.companions(job.checkpoint), PRUNE_MANIFEST):
        if (source / name).is_file() and name != INDEX:  # the shards have an index of their own
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, folder / name)


def _digests(folder: Path) -> dict[str, str]:
    """sha256 of what was written; a link's file is the source's."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.is_symlink()]
    return {str(file.relative_to(folder)): digest_of_file(file) for file in files if file.name != owner.OWNER}
