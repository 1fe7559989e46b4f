"""The checks of a sweep's jobs before anything starts: quantisations, sizes, dtypes,
tokens, probes, damaged checkpoints."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from evaluator.asking.questions import Question
from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.heads import head_of
from evaluator.checkpoints.info import CheckpointInfo
from evaluator.checkpoints.manifests import JobManifest, PruneManifest, read_manifest
from evaluator.checkpoints.quantisation import ONLINE
from evaluator.checkpoints.served import read_served
from evaluator.checkpoints.shapes import text_model
from evaluator.checkpoints.stated import differences, other_ends
from evaluator.core.errors import InputError, counted
from evaluator.engine.config import ENGINES, EngineConfig, check_served, engine_under
from evaluator.probes.base import PROBES
from evaluator.probes.config import EvalConfig
from evaluator.probes.planning import prompter_of
from launch.sweep.compress import SOURCES
from launch.sweep.jobs import CheckpointJob, Jobs
from launch.sweep.models import no_directory, vocabulary_of
from launch.sweep.prepared_tasks import Asked, PreparedTask, Tokenizers
from pruning.calibration import check_disjoint, wrapped
from pruning.config import PruneConfig
from pruning.methods.patterns import Share
from quantising.config import QuantiseConfig
from quantising.methods import METHODS
from quantising.schemes import SCHEMES

Infos = Mapping[str, CheckpointInfo]  # by the checkpoint's name
_LISTED_BYTES = 8  # bytes of one listed token: its id and its log-probability
_WIDTH = 16  # bits of a weight that is not quantised, as most checkpoints store it
_HEADS, _KEYS = "num_attention_heads", "num_key_value_heads"
_SHARED = {_HEADS: "attention heads", _KEYS: "key-value heads"}


def check_files(jobs: Jobs) -> dict[str, str]:
    """Why checkpoints cannot be used, by name, as far as their directories show it:
    before transformers is imported."""
    refused = {}
    for job in jobs:
        try:
            if not job.path.exists():
                raise no_directory(job.path)
            checkpoint = Checkpoint(job.path)
            checkpoint.check_directory()
            _ = checkpoint.quantisation
        except InputError as error:
            refused[job.name] = str(error)
    return refused


def engine_of(
    engine: EngineConfig, jobs: Jobs, *, here: bool
) -> tuple[EngineConfig, tuple[str, ...]]:
    """The engine in the dtype that `auto` is for the whole run, and a line on it.
    Raises InputError for checkpoints, made or to be made, that the engine certainly
    cannot serve, with all names. Imports nothing heavy.
    """
    kind, needing, refused = ENGINES[engine.kind], [], {}
    for job in jobs:
        checkpoint, quantised = Checkpoint(job.path), None
        place = f"checkpoint {job.path}"
        if job.quantise is not None:
            place, quantised = f"compress: {job.name}", job.quantise.quantisation
        elif not job.is_made:
            quantised = checkpoint.quantisation
        try:
            if here and not job.is_made and read_served(job.path) is None:
                kind.check_model(engine, checkpoint)
            if quantised is None:
                continue
            kind.check_quantisation(engine, place, quantised, here)
        except InputError as error:
            refused[job.name] = str(error)
            continue
        if (dtype := kind.auto_dtype(quantised)) != kind.auto_dtype(None):
            needing.append((dtype, f"{job.name} ({quantised.label})"))
    for name, reason in refused.items():
        others = ", ".join(each for each in refused if each != name)
        raise InputError(f"{reason}; refused too: {others}" if others else reason)
    if engine.dtype != "auto" or engine.mixed_dtypes or not needing:
        return engine, ()
    dtype, names = needing[0][0], ", ".join(name for _, name in needing)
    note = (
        f"dtype auto: this run computes every checkpoint in {dtype}, because of {names}"
    )
    return engine.model_copy(update={"dtype": dtype}), (note,)


def check_jobs(
    engine: EngineConfig,
    jobs: Jobs,
    dense: Infos,
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
    job: CheckpointJob, dense: Infos, held_out: Mapping[str, str]
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


def check_environments(jobs: Jobs) -> None:
    """Raises InputError if the environment of a quantisation cannot be made. The
    first time, this takes minutes."""
    for job in jobs:
        if job.quantise is not None and manifest_of(job) is None:
            try:
                METHODS[job.quantise.method].check_here()
            except InputError as error:
                raise InputError(f"{job.name}: {error}") from error


def bytes_of(made: PruneConfig | QuantiseConfig | None, dense: int) -> int:
    """The approximate bytes of a checkpoint that is made from a dense one of `dense`
    bytes."""
    if not isinstance(made, QuantiseConfig) or made.quantisation is None:
        return dense
    if made.method == ONLINE:
        return 0
    scheme = SCHEMES[made.scheme]
    group = made.group_size or scheme.group
    # with the weight's share of a scale
    bits = scheme.bits + (_WIDTH / group if group else 0.0)
    return int(dense * bits / _WIDTH)


def keeps_references(job: CheckpointJob, jobs: Jobs) -> bool:
    """Whether a checkpoint keeps its distributions: other checkpoints, or later runs
    of itself, need them."""
    return (job.base is None and not job.is_made) or any(
        other.base == job.name for other in jobs
    )


def reference_bytes(
    task: EvalConfig, positions: int, checkpoint: Path, dtype: str
) -> int:
    """Bytes of a base's distributions: a state of 16-bit numbers a position, and a
    log-probability. Without a head in its files, as of a server, it keeps logits in its
    compute dtype; `auto` may mean float32."""
    with suppress(InputError):
        if (head := head_of(checkpoint)) is not None:
            return positions * (2 * head.weight.shape[1] + 4)
    vocabulary = vocabulary_of(checkpoint)
    if task.fidelity_top:
        return positions * _LISTED_BYTES * min(task.fidelity_top, vocabulary)
    return positions * vocabulary * (2 if dtype == "bfloat16" else 4)


def served_here(
    engine: EngineConfig, jobs: Jobs, dense: Infos, *, here: bool
) -> tuple[str, ...]:
    """Notes on how the engine serves the checkpoints. Raises InputError."""
    served = [info for info in dense.values() if not info.served]
    for job in jobs:
        files = dense.get(job.after or "")
        if job.is_variant and not job.change and files is not None:
            served.append(files.with_cache(job.name, job.kv_cache))
    return check_served(engine, served, here=here)


def other_tokens(dense: Infos, asked: Asked) -> Iterator[str]:
    """Notes on GGUF files whose own tokenizer makes other tokens of this run's
    questions. Starts their server. Raises InputError."""
    from evaluator.engine.endpoint.prepare import other_texts  # httpx

    for name, info in dense.items():
        if info.served != "file":
            continue
        texts = [text for task in asked.get(name, ()) for text in task.texts]
        if note := other_texts(info.path, [*dict.fromkeys(texts)]):
            yield f"{name}: {note}"


def refused_by_tokens(
    infos: Infos, tokenizers: Tokenizers, asked: Asked
) -> tuple[dict[str, str], list[str]]:
    """Why checkpoints cannot answer this run's prompts, by name; and notes on tokens
    that no prompt has: such tokens are common and harmless."""
    refused, notes = {}, []
    for name, info in infos.items():
        rows, known = vocabulary_of(info.path), tokenizers[name].get_vocab()
        beyond = {at: token for token, at in known.items() if at >= rows}
        if info.served or not rows or not beyond:
            continue
        if stray := _stray(asked.get(name, ()), tokenizers[name], beyond):
            refused[name] = (
                f"checkpoint {info.path}: {stray} is beyond the {rows} rows of the model"
                " (config.json: vocab_size): the tokenizer is another model's"
            )
        else:
            notes.append(
                f"{name}: no prompt has {counted(len(beyond), 'token')} of its tokenizer"
                f" beyond the model's {rows} rows, as {beyond[min(beyond)]!r}"
            )
    return refused, notes


def _stray(
    tasks: Iterable[PreparedTask], tokenizer: Any, beyond: Mapping[int, str]
) -> str:
    """The first token of a prompt that has no row, in words; empty for none."""
    for task in tasks:
        for item, ids in _asked(task, tokenizer):
            if found := beyond.keys() & set(ids):
                return f"token {min(found)} ({beyond[min(found)]!r}) of {item}"
    return ""


def _asked(task: PreparedTask, tokenizer: Any) -> Iterator[tuple[str, Iterable[int]]]:
    """The tokens of each open prompt, and of its options; in words, what they are of."""
    for window in task.windows:
        yield f"task {task.name!r}", map(int, window.token_ids)
    prompter = prompter_of(tokenizer, task.config)
    for question in task.questions:
        if not isinstance(question, Question):
            continue
        name = f"item {question.item.item_id!r} of task {task.name!r}"
        with suppress(InputError):  # the run leaves it out
            yield name, prompter.build(question.item, "open").token_ids
        for text in question.option_texts:
            yield name, tokenizer(text, add_special_tokens=False)["input_ids"]


def remarks(
    engine: EngineConfig, infos: Iterable[CheckpointInfo], max_model_len: int
) -> Iterator[str]:
    """Notes on tensors that no engine uses, and on what an engine computes in
    another way than transformers."""
    for info in infos:
        yield from (f"{info.name}: {note}" for note in info.notes)
        if info.served:
            continue
        settings = Checkpoint(info.path).config
        note = ENGINES[engine.kind].remark(settings, max_model_len)
        if note is not None:
            yield f"{info.name}: {note}"


def calibration_notes(jobs: Jobs) -> Iterable[str]:
    """Notes on calibration texts, each once."""
    notes: dict[str, None] = {}
    for job in jobs:
        made = job.prune or job.quantise
        if made is not None and made.calibration is not None:
            notes |= dict.fromkeys(wrapped(made.calibration))
    return notes


def differences_of(
    jobs: Jobs, dense: Infos, tokenizers: Tokenizers
) -> dict[str, list[str]]:
    """How existing checkpoints differ from their bases beside weights, by name."""
    differing = {}
    for job in jobs:
        info, base = dense.get(job.model), dense.get(job.base or "")
        if info is None or base is None or info is base or job.change:
            continue
        if base.served:
            continue
        if (served := read_served(info.path)) is not None:
            differing[job.name] = [*served.differences]
            continue
        differing[job.name] = [
            *differences(base.path, info.path),
            *other_ends(tokenizers[base.name], tokenizers[info.name]),
        ]
    return differing


def difference_notes(differing: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name, lines in differing.items():
        if lines:
            yield f"{name}: differs from its base beside weights: {'; '.join(lines)}"


def check_distinct(jobs: Jobs) -> None:
    """Raises InputError if two sparsities round to the same removed layers, and so
    make the same checkpoint."""
    first: dict[str, str] = {}
    for job in jobs:
        prune = job.prune
        if prune is None or not prune.removes or prune.sparsity is None:
            continue
        config = text_model(Checkpoint(prune.source).config)
        removed = prune.removed
        assert isinstance(removed, Share)
        count = removed.count(config["num_hidden_layers"])
        key = f"{prune.model_dump_json(exclude={'sparsity'})} {count}"
        if (other := first.setdefault(key, job.name)) != job.name:
            raise InputError(
                f"{job.name}: {prune.method}: sparsity: {prune.sparsity} removes as"
                f" many layers as {other}: both would be one checkpoint"
            )


def check_divided(engine: EngineConfig, jobs: Jobs) -> None:
    """Raises InputError if the engine's GPUs do not divide a model's heads."""
    gpus = engine.tensor_parallel if ENGINES[engine.kind].shares_models else 1
    for job in jobs:
        if job.is_made:
            continue
        config = text_model(Checkpoint(job.path).config)
        for key, what in _SHARED.items():
            count = config.get(key)
            if not isinstance(count, int) or count < 1 or count % gpus == 0:
                continue
            if key == _KEYS and gpus % count == 0:  # an engine repeats them
                continue
            raise InputError(
                f"{job.path / 'config.json'}: {job.name} has {count} {what}, which"
                f" engine.tensor_parallel {gpus} does not divide"
            )


def check_dtypes(engine: EngineConfig, jobs: Jobs, dense: Infos) -> None:
    """Raises InputError for the first checkpoint whose dtype differs from its
    base's; a made one has its source's."""
    fixed = engine.dtype != "auto" or ENGINES[engine.kind].auto_dtype(None) != "auto"
    if fixed or engine.mixed_dtypes:
        return
    for job in jobs:
        own, base = dense.get(job.name), dense.get(job.base or "")
        if own and base and not own.served and own.dtype != base.dtype:
            raise InputError(
                f"checkpoint {own.path}: dtype auto would compute it in {own.dtype},"
                f" and its base {base.name} in {base.dtype}: set --dtype bfloat16"
                " (engine.dtype in a sweep file) for both, or --mixed-dtypes"
                " (engine.mixed_dtypes) to compare them with a note in every table"
            )


def manifest_of(job: CheckpointJob) -> JobManifest | None:
    """What describes a made checkpoint; None until it is whole: it is written last.
    Raises InputError if damaged."""
    kind: type[JobManifest] = PruneManifest
    if job.quantise is not None:
        kind = METHODS[job.quantise.method].manifest
    return read_manifest(job.path, kind)


def damaged(jobs: Jobs) -> dict[str, str]:
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


def check_control(
    engine: EngineConfig,
    job: CheckpointJob,
    tasks: Iterable[PreparedTask],
    *,
    here: bool,
) -> None:
    """Raises InputError for a control whose engine, dtype or probes are impossible."""
    engine = engine_under(job.change, engine)
    if here and engine.kind in ENGINES:
        ENGINES[engine.kind].check_here(engine)
    if job.path.is_dir():
        engine_of(engine, [job], here=here)
    check_references(engine, tasks)


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
