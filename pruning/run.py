"""One pruning job: a dense checkpoint and a configuration in, a sparse or a smaller checkpoint out."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evaluator.checkpoints.shapes import text_model
from evaluator.core.errors import InputError
from pruning.calibration.passages import PassageSource
from pruning.calibration.sequences import Calibration
from pruning.config import PruneConfig, needs_calibration
from pruning.layers.flow import Activations, Flow
from pruning.layers.sequential import leave_dense, outlier_shares, owl, prune_layers
from pruning.methods.masks import check_divides
from pruning.model import memory
from pruning.model.decoder import Decoder
from pruning.model.packing import batches
from pruning.output import export
from pruning.output.job import Job
from pruning.output.manifest import MANIFEST_NAME, MatrixRecord, PruneManifest, RemovedParts, read_manifest
from pruning.patterns import NofM, Pattern, Share, written
from pruning.structured.choose import check as check_removal
from pruning.structured.choose import choose
from pruning.structured.cut import Cut, first_cut, slices, weights_left
from pruning.structured.write import check_built, mended, write

_BATCH_TOKENS_CUDA = 16_384  # enough for full-speed products
# On a CPU: few enough that a layer's widest activation stays in the cache between one operation and the next.
_CACHED_ELEMENTS = 1_800_000
_BATCH_TOKENS_CPU = (512, 4096)  # at least, at most
_ACTIVATION_BYTES = 4 << 30  # activations beyond this go to disk


def check(
    config: PruneConfig,
    out: Path,
    *,
    sources: Mapping[str, PassageSource] | None = None,
    held_out: Mapping[str, str] | None = None,
) -> None:
    """Look for every bad input that shows before heavy work. Raises InputError; writes nothing.

    It reads the configuration, headers, the tokenizer, and calibration passages (one, of a source on the network).
    `prune` itself searches weights for NaN, and the passages of a source on the network for those in `held_out`.
    """
    job = Job(config, out, sources or {}, held_out or {})
    if job.finished(read_manifest) is None:
        _check(job)


def _check(job: Job[PruneConfig]) -> tuple[Decoder, Any]:
    """The decoder, and the tokenizer if the job has a calibration. Raises InputError; no weights are read."""
    decoder = _decoder(job)
    if job.config.removes:
        check_removal(decoder, job.config.removed)
    else:
        check_divides(decoder.matrices(), job.config.weights_pattern)
    export.check_place(job.checkpoint, job.out)
    return decoder, job.tokenizer()


def _decoder(job: Job[PruneConfig]) -> Decoder:
    """The model without its weights, on the job's device. Raises InputError."""
    name, available = job.config.device, torch.cuda.is_available()
    device = torch.device(("cuda" if available else "cpu") if name == "auto" else name)
    if device.type == "cuda" and (not available or (device.index or 0) >= torch.cuda.device_count()):
        raise InputError(f"device: {name!r} is not on this machine")
    return Decoder(job.checkpoint, device)


def settings_after(config: PruneConfig) -> dict[str, Any]:
    """The whole configuration of the model that remains when a job takes parts out. Raises InputError."""
    decoder = _decoder(Job(config, Path(), {}, {}))
    settings = mended(decoder, first_cut(decoder, config.removed))
    return {**decoder.config.to_dict(), **text_model(settings)}


def prune(
    config: PruneConfig,
    out: Path,
    *,
    sources: Mapping[str, PassageSource] | None = None,
    held_out: Mapping[str, str] | None = None,
    provenance: Mapping[str, object] | None = None,
    progress: Callable[[int, int], None] | None = None,
    activation_bytes: int = _ACTIVATION_BYTES,
) -> PruneManifest:
    """Prune `config.source` into `out`, which is complete afterwards, or absent if anything fails.

    `sources` are named passages that calibration may take; `held_out` are the digests of texts that no passage may
    be, each with what it is; `provenance` goes into the manifest; `progress` is called with (layers
    done, layers); activations beyond `activation_bytes` go to disk. An `out` that the same job has already finished is
    returned at once. Raises InputError for bad input and JobError for a job that failed.
    """
    started = time.perf_counter()
    job = Job(config, out, sources or {}, held_out or {})
    finished = job.finished(read_manifest)
    if finished is not None:
        return finished
    decoder, tokenizer = _check(job)
    job.checkpoint.check_finite()
    memory.reset_peak(decoder.device)
    with export.open_export(job.checkpoint, out) as target, _full_precision(), memory.kept_when_freed():
        looks = needs_calibration(config.method, config.allocation, config.repair)
        calibration = job.calibrate(tokenizer) if looks else None
        report = progress or (lambda done, total: None)
        if not config.removes:
            target.copy_weights()
        with _flow(decoder, calibration, target.partial, activation_bytes) as flow:
            if config.removes:
                outcome = _take_out(choose(config, decoder, flow, report), config, decoder, target.partial)
            else:
                outcome = _set_to_zero(config, decoder, flow, target, report)
        result = _Result(
            job=job,
            decoder=decoder,
            calibration=calibration,
            outcome=outcome,
            provenance=provenance or {},
            started=started,
        )
        if config.removes:
            return target.finish_apart(MANIFEST_NAME, result.manifest)
        return target.finish(result.manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """The change of the weights."""

    sparsity: float  # requested, of the whole model
    of_layers: tuple[float, ...]  # requested, of each layer of the dense model
    measured: float
    matrices: tuple[MatrixRecord, ...] = ()
    removed: RemovedParts | None = None


def _set_to_zero(
    config: PruneConfig,
    decoder: Decoder,
    flow: Flow | None,
    target: export.Export,
    report: Callable[[int, int], None],
) -> _Outcome:
    patterns = _patterns(config, decoder, flow)
    if config.weights_pattern.ratio == 0:
        pruned = leave_dense(decoder)
    else:
        pruned = prune_layers(config, decoder, patterns, flow, target.write, report)
    by_name = {each.name: each for each in pruned}
    matrices = tuple(by_name[name] for name in decoder.matrices())
    return _Outcome(
        sparsity=config.weights_pattern.ratio,
        of_layers=tuple(pattern.ratio for pattern in patterns),
        measured=sum(m.zeros for m in matrices) / sum(m.rows * m.columns for m in matrices),
        matrices=matrices,
    )


def _take_out(cut: Cut, config: PruneConfig, decoder: Decoder, folder: Path) -> _Outcome:
    kept = slices(decoder, cut)
    check_built(decoder, cut, kept)
    write(decoder.checkpoint, kept, mended(decoder, cut), folder)
    removed, gone = config.removed, cut.gone[0]
    sparsity = removed.ratio if isinstance(removed, Share) else len(gone) / cut.of
    of_layers = [sparsity] * len(decoder)
    if cut.unit == "layers":
        of_layers = [float(layer in gone) for layer in range(cut.of)]
    return _Outcome(
        sparsity=sparsity,
        of_layers=tuple(of_layers),
        measured=1 - weights_left(decoder, kept),
        removed=RemovedParts(unit=cut.unit, of=cut.of, gone=tuple(map(written, cut.gone)), distances=cut.distances),
    )


@contextmanager
def _flow(decoder: Decoder, calibration: Calibration | None, folder: Path, limit: int) -> Iterator[Flow | None]:
    """The calibration text, ready to enter the decoder; None without one."""
    if calibration is None:
        yield None
        return
    decoder.open_skeleton(torch.tensor([token for ids in calibration.sequences for token in ids]))
    made = batches(calibration.sequences, _batch_tokens(decoder))
    with Activations(made, decoder.config.hidden_size, decoder.dtype, decoder.device, limit, folder) as held:
        yield Flow(decoder, made, held)


def _batch_tokens(decoder: Decoder) -> int:
    """How many tokens go through a layer at once; 1: one sequence at a time."""
    if decoder.recurrent:
        return 1
    if decoder.device.type == "cuda":
        return _BATCH_TOKENS_CUDA
    least, most = _BATCH_TOKENS_CPU
    widest = max(linear.out_features for linear in decoder.linears(0).values())
    return min(most, max(least, _CACHED_ELEMENTS // widest))


def _patterns(config: PruneConfig, decoder: Decoder, flow: Flow | None) -> list[Pattern]:
    """One pattern for each layer."""
    pattern = config.weights_pattern
    if isinstance(pattern, NofM) or config.allocation == "uniform" or pattern.ratio == 0:
        return [pattern] * len(decoder)
    assert flow is not None  # a job with this allocation has a calibration
    return list[Pattern](owl(outlier_shares(decoder, flow), pattern.ratio))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """Everything that the manifest says but for the digests of files."""

    job: Job[PruneConfig]
    decoder: Decoder
    calibration: Calibration | None
    outcome: _Outcome
    provenance: Mapping[str, object]
    started: float  # by time.perf_counter

    def manifest(self, files: dict[str, str], source_files: dict[str, str]) -> PruneManifest:
        """`files` and `source_files`: sha256 of the written files and of their source."""
        config, checkpoint, device = self.job.config, self.job.checkpoint, self.decoder.device
        outcome, first = self.outcome, next(iter(self.decoder.matrices()))
        return PruneManifest(
            method=config.method,
            pattern=config.pattern,
            sparsity=outcome.sparsity,
            measured_sparsity=outcome.measured,
            allocation=config.allocation,
            repair=None if config.repair == "none" else config.repair,
            layer_sparsity=outcome.of_layers,
            config=config.model_dump(mode="json"),
            source_files=source_files,
            matrices=outcome.matrices,
            removed=outcome.removed,
            calibration=None if self.calibration is None else self.calibration.manifest,
            versions=_versions(),
            provenance=dict(self.provenance),
            seed=config.seed,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            dtype=checkpoint.entry(first).dtype,
            compute_dtype=str(self.decoder.dtype).removeprefix("torch."),
            seconds=round(time.perf_counter() - self.started, 3),
            peak_memory_bytes=memory.peak(device),
            files=files,
        )


def _versions() -> dict[str, str]:
    import tokenizers
    import transformers

    found = {module.__name__: str(module.__version__) for module in (torch, transformers, tokenizers, np)}
    found["python"] = platform.python_version()
    with suppress(importlib.metadata.PackageNotFoundError):  # run from a source tree
        found["resurface"] = importlib.metadata.version("resurface")
    return found


@contextmanager
def _full_precision() -> Iterator[None]:
    """float32 products in float32, not TF32, whatever the caller set."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
