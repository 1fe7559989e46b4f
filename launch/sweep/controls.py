"""Which checkpoints of a sweep are evaluated once more, as controls.

A control of `controls:` is of every base. Besides, one cheap control shows the noise of
each checkpoint whose numbers may depend on the batch: in any dtype but float32 on a CPU,
with quantised activations, or from a server. Beside a server, the base is read by another
engine too, if that can load it: a control by default fails no run. `controls: none`
leaves out all."""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.quantisation import ROUNDED_ACTIVATIONS, Quantisation
from evaluator.core.controls import ORDER
from evaluator.core.errors import InputError
from evaluator.engine.config import ENGINES, EngineConfig
from evaluator.probes import PROBES
from launch.sweep.config import SweepConfig
from launch.sweep.jobs import CheckpointJob, Jobs, models_of
from launch.sweep.models import is_served

CHEAP, ITEMS = ORDER, 50  # the control by default, and its items of each task
OTHER_ENGINE = "engine:torch"
_PROBES = ("greedy", "choice")  # of the other engine, which answers one at a time


def with_controls(
    jobs: Jobs, config: SweepConfig, *, on_gpus: bool
) -> tuple[CheckpointJob, ...]:
    """The jobs, each followed by its controls. Raises InputError for a control without
    its base."""
    if config.controls == ():
        return tuple(jobs)
    compared = [job.base or job.name for job in jobs]
    named = config.controls or ()
    varies = _depends_on_batch(jobs, config.engine, on_gpus=on_gpus)
    models = models_of(config)
    beside_servers = {job.base for job in jobs if is_served(models.get(job.name, ""))}
    every: list[CheckpointJob] = []
    for job in jobs:
        every.append(job)
        if job.is_variant or not job.tasks:
            continue
        is_base = job.name in compared and not job.is_made
        served = is_served(models.get(job.name, ""))
        is_noisy = varies or served or _is_rounded(job)
        for change in named:
            if is_base:
                _need_base(job, change)
            if is_base or (is_noisy and change == CHEAP):
                every.append(job.with_control(change, None))
        if is_noisy and CHEAP not in named:
            every.append(job.with_control(CHEAP, ITEMS))
        if not is_base and every[-1] is not job:
            # Its own base is its checkpoint, whose answers lead in otherwise, and which
            # keeps no distributions.
            alone = [probe.name for probe in PROBES if not probe.after_base]
            every[-1] = _with_probes(every[-1], alone)
        is_alone = served or OTHER_ENGINE in named or config.engine.kind == "torch"
        if job.name in beside_servers and not is_alone and _loads(job, config.engine):
            control = job.with_control(OTHER_ENGINE, ITEMS)
            every.append(_with_probes(control, _PROBES))
    return tuple(job for job in every if job.tasks or not job.change)


def _with_probes(control: CheckpointJob, names: Collection[str]) -> CheckpointJob:
    """It asks these probes alone, of those that it has."""
    tasks = {}
    for name, task in control.tasks.items():
        probes = tuple(probe for probe in task.probes if probe in names)
        if probes:
            tasks[name] = task.model_copy(update={"probes": probes})
    return replace(control, tasks=tasks)


def _depends_on_batch(jobs: Jobs, engine: EngineConfig, *, on_gpus: bool) -> bool:
    """Whether what an engine computes depends on what it computes beside it. Only
    float32 on a CPU does not."""
    kind = ENGINES[engine.kind]
    if not kind.batches or engine.deterministic:
        return False
    if on_gpus or engine.dtype != "auto":
        return on_gpus or engine.dtype != "float32"
    return any(kind.auto_dtype(_quantisation(job)) != "float32" for job in jobs)


def _is_rounded(job: CheckpointJob) -> bool:
    """Whether a checkpoint's activations are quantised, so that its numbers depend on
    the batch."""
    made = _quantisation(job)
    return made is not None and ROUNDED_ACTIVATIONS.search(made.label) is not None


def _loads(job: CheckpointJob, engine: EngineConfig) -> bool:
    """Whether engine torch loads a checkpoint: on one GPU, with plain weights, of an
    architecture that transformers has."""
    # late: it takes seconds, and few runs have a server
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if engine.tensor_parallel > 1 or _quantisation(job) is not None:
        return False
    with suppress(InputError):
        config = Checkpoint(job.path).config
        is_own = engine.trust_remote_code and "auto_map" in config
        return is_own or config.get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return True  # not here yet


def _quantisation(job: CheckpointJob) -> Quantisation | None:
    """Of a checkpoint that is to be made, or is here and whole."""
    if job.is_made:
        return None if job.quantise is None else job.quantise.quantisation
    with suppress(InputError):  # a damaged or absent one is refused elsewhere
        checkpoint = Checkpoint(job.path)
        checkpoint.check_directory()
        return checkpoint.quantisation
    return None


def _need_base(job: CheckpointJob, change: str) -> None:
    """Raises InputError for a compressed checkpoint without its base."""
    compressed = _quantisation(job) is not None
    with suppress(InputError):  # as above
        compressed |= Checkpoint(job.path).pruned is not None
    if job.base is None and compressed:
        raise InputError(
            f"control {change}: {job.name!r} is compressed, and its base is not part"
            " of this run: name it with --base (base: in a sweep file)"
        )
