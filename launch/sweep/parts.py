"""The parts of a sweep that need nothing of each other: a model, and all that comes from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launch.sweep.config import SweepConfig
from launch.sweep.jobs import expand
from launch.sweep.models import local_directory


@dataclass(frozen=True, slots=True)
class Part:
    """Models that belong together; `name` is that of the first."""

    models: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.models[0]


def parts_of(config: SweepConfig) -> tuple[Part, ...]:
    """The parts of a sweep, in the order of its models. Fetches nothing. Raises InputError as `expand` does."""
    jobs = expand(config, Path("RUN"), resolve=lambda value: local_directory(value) or Path(value))
    dense = {job.name: job.model for job in jobs if not job.is_made}
    home = {model: model for model in dict.fromkeys(job.model for job in jobs)}
    for job in jobs:
        if job.base is not None and job.base in dense:
            ours, theirs = home[job.model], home[dense[job.base]]
            first = min(ours, theirs, key=list(home).index)
            home = {model: first if at in (ours, theirs) else at for model, at in home.items()}
    named = _models(config)  # and not what is given as compressed, which goes with its base
    groups = ([model for model, at in home.items() if at == first and model in named] for first in home.values())
    return tuple(Part(models) for models in dict.fromkeys(map(tuple, groups)))


def _models(config: SweepConfig) -> set[str]:
    return {*config.models, *(name for included in config.include for name in _models(included))}
