"""One quantisation: a checkpoint and a configuration in, a quantised checkpoint out."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.fit import check_fit
from evaluator.checkpoints.manifests import (
    PruneManifest,
    QuantiseManifest,
    read_manifest,
)
from evaluator.checkpoints.sparsity import measure
from evaluator.core.errors import InputError, JobError
from pruning.calibration import Sources
from pruning.output import export
from pruning.output.job import NOTHING, Job, check_made
from quantising.config import QuantiseConfig
from quantising.methods import METHODS


def check(
    config: QuantiseConfig,
    out: Path,
    *,
    sources: Sources = NOTHING,
    held_out: Mapping[str, str] = NOTHING,
    source_to_come: bool = False,
) -> None:
    """Look for bad input before heavy work. Raises InputError; writes nothing.
    `source_to_come`: it is a stand-in."""
    made = read_manifest(out, QuantiseManifest)
    if made is not None and source_to_come:
        check_made(made, config, out, held_out)
        return
    job = Job(config, out, sources, held_out)
    if job.finished(QuantiseManifest) is None:
        _check(job)


def _check(job: Job[QuantiseConfig]) -> Any:
    """The tokenizer if the job has a calibration. Raises InputError; no weights are
    read."""
    METHODS[job.config.method].check(job.checkpoint, job.config)
    # llm-compressor would make up the table
    for table, head in check_fit(job.checkpoint).head_only.items():
        raise InputError(
            f"{job.config.source}: tensor {table!r} is stored as {head!r} alone:"
            " rename it"
        )
    export.check_place(job.checkpoint, job.out)
    return job.tokenizer()


def quantise(
    config: QuantiseConfig,
    out: Path,
    *,
    sources: Sources = NOTHING,
    held_out: Mapping[str, str] = NOTHING,
    provenance: Mapping[str, object] = NOTHING,
) -> QuantiseManifest:
    """As `pruning.run.prune`: `out` is complete afterwards or absent. Raises
    InputError, or JobError if it failed."""
    started = time.perf_counter()
    job = Job(config, out, sources, held_out)
    finished = job.finished(QuantiseManifest)
    if finished is not None:
        return finished
    tokenizer, method = _check(job), METHODS[config.method]
    # another machine than the one that the run was checked on may have to install
    # something
    method.check_here()
    job.checkpoint.prove()
    with export.open_export(job.checkpoint, out) as target:
        calibration = job.calibrate(tokenizer)
        sequences = () if calibration is None else calibration.sequences
        versions = method.write(job.checkpoint, target.partial, config, sequences)
        if not any(target.partial.glob("*.safetensors")):
            raise JobError("no weights were written as safetensors")
        share, pattern = _sparsity(job.checkpoint, target.partial) or (None, None)
        return target.finish(
            lambda **files: QuantiseManifest(
                method=config.method,
                scheme=config.scheme,
                pattern=pattern,
                measured_sparsity=share,
                config=config.model_dump(mode="json"),
                calibration=None if calibration is None else calibration.manifest,
                versions=versions,
                provenance=dict(provenance),
                seconds=round(time.perf_counter() - started, 3),
                **files,
            ),
            more=[PruneManifest.FILE],
        )


def _sparsity(source: Checkpoint, folder: Path) -> tuple[float, str] | None:
    """Of the matrices that were pruned in `source`, as they are in `folder`; None:
    none were, or it cannot be said."""
    pruned = source.pruned
    if pruned is None:
        return None
    if pruned.removed is not None:  # the parts stay gone
        return pruned.measured_sparsity, pruned.pattern
    names = [matrix.name for matrix in pruned.matrices]
    return measure(Checkpoint(folder).tensors.values(), names, pruned.pattern)
