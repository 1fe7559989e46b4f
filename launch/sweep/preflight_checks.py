"""The checks of a sweep's jobs before anything starts: quantisations, sizes, dtypes,
tokens, probes, damaged checkpoints; and what they find.

A check of one checkpoint raises InputError for it alone: the run sets it aside. What
concerns the sweep itself is raised outside `Findings.check`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from evaluator.asking.questions import Question
from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.files import digest_of_file
from evaluator.checkpoints.heads import head_of
from evaluator.checkpoints.info import CheckpointInfo
from evaluator.checkpoints.manifests import JobManifest, PruneManifest, read_manifest
from evaluator.checkpoints.quantisation import ONLINE, Quantisation
from evaluator.checkpoints.served import read_served
from evaluator.checkpoints.shapes import text_model
from evaluator.checkpoints.stated import differences, other_ends
from evaluator.core.errors import InputError, counted
from evaluator.engine.config import ENGINES, EngineConfig, check_served, engine_under
from evaluator.probes.base import PROBES
from evaluator.probes.config import EvalConfig
from evaluator.probes.planning import prompter_of
from evaluator.store.run_json import Failure, Stage
from launch.sweep.compress import SOURCES
from launch.sweep.jobs import CheckpointJob, Jobs, unfetched
from launch.sweep.models import (
    ModelValue,
    no_directory,
    resolve_model,
    resolve_served,
    vocabulary_of,
)
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
_KEYS = "num_key_value_heads"
_SHARED = {"num_attention_heads": "attention heads", _KEYS: "key-value heads"}
_Value = TypeVar("_Value")
# takes what is done now, and whether to tell it at once
Step = Callable[[str, bool], None]
# of one checkpoint, which it may leave alone; its notes. Raises InputError
Check = Callable[[CheckpointJob], Iterable[str] | None]


class Finding(NamedTuple):
    """What a check says of a checkpoint, or of the sweep (None): why it is refused, or
    a note."""

    checkpoint: str | None
    text: str
    refuses: bool


@dataclass
class Findings:
    """What the checks of a sweep have found so far. `strict`: any that refuses a
    checkpoint refuses the sweep."""

    step: Step
    strict: bool = False
    found: list[Finding] = field(default_factory=list)

    @property
    def refused(self) -> dict[str, str]:
        """The first reason against each refused checkpoint, in the order of checks."""
        refused: dict[str, str] = {}
        for name, text, refuses in self.found:
            if refuses and name is not None:
                refused.setdefault(name, text)
        return refused

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(each.text for each in self.found if not each.refuses)

    def note(self, *several: Iterable[str] | None) -> None:
        for texts in several:
            self.found += [Finding(None, text, False) for text in texts or ()]

    def check(
        self,
        what: str,
        jobs: Jobs,
        of: Callable[[CheckpointJob], _Value],
        *,
        aloud: bool = False,
    ) -> dict[str, _Value]:
        """What a check returns of the checkpoints that it does not refuse, by name."""
        passed = {}
        for job in jobs:
            self.step(f"{job.name}: {what}", aloud)
            try:
                passed[job.name] = of(job)
            except InputError as error:
                self.found.append(Finding(job.name, str(error), True))
        self.step("tasks and settings", False)
        return passed

    def fetched(self, name: str, value: ModelValue, base: Path | None) -> Path:
        """A model's directory, as `expand` needs it. Asks the hub or a server."""
        self.step(f"{name}: fetching", False)
        try:
            if base is None:
                return resolve_model(str(value))
            return resolve_served(value, base)
        except InputError as error:
            self.found.append(Finding(name, str(error), True))
            return unfetched(name, value, base)

    def left(self, jobs: Jobs) -> tuple[CheckpointJob, ...]:
        """The first of `sound`."""
        return self.sound(jobs)[0]

    def sound(
        self, jobs: Jobs
    ) -> tuple[tuple[CheckpointJob, ...], tuple[Failure, ...]]:
        """The jobs that remain, and the refused checkpoints and those made from them.
        Raises InputError if none remains or one lacks its base."""
        refused, failures = self.refused, dict[str, Failure]()
        for job in jobs:
            made = job.is_made and not job.path.is_dir()
            reason = refused.get(job.name, "")
            lost = [name for name in (job.model, job.after) if name in failures]
            if lost and not reason and (job.is_made or job.is_variant):
                made, reason = True, f"{lost[0]}, its source, cannot be used"
            if reason:
                stage: Stage = "prune" if made else "load"
                failures[job.name] = Failure(
                    checkpoint=job.name, stage=stage, reason=reason, mendable=True
                )
        left = tuple(job for job in jobs if job.name not in failures)
        needed = {job.base for job in left or jobs}
        guilty = sorted(refused, key=lambda name: name not in needed)  # a base first
        if guilty and (self.strict or not left or guilty[0] in needed):
            more = f"; refused too: {', '.join(guilty[1:])}" if guilty[1:] else ""
            raise InputError(f"{guilty[0]}: {refused[guilty[0]]}{more}")
        return left, tuple(failures.values())


def check_files(job: CheckpointJob) -> None:
    """Raises InputError for a checkpoint that cannot be used as far as its directory
    shows it: before transformers is imported."""
    if not job.path.exists():
        raise no_directory(job.path)
    checkpoint = Checkpoint(job.path)
    checkpoint.check_directory()
    _ = checkpoint.quantisation


def check_engine(
    engine: EngineConfig, job: CheckpointJob, *, here: bool
) -> Quantisation | None:
    """How a checkpoint, made or to be made, is quantised. Raises InputError if the
    engine certainly cannot serve it. Imports nothing heavy."""
    kind, checkpoint, quantised = ENGINES[engine.kind], Checkpoint(job.path), None
    place = f"checkpoint {job.path}"
    if job.quantise is not None:
        place, quantised = "compress", job.quantise.quantisation
    elif not job.is_made:
        quantised = checkpoint.quantisation
    if here and not job.is_made and read_served(job.path) is None:
        kind.check_model(engine, checkpoint)
    if quantised is not None:
        kind.check_quantisation(engine, place, quantised, here)
    return quantised


def one_dtype(
    engine: EngineConfig, quantised: Mapping[str, Quantisation | None], found: Findings
) -> EngineConfig:
    """The engine in the dtype that `auto` is for the whole run, with a note on it."""
    auto, needing = ENGINES[engine.kind].auto_dtype, []
    for name, each in quantised.items():
        if each is not None and (dtype := auto(each)) != auto(None):
            needing.append((dtype, f"{name} ({each.label})"))
    if engine.dtype != "auto" or engine.mixed_dtypes or not needing:
        return engine
    dtype, names = needing[0][0], ", ".join(name for _, name in needing)
    found.note(
        [
            f"dtype auto: this run computes every checkpoint in {dtype}, because of {names}"
        ]
    )
    return engine.model_copy(update={"dtype": dtype})


def check_compression(
    dense: Infos, held_out: Mapping[str, str], job: CheckpointJob
) -> None:
    """Raises InputError for an impossible job, made or not, or calibration text that
    contains a context of a task. Imports torch where something is made."""
    if job.is_variant:
        return
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


def check_environment(failed: dict[object, InputError], job: CheckpointJob) -> None:
    """Raises InputError if the environment of a quantisation cannot be made. The
    first time, this takes minutes. `failed`: the attempts so far."""
    if job.quantise is None or manifest_of(job) is not None:
        return
    method = METHODS[job.quantise.method]
    which = type(method).check_here
    if which in failed:
        raise failed[which]
    try:
        method.check_here()
    except InputError as error:
        failed[which] = error
        raise


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


def check_architecture(
    engine: EngineConfig,
    dense: Infos,
    served: set[str],
    job: CheckpointJob,
    *,
    here: bool,
) -> tuple[str, ...]:
    """Notes on how the engine serves a checkpoint, one of each architecture. Raises
    InputError. `served`: the architectures so far."""
    files = dense.get(job.after or job.name)
    if files is None or files.served or job.change:
        return ()
    info = files.with_cache(job.name, job.kv_cache)
    architecture = info.engine_keys[1]
    if architecture in served:
        return ()
    notes = check_served(engine, info, here=here)
    served.add(architecture)
    return notes


def other_tokens(dense: Infos, asked: Asked, job: CheckpointJob) -> list[str]:
    """A note on a GGUF file whose own tokenizer makes other tokens of this run's
    questions. Starts its server. Raises InputError."""
    from evaluator.engine.endpoint.prepare import other_texts  # httpx

    info = dense.get(job.name)
    if info is None or info.served != "file":
        return []
    texts = [text for task in asked.get(job.name, ()) for text in task.texts]
    note = other_texts(info.path, [*dict.fromkeys(texts)])
    return [f"{job.name}: {note}"] if note else []


def check_tokens(tokenizers: Tokenizers, asked: Asked, job: CheckpointJob) -> list[str]:
    """A note on tokens that no prompt has: such tokens are common and harmless.
    Raises InputError if a checkpoint cannot answer this run's prompts."""
    if job.is_made or job.is_variant or read_served(job.path) is not None:
        return []
    tokenizer, rows = tokenizers[job.name], vocabulary_of(job.path)
    known = tokenizer.get_vocab()
    beyond = {at: token for token, at in known.items() if at >= rows}
    if not rows or not beyond:
        return []
    if stray := _stray(asked[job.name], tokenizer, beyond):
        raise InputError(
            f"checkpoint {job.path}: {stray} is beyond the {rows} rows of the model"
            " (config.json: vocab_size): the tokenizer is another model's"
        )
    return [
        f"{job.name}: no prompt has {counted(len(beyond), 'token')} of its tokenizer"
        f" beyond the model's {rows} rows, as {beyond[min(beyond)]!r}"
    ]


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
        if base.method and not info.method:
            made = f"{base.name} is compressed ({base.method}), and it is not"
            differing[job.name].append(f"{made}: are they exchanged?")
    return differing


def difference_notes(differing: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name, lines in differing.items():
        if lines:
            yield f"{name}: differs from its base beside weights: {'; '.join(lines)}"


def check_distinct(first: dict[str, str], job: CheckpointJob) -> None:
    """Raises InputError if a sparsity rounds to the same removed layers as an earlier
    job's, and so makes the same checkpoint. `first`: the jobs so far."""
    prune = job.prune
    if prune is None or not prune.removes or prune.sparsity is None:
        return
    config = text_model(Checkpoint(prune.source).config)
    removed = prune.removed
    assert isinstance(removed, Share)
    count = removed.count(config["num_hidden_layers"])
    key = f"{prune.model_dump_json(exclude={'sparsity'})} {count}"
    if (other := first.setdefault(key, job.name)) != job.name:
        raise InputError(
            f"{prune.method}: sparsity: {prune.sparsity} removes as many layers as"
            f" {other}: both would be one checkpoint"
        )


def check_divided(engine: EngineConfig, job: CheckpointJob) -> None:
    """Raises InputError if the engine's GPUs do not divide a model's heads."""
    gpus = engine.tensor_parallel if ENGINES[engine.kind].shares_models else 1
    if job.is_made or job.is_variant:
        return
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


def check_dtype(engine: EngineConfig, dense: Infos, job: CheckpointJob) -> None:
    """Raises InputError for a checkpoint whose dtype differs from its base's; a made
    one has its source's."""
    fixed = engine.dtype != "auto" or ENGINES[engine.kind].auto_dtype(None) != "auto"
    own, base = dense.get(job.name), dense.get(job.base or "")
    if fixed or engine.mixed_dtypes or not own or not base or own.served:
        return
    if own.dtype != base.dtype:
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


def check_made(job: CheckpointJob) -> None:
    """Raises InputError for a made checkpoint that cannot be used; reads no weights,
    whose digest the evaluation checks."""
    try:
        manifest = manifest_of(job)
        if manifest is None:
            return
        for name in manifest.files:
            if not (job.path / name).is_file():
                raise InputError(
                    f"{job.path / name}: the manifest lists this file, but it is"
                    " missing"
                )
        checkpoint = Checkpoint(job.path)
        _ = checkpoint.config, checkpoint.tensors
    except InputError as error:
        raise InputError(
            f"{error}; remove {job.path}, and the same command makes it again"
        ) from error


def check_unchanged(job: CheckpointJob) -> None:
    """Raises InputError for a made checkpoint with other files than were written;
    reads its weights, unless this run did so before."""
    manifest, weights = manifest_of(job), Checkpoint(job.path).prove().files
    for name, digest in manifest.files.items() if manifest else ():
        if (weights.get(name) or digest_of_file(job.path / name)) != digest:
            raise InputError(
                f"{job.path / name}: was changed: its sha256 is not the manifest's"
            )


def check_change(
    engine: EngineConfig, change: str, tasks: Iterable[PreparedTask], *, here: bool
) -> None:
    """Raises InputError for controls whose engine, dtype or probes are impossible."""
    engine = engine_under(change, engine)
    if here and engine.kind in ENGINES:
        ENGINES[engine.kind].check_here(engine)
    check_references(engine, tasks)


def check_control(engine: EngineConfig, job: CheckpointJob, *, here: bool) -> None:
    """Raises InputError for a checkpoint that the engine of its control cannot
    serve."""
    if job.change and job.path.is_dir():
        check_engine(engine_under(job.change, engine), job, here=here)


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
