"""Which checkpoints of a sweep are evaluated once more, as controls.

A control of `controls:` is of every base. Without that setting, one cheap control shows
the noise where noise is expected: of bases on GPUs without batch invariance, of
checkpoints with quantised activations, and of served models."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.quantisation import ROUNDED_ACTIVATIONS
from evaluator.core.errors import InputError
from evaluator.engine.config import ENGINES
from evaluator.probes import PROBES
from launch.sweep.config import SweepConfig
from launch.sweep.jobs import CheckpointJob, Jobs, models_of
from launch.sweep.models import is_served

CHEAP, ITEMS = "order", 50  # the control by default, and its items of each task


def with_controls(
    jobs: Jobs, config: SweepConfig, *, on_gpus: bool
) -> tuple[CheckpointJob, ...]:
    """The jobs, each followed by its controls. Raises InputError for a control without
    its base."""
    compared = [job.base or job.name for job in jobs]
    every: list[CheckpointJob] = []
    for job in jobs:
        every.append(job)
        if job.is_variant or not job.tasks:
            continue
        if config.controls is None:
            every += _by_default(job, compared, config, on_gpus=on_gpus)
        elif job.name in compared and not job.is_made:
            for change in config.controls:
                _need_base(job, change)
                every.append(job.with_control(change, None))
    return tuple(every)


def _by_default(
    job: CheckpointJob, compared: Collection[str], config: SweepConfig, *, on_gpus: bool
) -> Iterator[CheckpointJob]:
    engine = config.engine
    varies = on_gpus and ENGINES[engine.kind].batches and not engine.deterministic
    control = job.with_control(CHEAP, ITEMS)
    if job.name in compared and not job.is_made:
        if varies:
            yield control
    elif is_served(models_of(config).get(job.name, "")) or _is_rounded(job):
        # it would have to keep its distributions
        tasks = {}
        for name, task in job.tasks.items():
            kept = [each for each in task.probes if not PROBES[each].references]
            tasks[name] = task.model_copy(update={"probes": tuple(kept)})
        yield replace(control, tasks=tasks)


def _is_rounded(job: CheckpointJob) -> bool:
    """Whether a checkpoint's activations are quantised, so that its numbers depend on
    the batch."""
    made = None if job.quantise is None else job.quantise.quantisation
    if not job.is_made and job.path.is_dir():
        made = Checkpoint(job.path).quantisation
    return made is not None and ROUNDED_ACTIVATIONS.search(made.label) is not None


def _need_base(job: CheckpointJob, change: str) -> None:
    """Raises InputError for a compressed checkpoint without its base."""
    if job.base is None and job.path.is_dir():
        stored = Checkpoint(job.path)
        if stored.pruned is not None or stored.quantisation is not None:
            raise InputError(
                f"control {change}: {job.name!r} is compressed, and its base is not part"
                " of this run: name it with --base (base: in a sweep file)"
            )
