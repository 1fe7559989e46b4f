"""One quantisation: a checkpoint and a configuration in, a quantised checkpoint out."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluator.checkpoints.fit import check_fit
from evaluator.checkpoints.manifests import JobManifest, PruneManifest, read_manifest
from evaluator.checkpoints.tensors import FLOATS, read_header
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
    kind = METHODS[config.method].manifest
    made = read_manifest(out, kind)
    if made is not None and source_to_come:
        check_made(made, config, out, held_out)
        return
    job = Job(config, out, sources, held_out)
    if job.finished(kind) is None:
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


def _check_scales(folder: Path) -> None:
    """Raises JobError for a scale that its dtype rounded to 0."""
    for file in folder.glob("*.safetensors"):
        for tensor in read_header(file):
            is_scale = tensor.name.endswith("weight_scale") and tensor.dtype in FLOATS
            if is_scale and not bool(tensor.read().all()):
                raise JobError(
                    f"tensor {tensor.name}: {tensor.dtype} rounded scales to 0; convert"
                    " the checkpoint to bfloat16 or float32"
                )


def quantise(
    config: QuantiseConfig,
    out: Path,
    *,
    sources: Sources = NOTHING,
    held_out: Mapping[str, str] = NOTHING,
    provenance: Mapping[str, object] = NOTHING,
) -> JobManifest:
    """As `pruning.run.prune`: `out` is complete afterwards or absent. Raises
    InputError, or JobError if it failed."""
    started = time.perf_counter()
    job = Job(config, out, sources, held_out)
    method = METHODS[config.method]
    finished = job.finished(method.manifest)
    if finished is not None:
        return finished
    tokenizer = _check(job)
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
        _check_scales(target.partial)
        outcome = method.outcome(job.checkpoint, target.partial, config)
        return target.finish(
            lambda **files: method.manifest(
                method=config.method,
                config=config.model_dump(mode="json"),
                calibration=None if calibration is None else calibration.manifest,
                versions=versions,
                provenance=dict(provenance),
                seconds=round(time.perf_counter() - started, 3),
                **outcome,
                **files,
            ),
            more=[PruneManifest.FILE],
        )
