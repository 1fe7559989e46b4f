"""A checkpoint as a run knows it, established before an engine starts.

`inspect_checkpoint` reads every byte of the weights once, in bounded memory, for their
digest, unless this run did so before (`PROVEN`). It refuses missing or truncated files,
NaN weights, half-written directories and code from the hub.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evaluator.checkpoints.checkpoint import INCIDENTAL, Checkpoint
from evaluator.checkpoints.files import FileStates, changed_file, file_states
from evaluator.checkpoints.fit import check_fit
from evaluator.checkpoints.manifests import (
    CalibrationManifest,
    PruneManifest,
    QuantiseManifest,
)
from evaluator.checkpoints.quantisation import Quantisation, online_scheme
from evaluator.checkpoints.served import read_served
from evaluator.checkpoints.shapes import expert_field
from evaluator.checkpoints.tensors import check_listed, count_weights, identity
from evaluator.checkpoints.tokenizer import GENERATION, digest_of_files
from evaluator.core.controls import ORDER, change_of
from evaluator.core.errors import InputError

# one sequence of the usual length; methods are published with 128 of them
FEW_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """One checkpoint directory. `method` to `requested_sparsity` are columns of its
    records, None for a dense one."""

    name: str
    path: Path
    # SHA-256 (hex) over name, dtype, shape and bytes of every tensor; sharding does not
    # change it
    weights_digest: str
    architecture: str  # checkpoints with equal keys can be swapped into one engine
    tensors: int  # how many
    bytes: int  # of all tensors
    dtype: str  # "bfloat16": the configuration's, or else that of most weights
    # of pruning and of quantising, in their order ("wanda + gptq")
    method: str | None
    pattern: str | None  # "2:4", "W4A16 (gptq, group 128)", or both
    sparsity: float | None  # measured
    calibration: str | None
    requested_sparsity: float | None = None
    quantisation: Quantisation | None = None
    disk_bytes: int | None = None  # of the files that hold the tensors
    # what loading makes of its weights is not made in place: an engine of its own
    alone: bool = False
    kv_cache: str = "auto"  # of the engine that serves it (EngineConfig.kv_cache)
    # by engine `endpoint`: a GGUF file, or a model behind a URL
    served: Literal["", "file", "url"] = ""
    # weights, unpacked; a tied output head counts once, as it is stored
    parameters: int | None = None
    tokenizer: str = ""  # `digest_of_files`
    # before they were read
    files: FileStates | None = dataclasses.field(default=None, compare=False)
    # A line each: tensors that no engine uses, and weights that are not what the
    # manifest states.
    notes: tuple[str, ...] = ()

    @property
    def engine_keys(self) -> tuple[str, str]:
        """What an engine holds that serves it, and what is equal for checkpoints
        that one engine may serve in turn."""
        served = "" if self.kv_cache == "auto" else f" kv {self.kv_cache}"
        change = change_of(self.name)
        held = served if change is None else f"{served} {change}"
        # other items need the same engine, as long as a swap makes it forget all prompts
        engine = served if change == ORDER and not self.alone else held
        return self.weights_digest + held, self.architecture + engine

    def with_cache(self, name: str, kv_cache: str) -> "CheckpointInfo":
        """The same files, served with another cache or as a control, as a checkpoint
        `name`."""
        if kv_cache == self.kv_cache:
            return dataclasses.replace(self, name=name)
        return dataclasses.replace(
            self,
            name=name,
            kv_cache=kv_cache,
            method=_joined(self.method, "kv_cache"),
            pattern=_joined(self.pattern, f"kv {kv_cache}"),
        )


def inspect_checkpoint(
    path: Path, name: str | None = None, *, trust_remote_code: bool = False
) -> CheckpointInfo:
    """Check a checkpoint directory and describe it; `name` is by default the
    directory's own.

    Raises InputError, in one line that names the file and the field or tensor, for a
    directory that is not a whole checkpoint with finite weights, an unknown
    architecture, sizes that differ from the tensors', and code of its own unless
    `trust_remote_code`. (Phi-3 brings code, but transformers knows its architecture:
    the code is not run.)
    """
    Checkpoint(path).check_directory()
    # Before anything is read that is kept: a later change is noticed.
    states = file_states(path)
    checkpoint = Checkpoint(path)
    if (served := read_served(path)) is not None:
        return CheckpointInfo(
            name=name or path.resolve().name,
            path=path,
            weights_digest=served.digest,
            architecture=f"served {served.digest}",
            tensors=0,
            bytes=served.size,
            dtype="as served",
            method=served.method,
            pattern=served.file_type or served.model,
            sparsity=None,
            calibration=None,
            disk_bytes=served.size or None,
            parameters=served.parameters,
            served="url" if served.gguf is None else "file",
            tokenizer=digest_of_files(path),
            files=states,
        )
    # Before transformers reads anything else: it would print its own warning.
    _check_known(checkpoint, trust_remote_code=trust_remote_code)
    quantisation, pruned = checkpoint.quantisation, checkpoint.pruned
    if pruned is not None and quantisation is None:
        _check_whole(checkpoint, pruned)
    config, tensors = checkpoint.config, list(checkpoint.tensors.values())
    check_listed(path)
    fit = check_fit(checkpoint)
    proof = checkpoint.prove()
    weights_digest = proof.weights
    # the engine's quantisation while it loads, which changes the weights
    if (online := online_scheme(config)) is not None:
        weights_digest = hashlib.sha256(
            f"{online} of {proof.weights}".encode()
        ).hexdigest()
    alone = quantisation is not None or expert_field(config) is not None
    sparsity, pattern, notes = _sparsity(checkpoint, is_true=proof.written)
    if (changed := changed_file(states, file_states(path))) is not None:
        raise InputError(
            f"{path / changed}: was written while it was read; try again when it is"
            " whole"
        )
    return CheckpointInfo(
        name=name or path.resolve().name,
        path=path,
        weights_digest=weights_digest,
        architecture=_architecture(checkpoint, weights_digest if alone else ""),
        tensors=len(tensors),
        bytes=checkpoint.bytes,
        dtype=checkpoint.dtype,
        method=_joined(*_methods(checkpoint)),
        pattern=_joined(pattern, None if quantisation is None else quantisation.label),
        sparsity=sparsity,
        requested_sparsity=None if pruned is None else pruned.sparsity,
        calibration=_joined(*_calibrations(checkpoint)),
        quantisation=quantisation,
        alone=alone,
        disk_bytes=sum(states[shard.name][0] for shard in checkpoint.shards),
        parameters=count_weights(
            tensors, None if quantisation is None else quantisation.scheme
        ),
        tokenizer=digest_of_files(path),
        files=states,
        notes=(*fit.unused, *notes, *_few_tokens(checkpoint)),
    )


def verify_unchanged(
    info: CheckpointInfo, *, trust_remote_code: bool = False
) -> FileStates:
    """The files, read again where they have changed. Raises InputError if they are
    not those that made `info`."""
    states = file_states(info.path)
    if info.files is not None and changed_file(info.files, states) is None:
        return states
    verify_tokenizer(info)
    again = inspect_checkpoint(info.path, trust_remote_code=trust_remote_code)
    before = info.weights_digest, info.architecture
    if (again.weights_digest, again.architecture) != before:
        raise InputError(
            f"checkpoint {info.path}: was replaced while the run went on (weights"
            f" {again.weights_digest[:12]}..., they were {info.weights_digest[:12]}...)"
        )
    assert again.files is not None
    return again.files


def verify_tokenizer(info: CheckpointInfo) -> None:
    """Raises InputError if the files of its tokenizer are not those of `info`."""
    if digest_of_files(info.path) != info.tokenizer:
        raise InputError(
            f"checkpoint {info.path}: its tokenizer, chat template or"
            f" {GENERATION} was replaced while the run went on"
        )


def _check_known(checkpoint: Checkpoint, *, trust_remote_code: bool) -> None:
    """Raises InputError for an architecture that transformers, whose list engines use,
    does not know."""
    from transformers import CONFIG_MAPPING

    file, config = checkpoint.config_file, checkpoint.config
    if config["model_type"] in CONFIG_MAPPING:
        return
    if "auto_map" not in config:
        raise InputError(
            f"{file}: field 'model_type' is {config['model_type']!r}, an unknown"
            " architecture"
        )
    if not trust_remote_code:
        raise InputError(
            f"{file}: field 'auto_map' names code of the checkpoint; it needs"
            " --trust-remote-code"
        )


def _check_whole(checkpoint: Checkpoint, pruned: PruneManifest) -> None:
    """Raises InputError for a file that is gone. (What quantised the checkpoint later
    may have kept its source's manifest, with other file names.)"""
    for name in pruned.files:
        if not (checkpoint.path / name).is_file():
            raise InputError(
                f"checkpoint {checkpoint.path}: half-written or damaged:"
                f" {PruneManifest.FILE} lists {name}, which is missing"
            )


def _joined(*parts: str | None) -> str | None:
    """The steps of a checkpoint's compression, in their order."""
    return " + ".join(part for part in parts if part) or None


def _architecture(checkpoint: Checkpoint, own: str) -> str:
    """A digest of the configuration without its incidental fields, and of the tensors'
    names, dtypes and shapes. `own`: the weights' digest, if they need their own engine.

    The digest covers more than the shapes depend on, since an engine also keeps the
    first checkpoint's rotary base: a key that is too coarse gives a wrong result.
    """
    config = checkpoint.config
    kept = {key: value for key, value in config.items() if key not in INCIDENTAL}
    parts = [kept, checkpoint.dtype]
    if own:
        parts.append(own)
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for tensor in checkpoint.tensors.values():
        digest.update(identity(tensor))
    return digest.hexdigest()


def _sparsity(
    checkpoint: Checkpoint, *, is_true: bool
) -> tuple[float | None, str | None, list[str]]:
    """The sparsity and the pattern that the weights have, and a note where a manifest
    states others. `is_true`: this run wrote both."""
    pruned, quantisation = checkpoint.pruned, checkpoint.quantisation
    if pruned is None:
        return None, None, []
    manifest: PruneManifest | QuantiseManifest = pruned
    later = None if quantisation is None else checkpoint.quantised
    # else it was quantised elsewhere, or nothing could be measured
    if later is not None and later.measured_sparsity is not None:
        manifest = later
    stated = manifest.measured_sparsity, manifest.pattern
    # what was taken out is gone from the sizes too
    if pruned.removed is not None or (is_true and quantisation is None):
        return *stated, []
    from evaluator.checkpoints.sparsity import measure  # torch

    names = [matrix.name for matrix in pruned.matrices]
    measured = measure(checkpoint, names, pruned.pattern)
    if measured == stated:
        return *stated, []
    line = (
        f"{checkpoint.path / manifest.FILE}: states sparsity {stated[0]:.6g},"
        f" {stated[1]};"
    )
    if measured is None:
        why = "this could not be measured in the weights, and the tables repeat it"
        return *stated, [f"{line} {why}"]
    what = f"the weights have {measured[0]:.6g}, {measured[1]}, and so do the tables"
    return *measured, [f"{line} {what}"]


def _methods(checkpoint: Checkpoint) -> Iterator[str | None]:
    if checkpoint.pruned is not None:
        yield checkpoint.pruned.method
    if checkpoint.quantisation is not None:
        yield checkpoint.quantisation.algorithm or "quantised"


def _calibrations(checkpoint: Checkpoint) -> Iterator[str | None]:
    """What chose the weights that went, and what fitted those that are quantised."""
    if checkpoint.pruned is not None and checkpoint.pruned.calibration is not None:
        yield checkpoint.pruned.calibration.source
    if checkpoint.quantisation is None:
        return
    yield checkpoint.quantisation.calibration
    if (
        checkpoint.quantised is not None
        and checkpoint.quantised.calibration is not None
    ):
        yield checkpoint.quantised.calibration.source


def _few_tokens(checkpoint: Checkpoint) -> Iterator[str]:
    """A line for each step that saw little text."""
    for manifest in (checkpoint.pruned, checkpoint.quantised):
        if manifest is None or manifest.calibration is None:
            continue
        if remark := little_text(manifest.calibration):
            yield f"{checkpoint.path / manifest.FILE}: {remark}"


def little_text(calibration: CalibrationManifest) -> str:
    """What is wrong with so little text, in words; empty if nothing is."""
    if calibration.tokens >= FEW_TOKENS:
        return ""
    return (
        f"{calibration.tokens:,} tokens of calibration are few: give longer texts, or"
        " more samples"
    )
