"""One pruning job: a dense checkpoint and a configuration in, a sparse checkpoint out."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evaluator.errors import InputError
from pruning.calibration import sequences
from pruning.calibration.passages import PassageSource, digest_of_file, files_of, is_local
from pruning.calibration.sequences import Calibration
from pruning.config import PruneConfig
from pruning.layers import allocation, sequential
from pruning.layers.activations import Activations
from pruning.layers.counts import asked, check_counts, check_divides, count_zeros
from pruning.layers.sequential import Outcome
from pruning.model import memory
from pruning.model.batches import Batch, batches
from pruning.model.checkpoint import Checkpoint
from pruning.model.decoder import Decoder
from pruning.output import export
from pruning.output.manifest import MatrixRecord, PruneManifest, read_manifest
from pruning.patterns import NofM, Pattern

_BATCH_TOKENS_CUDA = 16_384  # enough for full-speed products
# On a CPU: few enough that a layer's widest activation stays in the cache between one operation and the next.
_CACHED_ELEMENTS = 1_800_000
_BATCH_TOKENS_CPU = (512, 4096)  # at least, at most
_ACTIVATION_BYTES = 4 << 30  # activations beyond this go to disk
# Where a job runs and where its input lies do not change what it makes; digests say whether the input is the same.
_NOT_IDENTITY = {"source", "device"}


def check(
    config: PruneConfig,
    out: Path,
    *,
    sources: Mapping[str, PassageSource] | None = None,
    held_out: Mapping[str, str] | None = None,
) -> None:
    """Look for every bad input that shows before heavy work. Raises InputError; writes nothing.

    What is read: configuration, headers, tokenizer, and calibration passages (one, of a source on the network). Weights
    are searched for NaN by `prune` itself, and so are the passages of a source on the network for those that
    `held_out` has.
    """
    checkpoint = Checkpoint(config.source)
    if _finished(config, checkpoint, out, held_out or {}):
        return
    _check(config, checkpoint, out, sources or {}, held_out or {})
    if config.calibration is not None and not is_local(config.calibration.source, sources or {}):
        sequences.check_source(config.calibration, sources or {})


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

    `sources` are named passages that calibration may ask for; `held_out` are the digests of texts that no passage may
    be (see `disjoint`), each with what it is; `provenance` goes into the manifest; `progress` is
    called with (layers done, layers). An `out` that the same job has already finished is returned at once. Raises
    InputError for what the user can mend and PruneError for a job that failed.
    """
    started = time.perf_counter()
    checkpoint = Checkpoint(config.source)
    finished = _finished(config, checkpoint, out, held_out or {})
    if finished is not None:
        return finished
    decoder, tokenizer = _check(config, checkpoint, out, sources or {}, held_out or {})
    checkpoint.check_finite()
    memory.reset_peak(decoder.device)
    records: dict[str, int] = {}
    with export.open_export(checkpoint, out) as target, _full_precision(), memory.kept_when_freed():
        texts, batches = _calibrate(config, decoder, tokenizer, sources or {}, held_out or {})
        target.copy_weights()

        def write(name: str, weight_OI: Tensor) -> None:
            records[name] = count_zeros(weight_OI)
            target.write(name, weight_OI)

        with _activations(decoder, batches, target.partial, activation_bytes) as activations:
            patterns = _patterns(config, decoder, batches, activations)
            if config.weights_pattern.ratio == 0:
                outcomes = [Outcome(name, 0) for name in decoder.matrices()]
                records |= {name: count_zeros(checkpoint.read(name)) for name in decoder.matrices()}
            else:
                outcomes = sequential.prune_layers(
                    config, decoder, patterns, batches, activations, write, progress or (lambda done, total: None)
                )
        matrices = _matrices(config, decoder, patterns, outcomes, records)

        def describe(files: dict[str, str], source_files: dict[str, str]) -> PruneManifest:
            return PruneManifest(
                method=config.method,
                pattern=config.pattern,
                sparsity=config.weights_pattern.ratio,
                measured_sparsity=sum(m.zeros for m in matrices) / sum(m.rows * m.columns for m in matrices),
                allocation=config.allocation,
                layer_sparsity=tuple(pattern.ratio for pattern in patterns),
                config=config.model_dump(mode="json"),
                source_files=source_files,
                matrices=matrices,
                calibration=None if texts is None else texts.manifest,
                versions=_versions(),
                provenance=dict(provenance or {}),
                seed=config.seed,
                device=_device_name(decoder.device),
                dtype=checkpoint.entry(matrices[0].name).dtype,
                compute_dtype=str(decoder.dtype).removeprefix("torch."),
                seconds=round(time.perf_counter() - started, 3),
                peak_memory_bytes=memory.peak(decoder.device),
                files=files,
            )

        return target.finish(describe)


def _finished(
    config: PruneConfig, checkpoint: Checkpoint, out: Path, held_out: Mapping[str, str]
) -> PruneManifest | None:
    """The manifest of `out` if this very job has already made it."""
    manifest = read_manifest(out)
    if manifest is None:
        return None
    mine = config.model_dump(mode="json")
    differing = [field for field in mine if field not in _NOT_IDENTITY and mine[field] != manifest.config.get(field)]
    if not differing and manifest.source_files != export.source_files(checkpoint):
        differing = ["source"]
    if not differing and manifest.calibration is not None and config.calibration is not None:
        files = {str(file): digest_of_file(file) for file in files_of(config.calibration.source) if file.is_file()}
        differing = [] if files == manifest.calibration.files else ["calibration"]
    if differing:
        raise InputError(f"out: {out} holds another pruning's checkpoint (field {differing[0]} differs)")
    missing = [name for name in manifest.files if not (out / name).is_file()]
    if missing:
        raise InputError(f"{out / missing[0]}: the manifest lists this file, and it is gone; remove {out}")
    if manifest.calibration is not None:
        manifest.calibration.check_disjoint(held_out)
    Checkpoint(out)  # no shard is truncated
    return manifest


def _check(
    config: PruneConfig,
    checkpoint: Checkpoint,
    out: Path,
    sources: Mapping[str, PassageSource],
    held_out: Mapping[str, str],
) -> tuple[Decoder, Any]:
    """The decoder, and the tokenizer if the job has a calibration."""
    decoder = Decoder(checkpoint, _device(config.device))
    check_divides(decoder.matrices(), config.weights_pattern)
    export.check_place(checkpoint, out)
    tokenizer = None
    if config.calibration is not None:
        tokenizer = sequences.load_tokenizer(checkpoint.directory)
        if is_local(config.calibration.source, sources):
            found = sequences.take_passages(config.calibration, config.seed, sources)
            sequences.check_passages(found, held_out)
    return decoder, tokenizer


def _calibrate(
    config: PruneConfig,
    decoder: Decoder,
    tokenizer: Any,
    sources: Mapping[str, PassageSource],
    held_out: Mapping[str, str],
) -> tuple[Calibration | None, list[Batch]]:
    if config.calibration is None or (config.method == "magnitude" and config.allocation == "uniform"):
        return None, []
    texts = sequences.load(config.calibration, tokenizer, config.seed, sources, held_out)
    made = batches(texts.sequences, _batch_tokens(decoder))
    decoder.open_skeleton(torch.tensor([token for sequence in texts.sequences for token in sequence]))
    return texts, made


def _batch_tokens(decoder: Decoder) -> int:
    """How many tokens go through a layer at once."""
    if decoder.device.type == "cuda":
        return _BATCH_TOKENS_CUDA
    least, most = _BATCH_TOKENS_CPU
    widest = max(linear.out_features for linear in decoder.linears(0).values())
    return min(most, max(least, _CACHED_ELEMENTS // widest))


@contextmanager
def _activations(decoder: Decoder, batches: Sequence[Batch], folder: Path, limit: int) -> Iterator[Activations | None]:
    if not batches:
        yield None
        return
    with Activations(batches, decoder.config.hidden_size, decoder.dtype, decoder.device, limit, folder) as held:
        yield held


def _patterns(
    config: PruneConfig, decoder: Decoder, batches: Sequence[Batch], activations: Activations | None
) -> list[Pattern]:
    """One pattern per layer."""
    pattern = config.weights_pattern
    if isinstance(pattern, NofM) or config.allocation == "uniform" or pattern.ratio == 0:
        return [pattern] * len(decoder)
    assert activations is not None
    shares = sequential.outlier_shares(decoder, batches, activations, allocation.OWL_TIMES)
    return list[Pattern](allocation.owl(shares, pattern.ratio))


def _matrices(
    config: PruneConfig,
    decoder: Decoder,
    patterns: Sequence[Pattern],
    outcomes: Sequence[Outcome],
    zeros: Mapping[str, int],
) -> tuple[MatrixRecord, ...]:
    """A record per matrix, each checked against what was asked of it."""
    by_name = {outcome.name: outcome for outcome in outcomes}
    records = []
    for layer, pattern in enumerate(patterns):
        for module_name, module in decoder.linears(layer).items():
            name = decoder.tensor_name(layer, f"{module_name}.weight")
            outcome, (rows, columns) = by_name[name], (module.out_features, module.in_features)
            wanted = asked(rows, columns, pattern, config.method, config.comparison)
            check_counts(name, wanted=wanted, pruned=outcome.pruned, zeros=zeros[name])
            records.append(
                MatrixRecord(
                    name=name,
                    rows=rows,
                    columns=columns,
                    asked=wanted,
                    zeros=zeros[name],
                    dead_columns=outcome.dead_columns,
                    damping=outcome.damping,
                    solver_dtype=outcome.solver_dtype,
                )
            )
    return tuple(records)


def _device(name: str) -> torch.device:
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if available else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (not available or (device.index or 0) >= torch.cuda.device_count()):
        raise InputError(f"device: {name!r} is not on this machine")
    return device


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


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
