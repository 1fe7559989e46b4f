"""What is checked of the checkpoints that a sweep quantises, before anything is quantised.

Whether an engine here can serve a scheme is asked of the engine: the first layer of the model, rounded to nearest, is
rehearsed as a given checkpoint would be. An hour of GPTQ should not end with "no kernel".
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from evaluator.checkpoints.info import CheckpointInfo, inspect_checkpoint
from evaluator.checkpoints.quantisation import ONLINE
from evaluator.core.errors import InputError
from evaluator.engine.config import EngineConfig, check_served
from launch.sweep.calibration import SOURCES
from launch.sweep.jobs import CheckpointJob
from quantising.config import QuantiseConfig
from quantising.manifest import read_manifest
from quantising.methods import METHODS
from quantising.schemes import SCHEMES

_WIDTH = 16  # bits of a weight that is not quantised, as most checkpoints store it


def check_quantisations(jobs: Sequence[CheckpointJob], held_out: Mapping[str, str]) -> None:
    """Raises InputError for a quantisation that cannot be done, or whose calibration text holds what is asked."""
    for job in jobs:
        if job.quantise is None:
            continue
        from quantising.run import check  # torch

        dense = next(each for each in jobs if each.name == job.model)
        config = job.quantise.model_copy(update={"source": dense.path})
        try:
            check(config, job.path, sources=SOURCES, held_out=held_out, source_to_come=job.after is not None)
        except InputError as error:
            raise InputError(f"{job.name}: {error}") from error


def check_environments(jobs: Sequence[CheckpointJob]) -> None:
    """Raises InputError where what a quantisation runs in cannot be had. The first time, making it takes minutes."""
    for job in jobs:
        if job.quantise is not None and read_manifest(job.path) is None:
            try:
                METHODS[job.quantise.method].check_here()
            except InputError as error:
                raise InputError(f"{job.name}: {error}") from error


def bytes_of(job: CheckpointJob, dense: int) -> int:
    """About what the checkpoint of a job takes on the disk, made from a dense one of `dense` bytes."""
    if job.quantise is None:
        return dense
    if job.quantise.method == ONLINE:
        return 0
    return int(dense * bits_of(job.quantise) / _WIDTH)


def bits_of(config: QuantiseConfig) -> float:
    """Of a quantised weight, with its share of a scale."""
    scheme = SCHEMES[config.scheme]
    group = config.group_size or scheme.group
    return scheme.bits + (_WIDTH / group if group else 0.0)


def served_here(
    engine: EngineConfig, jobs: Sequence[CheckpointJob], dense: Mapping[str, CheckpointInfo], *, here: bool
) -> tuple[str, ...]:
    """What there is to say of how checkpoints are served, a line each; those to be quantised are seen by stand-ins.

    Raises InputError for the first that cannot be served.
    """
    to_make = [job for job in jobs if job.quantise is not None]
    if not to_make:
        return check_served(engine, list(dense.values()), here=here)
    with tempfile.TemporaryDirectory(prefix="resurface-stand-ins-") as folder:
        stand_ins = list(_stand_ins(to_make, dense, Path(folder)))
        try:
            return check_served(engine, [*dense.values(), *stand_ins], here=here)
        except InputError as error:
            message = str(error)
            for each in stand_ins:
                message = message.replace(f"checkpoint {each.path}:", f"compress: {each.name}:")
            raise InputError(message) from error


def _stand_ins(
    jobs: Sequence[CheckpointJob], dense: Mapping[str, CheckpointInfo], folder: Path
) -> Iterator[CheckpointInfo]:
    """For each way in which a model is quantised, its first layer rounded to nearest, under the job's name."""
    from evaluator.engine.vllm.rehearsal import first_layer
    from pruning.model.checkpoint import Checkpoint

    seen: set[tuple[object, ...]] = set()
    for number, job in enumerate(jobs):
        config = job.quantise
        assert config is not None
        key = (job.model, config.method == ONLINE, config.wanted)
        if key in seen:
            continue
        seen.add(key)
        shortened, made = folder / f"{number}-layer", folder / str(number)
        shortened.mkdir()
        made.mkdir()
        source = Checkpoint(first_layer(dense[job.model].path, shortened))
        METHODS[ONLINE if config.method == ONLINE else "rtn"].write(source, made, config.wanted, ())
        for file in source.directory.iterdir():
            if file.is_file() and file.suffix != ".safetensors" and not (made / file.name).exists():
                (made / file.name).symlink_to(file.resolve())  # tokenizer, generation config
        yield inspect_checkpoint(made, job.name)
