"""The checks of a sweep's jobs before anything starts: quantisations, sizes, dtypes,
probes, damaged checkpoints.

An hour of GPTQ should not end with "no kernel". So the engine rehearses each scheme
on the model's first layer, rounded to nearest."""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.info import CheckpointInfo, inspect_checkpoint
from evaluator.checkpoints.manifests import PruneManifest, QuantiseManifest
from evaluator.checkpoints.quantisation import ONLINE
from evaluator.checkpoints.shapes import text_model
from evaluator.core.errors import InputError
from evaluator.engine.config import ENGINES, EngineConfig, check_served
from evaluator.probes.base import PROBES
from evaluator.probes.config import EvalConfig
from launch.sweep.compress import SOURCES
from launch.sweep.jobs import CheckpointJob
from launch.sweep.prepared_tasks import PreparedTask
from pruning.calibration import check_disjoint
from quantising.config import QuantiseConfig
from quantising.methods import METHODS
from quantising.schemes import SCHEMES

_LISTED_BYTES = 8  # bytes of one listed token: its id and its log-probability
_WIDTH = 16  # bits of a weight that is not quantised, as most checkpoints store it
_HEADS, _KEYS = "num_attention_heads", "num_key_value_heads"
_SHARED = {
    _HEADS: "attention heads",
    _KEYS: "key-value heads",
    "intermediate_size": "MLP channels",
}


def check_files(jobs: Iterable[CheckpointJob]) -> dict[str, str]:
    """Why checkpoints cannot be used, by name, as far as their directories show it:
    before transformers is imported."""
    refused = {}
    for job in jobs:
        try:
            checkpoint = Checkpoint(job.path)
            checkpoint.check_directory()
            _ = checkpoint.quantisation
        except InputError as error:
            refused[job.name] = str(error)
    return refused


def engine_of(
    engine: EngineConfig, jobs: Iterable[CheckpointJob], *, here: bool
) -> tuple[EngineConfig, tuple[str, ...]]:
    """The engine in the dtype that `auto` is for the whole run, and a line on it.
    Raises InputError for a quantised checkpoint, made or to be made, that the engine
    certainly cannot serve. Imports nothing heavy.
    """
    kind, needing = ENGINES[engine.kind], []
    for job in jobs:
        if job.quantise is not None:
            place, quantised = f"compress: {job.name}", job.quantise.quantisation
        elif job.is_made or (found := Checkpoint(job.path).quantisation) is None:
            continue
        else:
            place, quantised = f"checkpoint {job.path}", found
        kind.check_quantisation(engine, place, quantised, here)
        if (dtype := kind.auto_dtype(quantised)) != kind.auto_dtype(None):
            needing.append((dtype, f"{job.name} ({quantised.label})"))
    if engine.dtype != "auto" or engine.mixed_dtypes or not needing:
        return engine, ()
    dtype, names = needing[0][0], ", ".join(name for _, name in needing)
    note = (
        f"dtype auto: this run computes every checkpoint in {dtype}, because of {names}"
    )
    return engine.model_copy(update={"dtype": dtype}), (note,)


def check_jobs(
    engine: EngineConfig,
    jobs: Sequence[CheckpointJob],
    dense: Mapping[str, CheckpointInfo],
    tasks: Iterable[PreparedTask],
    held_out: Mapping[str, str],
) -> None:
    """Raises InputError for the first job, size, dtype or probe that is impossible."""
    with_files = [job for job in jobs if not job.is_variant]
    for job in with_files:
        try:
            _check_compression(job, dense, held_out)
        except InputError as error:
            raise InputError(f"{job.name}: {error}") from error
    check_distinct(jobs)
    check_divided(engine, with_files)
    check_dtypes(engine, jobs, dense)
    check_references(engine, tasks)


def _check_compression(
    job: CheckpointJob, dense: Mapping[str, CheckpointInfo], held_out: Mapping[str, str]
) -> None:
    """Raises InputError for an impossible job, made or not, or calibration text that
    contains a context of a task. Imports torch where something is made."""
    if job.prune is not None:
        from pruning.run import check

        check(job.prune, job.path, sources=SOURCES, held_out=held_out)
    elif job.quantise is not None:
        from quantising.run import check as check_quantisation

        check_quantisation(
            job.quantise.model_copy(update={"source": dense[job.model].path}),
            job.path,
            sources=SOURCES,
            held_out=held_out,
            source_to_come=job.after is not None,
        )
    else:
        manifest = Checkpoint(job.path).pruned
        if manifest is not None and manifest.calibration is not None:
            check_disjoint(manifest.calibration.passages, held_out)


def check_environments(jobs: Sequence[CheckpointJob]) -> None:
    """Raises InputError if the environment of a quantisation cannot be made. The
    first time, this takes minutes."""
    for job in jobs:
        if job.quantise is not None and Checkpoint(job.path).quantised is None:
            try:
                METHODS[job.quantise.method].check_here()
            except InputError as error:
                raise InputError(f"{job.name}: {error}") from error


def bytes_of(job: CheckpointJob, dense: int) -> int:
    """The approximate bytes of a job's checkpoint, made from a dense one of `dense`
    bytes."""
    if job.quantise is None:
        return dense
    if job.quantise.method == ONLINE:
        return 0
    scheme = SCHEMES[job.quantise.scheme]
    group = job.quantise.group_size or scheme.group
    # with the weight's share of a scale
    bits = scheme.bits + (_WIDTH / group if group else 0.0)
    return int(dense * bits / _WIDTH)


def keeps_references(job: CheckpointJob, jobs: Sequence[CheckpointJob]) -> bool:
    """Whether a checkpoint keeps its distributions: other checkpoints, or later runs
    of itself, need them."""
    return (job.base is None and not job.is_made) or any(
        other.base == job.name for other in jobs
    )


def reference_bytes(
    task: EvalConfig, positions: int, vocabulary: int, dtype: str
) -> int:
    """Bytes of a base's distributions. Its logits have its compute dtype; `auto` may
    mean float32."""
    if task.fidelity_top:
        return positions * _LISTED_BYTES * min(task.fidelity_top, vocabulary)
    return positions * vocabulary * (2 if dtype == "bfloat16" else 4)


def served_here(
    engine: EngineConfig,
    jobs: Sequence[CheckpointJob],
    dense: Mapping[str, CheckpointInfo],
    *,
    here: bool,
) -> tuple[str, ...]:
    """Notes on how the engine serves the checkpoints; stand-ins replace those to be
    quantised. Raises InputError."""
    served = list(dense.values())
    for job in jobs:
        if job.is_variant and (files := dense.get(job.after or "")):
            served.append(files.with_cache(job.name, job.kv_cache))
    with tempfile.TemporaryDirectory(prefix="resurface-stand-ins-") as folder:
        stand_ins = list(_stand_ins(jobs, dense, Path(folder)))
        try:
            return check_served(engine, [*served, *stand_ins], here=here)
        except InputError as error:
            message = str(error)
            for each in stand_ins:
                message = message.replace(
                    f"checkpoint {each.path}:", f"compress: {each.name}:"
                )
            raise InputError(message) from error


def remarks(
    engine: EngineConfig, infos: Iterable[CheckpointInfo], max_model_len: int
) -> Iterator[str]:
    """Notes on tensors that no engine uses, and on what an engine computes in
    another way than transformers."""
    for info in infos:
        yield from (f"{info.name}: {note}" for note in info.notes)
        settings = Checkpoint(info.path).config
        note = ENGINES[engine.kind].remark(settings, max_model_len)
        if note is not None:
            yield f"{info.name}: {note}"


def _stand_ins(
    jobs: Sequence[CheckpointJob], dense: Mapping[str, CheckpointInfo], folder: Path
) -> Iterator[CheckpointInfo]:
    """A one-layer checkpoint, rounded to nearest, for each model and quantisation,
    under the job's name."""
    from evaluator.checkpoints.first_layer import first_layer

    first: dict[tuple[object, ...], str] = {}
    for job in jobs:
        if job.quantise is None:
            continue
        config = job.quantise
        method = config.method if config.method == ONLINE else "rtn"
        key = (job.model, method, config.scheme, config.group_size, config.ignore)
        if first.setdefault(key, job.name) != job.name:
            continue
        shortened, made = folder / job.name / "layer", folder / job.name / "made"
        shortened.mkdir(parents=True)
        made.mkdir()
        source = Checkpoint(first_layer(dense[job.model].path, shortened))
        METHODS[method].write(source, made, config, ())
        for file in source.path.iterdir():  # tokenizer, generation config
            weights = file.suffix == ".safetensors"
            if file.is_file() and not weights and not (made / file.name).exists():
                (made / file.name).symlink_to(file.resolve())
        yield inspect_checkpoint(made, job.name)


def check_distinct(jobs: Sequence[CheckpointJob]) -> None:
    """Raises InputError if two sparsities round to the same removed parts, and so
    make the same checkpoint."""
    first: dict[str, str] = {}
    for job in jobs:
        prune = job.prune
        if prune is None or not prune.removes or prune.sparsity is None:
            continue
        from pruning.run import settings_after  # torch

        settings = prune.model_dump_json(exclude={"sparsity"})
        key = settings + json.dumps(settings_after(prune), default=str)
        if (other := first.setdefault(key, job.name)) != job.name:
            raise InputError(
                f"{job.name}: {prune.method}: sparsity: {prune.sparsity} removes as"
                f" many {prune.pattern} as {other}: both would be one checkpoint"
            )


def check_divided(engine: EngineConfig, jobs: Sequence[CheckpointJob]) -> None:
    """Raises InputError if the engine's GPUs or a scheme's groups do not divide a
    size."""
    prunings = {job.name: job.prune for job in jobs}
    for job in jobs:
        prune = job.prune or prunings.get(job.after or "")
        if not job.is_made:
            config = text_model(Checkpoint(job.path).config)
            sizes = {key: config.get(key) for key in (_HEADS, _KEYS)}
            place = f"{job.path / 'config.json'}: {job.name} has"
        elif prune is not None and prune.pattern in ("heads", "channels"):
            from pruning.run import settings_after  # torch

            sizes = settings_after(prune)
            place = f"{job.name}: {prune.method}: sparsity: {prune.sparsity} leaves"
        else:
            continue
        for reason in (*_among_gpus(engine, sizes), *_in_groups(job.quantise, sizes)):
            raise InputError(f"{place} {reason}")


def _among_gpus(engine: EngineConfig, sizes: Mapping[str, Any]) -> Iterator[str]:
    """The rules of an engine that shares a model among GPUs. It may also repeat
    key-value heads."""
    gpus = engine.tensor_parallel if ENGINES[engine.kind].shares_models else 1
    for key, what in _SHARED.items():
        count = sizes.get(key)
        if not isinstance(count, int) or count < 1:
            continue
        if count % gpus and (key != _KEYS or gpus % count):
            yield f"{count} {what}, which engine.tensor_parallel {gpus} does not divide"


def _in_groups(
    quantise: QuantiseConfig | None, sizes: Mapping[str, Any]
) -> Iterator[str]:
    if quantise is None or quantise.scheme not in SCHEMES:
        return
    group = quantise.group_size or SCHEMES[quantise.scheme].group or 1
    head = sizes.get("head_dim") or sizes["hidden_size"] // sizes[_HEADS]
    columns = {"o_proj": sizes[_HEADS] * head, "down_proj": sizes["intermediate_size"]}
    for name, count in columns.items():
        if count % group:
            yield (
                f"{count} columns of {name}, which scheme {quantise.scheme}'s groups of"
                f" {group} do not divide"
            )


def check_dtypes(
    engine: EngineConfig,
    jobs: Sequence[CheckpointJob],
    dense: Mapping[str, CheckpointInfo],
) -> None:
    """Raises InputError for the first checkpoint whose dtype differs from its
    base's; a made one has its source's."""
    fixed = engine.dtype != "auto" or ENGINES[engine.kind].auto_dtype(None) != "auto"
    if fixed or engine.mixed_dtypes:
        return
    for job in jobs:
        own, base = dense.get(job.name), dense.get(job.base or "")
        if own and base and own.dtype != base.dtype:
            raise InputError(
                f"checkpoint {own.path}: dtype auto would compute it in {own.dtype},"
                f" and its base {base.name} in {base.dtype}: set --dtype bfloat16"
                " (engine.dtype in a sweep file) for both, or --mixed-dtypes"
                " (engine.mixed_dtypes) to compare them with a note in every table"
            )


def manifest_of(job: CheckpointJob) -> PruneManifest | QuantiseManifest | None:
    """What describes a made checkpoint; None until it is whole: it is written last.
    Raises InputError if damaged."""
    checkpoint = Checkpoint(job.path)
    return checkpoint.quantised if job.prune is None else checkpoint.pruned


def damaged(jobs: Iterable[CheckpointJob]) -> dict[str, str]:
    """Why made checkpoints cannot be used, by name; reads no weights, whose digest
    the evaluation checks."""
    found = {}
    for job in jobs:
        try:
            manifest = manifest_of(job)
            if manifest is None:
                continue
            for name in manifest.files:
                if not (job.path / name).is_file():
                    raise InputError(
                        f"{job.path / name}: the manifest lists this file, but it is"
                        " missing"
                    )
            checkpoint = Checkpoint(job.path)
            _ = checkpoint.config, checkpoint.tensors
        except InputError as error:
            found[job.name] = (
                f"{error}; remove {job.path}, and the same command makes it again"
            )
    return found


def check_references(engine: EngineConfig, tasks: Iterable[PreparedTask]) -> None:
    """Raises InputError if a probe compares distributions and the engine cannot."""
    able = [kind.name for kind in ENGINES if kind.references]
    for task in tasks:
        if task.config.references and engine.kind not in able:
            probe = next(name for name in task.config.probes if PROBES[name].references)
            raise InputError(
                f"engine: kind: {engine.kind!r} cannot compare distributions; the probe"
                f" {probe} of task {task.name!r} needs that: use {' or '.join(able)}"
            )
