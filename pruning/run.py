"""One pruning job: a dense checkpoint and a configuration in, a sparse or a smaller
checkpoint out."""

import importlib.metadata
import math
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evaluator.checkpoints.fit import check_fit
from evaluator.checkpoints.manifests import PruneManifest, RemovedParts
from evaluator.core.errors import InputError, Json
from evaluator.core.memory import rare_collections
from pruning.calibration import Calibration, Sources
from pruning.config import PruneConfig, needs_calibration
from pruning.layers.flow import Flow
from pruning.layers.sequential import (
    LayerPruner,
    Writer,
    leave_dense,
    outlier_shares,
    owl,
)
from pruning.methods.patterns import NofM, Pattern, Share, format_ranges
from pruning.model import memory
from pruning.model.decoder import Decoder, Progress, silent
from pruning.model.packing import batches
from pruning.output import export
from pruning.output.job import NOTHING, Job
from pruning.structured.cut import Cut, choose, first_cut, slices
from pruning.structured.write import check_built, mended, write

_BATCH_TOKENS_CUDA = 16_384  # enough for full-speed products
# On a CPU: few enough that a layer's widest activation stays in the cache between one
# operation and the next.
_CACHED_ELEMENTS = 1_800_000
_BATCH_TOKENS_CPU = (512, 4096)  # at least, at most
_ACTIVATION_BYTES = 4 << 30  # activations beyond this go to disk


def check(
    config: PruneConfig,
    out: Path,
    *,
    sources: Sources = NOTHING,
    held_out: Mapping[str, str] = NOTHING,
) -> None:
    """Look for every bad input that shows before heavy work. Raises InputError; writes
    nothing.

    It reads the configuration, headers, the tokenizer, and calibration passages (one,
    of a source on the network). `prune` itself searches weights for NaN, and passages
    on the network for those in `held_out`.
    """
    job = Job(config, out, sources, held_out)
    if job.finished(PruneManifest) is None:
        _check(job)


def _check(job: Job[PruneConfig]) -> tuple[Decoder, Any]:
    """The decoder, and the tokenizer if the job has a calibration. Raises
    InputError; no weights are read."""
    decoder = _decoder(job)
    if job.config.removes:
        cut = first_cut(decoder, job.config.removed)
        check_built(decoder, cut, slices(decoder, cut))
    else:
        pattern = job.config.weights_pattern
        for name, (_, columns) in decoder.matrices().items():
            if isinstance(pattern, NofM) and columns % pattern.m:
                raise InputError(
                    f"pattern: {pattern.n}:{pattern.m} does not divide the"
                    f" {columns} columns of matrix {name}"
                )
    check_fit(job.checkpoint)
    export.check_place(job.checkpoint, job.out)
    return decoder, job.tokenizer()


def _decoder(job: Job[PruneConfig]) -> Decoder:
    """The model without its weights, on the job's device. Raises InputError."""
    name, cards = job.config.device, torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if cards else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= cards:
        raise InputError(f"device: {name!r} is not on this machine")
    return Decoder(job.checkpoint, device)


def prune(
    config: PruneConfig,
    out: Path,
    *,
    sources: Sources = NOTHING,
    held_out: Mapping[str, str] = NOTHING,
    provenance: Mapping[str, object] = NOTHING,
    progress: Progress = silent,
) -> PruneManifest:
    """Prune `config.source` into `out`, which is complete afterwards, or absent if
    anything fails.

    `sources`: named passages that calibration may take; `held_out`: digests of texts
    that no passage may be, each with what it is; `provenance` goes into the manifest;
    `progress` gets (layers done, layers). An `out` that the same job has finished is
    returned at once. Raises InputError, and JobError for a job that failed.
    """
    started = time.perf_counter()
    job = Job(config, out, sources, held_out)
    finished = job.finished(PruneManifest)
    if finished is not None:
        return finished
    with rare_collections():  # imports
        decoder, tokenizer = _check(job)
    job.checkpoint.prove()
    memory.reset_peak(decoder.device)
    with (
        export.open_export(job.checkpoint, out) as target,
        _full_precision(),
        torch.no_grad(),
        memory.kept_when_freed(),
    ):
        looks = needs_calibration(config.method, config.allocation)
        calibration = job.calibrate(tokenizer) if looks else None
        with _flow(decoder, calibration, target.partial) as flow:
            if config.removes:
                cut = choose(config, decoder, flow, progress)
                outcome = _take_out(cut, config, decoder, target.partial)
            else:
                target.copy_weights()
                outcome = _set_to_zero(config, decoder, flow, target.write, progress)

        device, first = decoder.device, next(iter(decoder.matrices()))
        name = "cpu"
        if device.type == "cuda":
            name = torch.cuda.get_device_name(device)
        return target.finish(
            lambda **files: PruneManifest(
                method=config.method,
                pattern=config.pattern,
                allocation=config.allocation,
                config=config.model_dump(mode="json"),
                calibration=None if calibration is None else calibration.manifest,
                versions=_versions(),
                provenance=dict(provenance),
                seed=config.seed,
                device=name,
                dtype=job.checkpoint.tensors[first].dtype,
                compute_dtype=str(decoder.dtype).removeprefix("torch."),
                seconds=round(time.perf_counter() - started, 3),
                peak_memory_bytes=memory.peak(device),
                **outcome,
                **files,
            )
        )


def _set_to_zero(
    config: PruneConfig,
    decoder: Decoder,
    flow: Flow | None,
    write: Writer,
    report: Progress,
) -> Json:
    """Prune every layer; returns what the manifest says about the weights."""
    pattern = config.weights_pattern
    patterns: list[Pattern] = [pattern] * len(decoder)  # one for each layer
    if pattern.ratio == 0:
        pruned = leave_dense(decoder)
    else:
        if config.allocation == "owl":
            assert flow is not None  # a job with this allocation has a calibration
            patterns = [*owl(outlier_shares(decoder, flow), pattern.ratio)]
        pruned = LayerPruner(config, decoder, flow, write).run(patterns, report)
    by_name = {record.name: record for record in pruned}
    matrices = tuple(by_name[name] for name in decoder.matrices())
    zeros = sum(matrix.zeros for matrix in matrices)
    weights = sum(matrix.rows * matrix.columns for matrix in matrices)
    return {
        "sparsity": pattern.ratio,
        "layer_sparsity": tuple(pattern.ratio for pattern in patterns),
        "measured_sparsity": zeros / weights,
        "matrices": matrices,
    }


def _take_out(cut: Cut, config: PruneConfig, decoder: Decoder, folder: Path) -> Json:
    """Write what stays; returns what the manifest says about the weights."""
    kept = slices(decoder, cut)
    check_built(decoder, cut, kept)
    write(decoder.checkpoint, kept, mended(decoder, cut), folder)
    weights = left = 0
    for name, shape in decoder.matrices().items():
        weights += math.prod(shape)
        part = kept[name]
        left += 0 if part is None else math.prod(part.shape)
    removed = config.removed
    sparsity = len(cut.gone) / cut.of
    if isinstance(removed, Share):
        sparsity = removed.ratio
    of_layers = [float(layer in cut.gone) for layer in range(cut.of)]
    return {
        "sparsity": sparsity,
        "layer_sparsity": tuple(of_layers),
        "measured_sparsity": 1 - left / weights,
        "matrices": (),
        "removed": RemovedParts(
            unit="layers",
            of=cut.of,
            gone=(format_ranges(cut.gone),),
            distances=cut.distances,
        ),
    }


@contextmanager
def _flow(
    decoder: Decoder, calibration: Calibration | None, folder: Path
) -> Iterator[Flow | None]:
    """The calibration text, ready to enter the decoder; None without one."""
    if calibration is None:
        yield None
        return
    sequences = [torch.tensor(ids) for ids in calibration.sequences]
    decoder.open_skeleton(torch.cat(sequences))
    if decoder.recurrent:
        tokens = 1  # one sequence at a time
    elif decoder.device.type == "cuda":
        tokens = _BATCH_TOKENS_CUDA
    else:
        least, most = _BATCH_TOKENS_CPU
        widest = max(linear.out_features for linear in decoder.linears(0).values())
        tokens = min(most, max(least, _CACHED_ELEMENTS // widest))
    with tempfile.TemporaryFile(dir=folder) as file:
        yield Flow(decoder, batches(sequences, tokens), _ACTIVATION_BYTES, file)


def _versions() -> dict[str, str]:
    import tokenizers
    import transformers

    versions = {"python": platform.python_version()}
    for module in (torch, transformers, tokenizers, np):
        versions[module.__name__] = str(module.__version__)
    with suppress(importlib.metadata.PackageNotFoundError):  # run from a source tree
        versions["resurface"] = importlib.metadata.version("resurface")
    return versions


@contextmanager
def _full_precision() -> Iterator[None]:
    """float32 products in float32, not TF32, whatever the caller set."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
