"""From a sweep to its jobs: each checkpoint, its making and its tasks.

Several joined sweeps may name one checkpoint, most often the dense baseline. It is
one job with merged tasks. Tasks that differ only in formats, probes and sample seeds
become one task with the union of each list. So no prompt is computed twice. A joined
sweep may run a little more than its parts, but never less."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from evaluator.core.errors import InputError, unknown
from evaluator.core.records import FORMATS
from evaluator.core.text import code_of
from evaluator.deciding.thresholds import Screen
from evaluator.engine.config import AUTO_CACHE
from evaluator.probes import PROBES
from evaluator.probes.config import EvalConfig
from evaluator.tasks import Source, task_name
from launch.sweep.compress import given, prunings, quantisations, spelled_source
from launch.sweep.config import SweepConfig
from launch.sweep.models import local_directory, resolve_model
from launch.sweep.prompts import posed_tasks
from pruning.config import PruneConfig
from quantising.config import QuantiseConfig

# The settings that decide items, candidates and prompts. Tasks with one name must agree
# on them.
_ITEM_SETTINGS = (
    "task",
    "languages",
    "items",
    "seed",
    "grading",
    "options",
    "template",
    "context_tokens",
    *Source.model_fields,
)
_MERGED = ("formats", "probes", "sample_seeds")
# of a checkpoint: names of directories and logs contain it and have at most 255
# characters
_LONGEST_NAME = 200
# Model, settings of the pruning and of the quantisation: one checkpoint. A variant's
# has its cache's dtype too.
_Key = tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointJob:
    """One checkpoint to evaluate. It exists before the run if `prune` and `quantise`
    are None."""

    name: str
    path: Path
    model: str  # the name of the dense model: itself, or its source
    base: str | None  # the name of the checkpoint to compare it with
    prune: PruneConfig | None = None
    quantise: QuantiseConfig | None = None
    # the job to quantise, or of a variant the one whose files it shares; None: the
    # model
    after: str | None = None
    kv_cache: str = AUTO_CACHE
    is_variant: bool = False  # the same files, served with another cache
    # by the name of their records
    tasks: Mapping[str, EvalConfig] = field(default_factory=dict)

    @property
    def is_made(self) -> bool:
        return self.prune is not None or self.quantise is not None

    def with_cache(self, kv_cache: str) -> "CheckpointJob":
        """Its variant with another cache, which is compared with the same base; a
        base's with the base itself."""
        name, base = f"{self.name}-kv-{kv_cache}", self.base or self.name
        variant = replace(
            self, name=name, base=base, prune=None, quantise=None, after=self.name
        )
        return replace(variant, kv_cache=kv_cache, is_variant=True)


def expand(
    config: SweepConfig, run_dir: Path, resolve: Callable[[str], Path] = resolve_model
) -> tuple[CheckpointJob, ...]:
    """Each model, of `only` if given, and its pruned versions. Raises InputError,
    also if joined sweeps disagree."""
    grids = list(_grids(config))
    sources = {name: resolve(value) for name, value in _wanted(config, grids).items()}
    jobs: dict[_Key, CheckpointJob] = {}
    for grid in grids:
        own: set[_Key] = set()
        tasks = [
            _completed(task, grid) for task in posed_tasks(grid.tasks, grid.prompts)
        ]
        found = list(_checkpoints(grid, grids, sources, run_dir / "checkpoints"))
        # `auto` also serves what others are compared with
        needed = {job.base or job.name for _, job in found}
        for key, job in found:
            if key in own:
                raise InputError(
                    f"checkpoint {job.name!r} occurs twice in models, prune and"
                    " compress"
                )
            own.add(key)
            known = jobs.get(key, job)
            asked = tasks if AUTO_CACHE in grid.kv_cache or job.name in needed else ()
            jobs[key] = replace(
                known, base=known.base or job.base, tasks=_merged(known.tasks, asked)
            )
            for cache in grid.kv_cache:
                if cache != AUTO_CACHE:
                    variant = jobs.get((*key, cache), job.with_cache(cache))
                    jobs[*key, cache] = replace(
                        variant, tasks=_merged(variant.tasks, tasks)
                    )
    first: dict[str, EvalConfig] = {}
    # a task's items must not differ between checkpoints: tables compare its records
    for job in jobs.values():
        for name, task in job.tasks.items():
            _check_same(name, first.setdefault(name, task), task, _ITEM_SETTINGS)
    _check_bases(jobs.values())
    for name, count in Counter(job.name for job in jobs.values()).items():
        if count > 1:
            raise InputError(
                f"checkpoint {name!r} occurs twice in models, prune and compress; give"
                " a setting a label"
            )
        if len(name) > _LONGEST_NAME:
            raise InputError(
                f"checkpoint {name[:40]!r}...: its name has {len(name)} characters; the"
                f" limit is {_LONGEST_NAME}"
            )
    order = list(sources)
    return tuple(sorted(jobs.values(), key=lambda job: order.index(job.model)))


def _grids(config: SweepConfig) -> Iterator[SweepConfig]:
    """The joined sweeps that have models, included ones first."""
    for included in config.include:
        yield from _grids(included)
    if config.models:
        yield config


def models_of(config: SweepConfig) -> dict[str, str]:
    """Every existing checkpoint of a sweep, by name: a directory or hub id. Raises
    InputError."""
    models: dict[str, str] = {}
    for grid in _grids(config):
        for name, value in (
            *grid.models.items(),
            *((label, path) for label, path, _ in given(grid)),
        ):
            if models.setdefault(name, value) != value:
                raise InputError(
                    f"models: {name!r} is {models[name]!r} in one joined sweep,"
                    f" {value!r} in another"
                )
    return models


def _wanted(config: SweepConfig, grids: Sequence[SweepConfig]) -> dict[str, str]:
    """The existing checkpoints: all, or `only` and those compared with them. Raises
    InputError for an unknown name."""
    dense = list(dict.fromkeys(name for grid in grids for name in grid.models))
    for name in config.only:
        if name not in dense:
            raise unknown("model of `only`:", name, dense)
    bases = {label: base for grid in grids for label, _, base in given(grid)}
    only = config.only or dense
    return {
        name: path
        for name, path in models_of(config).items()
        if name in only or bases.get(name) in only
    }


def _checkpoints(
    grid: SweepConfig,
    grids: Sequence[SweepConfig],
    sources: Mapping[str, Path],
    made: Path,
) -> Iterator[tuple[_Key, CheckpointJob]]:
    """The checkpoints of one of the joined sweeps, without tasks. Equal ones of two
    sweeps have one key."""
    several = len({name for each in grids for name in each.models}) > 1
    usual = spelled_source(grids[0].calibration)
    for model in grid.models:
        if model not in sources:
            continue
        if grid.base not in (None, *sources):
            raise InputError(
                f"only: {model!r} is compared with {grid.base!r}, which is left out"
            )
        base = grid.base if model != grid.base else None
        yield (
            (model, None, None),
            CheckpointJob(name=model, path=sources[model], model=model, base=base),
        )
        prefix = f"{model}-" if several else ""
        pruned = {}
        for name, prune in prunings(grid, sources[model], usual):
            job = CheckpointJob(
                name=prefix + name,
                path=made / (prefix + name),
                model=model,
                base=model,
                prune=prune,
            )
            pruned[name] = prune.model_dump_json(exclude={"source"})
            yield (model, pruned[name], None), job
        for after, name, quantise in quantisations(grid, sources[model], usual, pruned):
            key = (
                model,
                pruned.get(after),
                quantise.model_dump_json(exclude={"source"}),
            )
            before = prefix + after if after in pruned else None
            if before is not None:
                quantise, name = (
                    quantise.model_copy(update={"source": made / before}),
                    f"{after}-{name}",
                )
            name = prefix + name
            job = CheckpointJob(
                name=name,
                path=made / name,
                model=model,
                base=model,
                quantise=quantise,
                after=before,
            )
            yield key, job
    for label, _, base in given(grid):
        if label in sources:
            yield (
                (label, None, None),
                CheckpointJob(name=label, path=sources[label], model=label, base=base),
            )


def _completed(task: EvalConfig, grid: SweepConfig) -> EvalConfig:
    """A task with its sweep's seed and grading, and the options `alike`, as
    defaults."""
    own = {
        name: getattr(grid, name)
        for name in ("seed", "grading")
        if name not in task.model_fields_set
    }
    task = task.model_copy(update={"options": task.options or "alike", **own})
    if task.seed not in task.seeds:
        raise InputError(
            f"tasks: sample_seeds: {', '.join(map(str, task.seeds))}: the run seed"
            f" {task.seed} must be one of them"
        )
    return task


def _merged(
    known: Mapping[str, EvalConfig], tasks: Iterable[EvalConfig]
) -> dict[str, EvalConfig]:
    """A checkpoint's tasks with more tasks; those of one name become one. Raises
    InputError."""
    merged = dict(known)
    for task in tasks:
        name = task_name(task.task, task.name)
        other = merged.setdefault(name, task)
        if other is task:
            continue
        _check_same(
            name,
            other,
            task,
            [
                each
                for each in EvalConfig.model_fields
                if each not in (*_MERGED, "name")
            ],
        )
        one_seed = other.sample_seeds is None and task.sample_seeds is None
        update = {
            "formats": tuple(
                form
                for form in FORMATS
                if form in other.formats or form in task.formats
            ),
            "probes": tuple(
                probe
                for probe in PROBES.names
                if probe in other.probes or probe in task.probes
            ),
            "sample_seeds": (
                None if one_seed else tuple(sorted({*other.seeds, *task.seeds}))
            ),
        }
        merged[name] = other.model_copy(update=update)
    return merged


def _check_same(
    name: str, one: EvalConfig, other: EvalConfig, settings: Iterable[str]
) -> None:
    """Raises InputError if two tasks of one name differ in a setting. A language's
    name and its code are equal."""
    for setting in settings:
        values = getattr(one, setting), getattr(other, setting)
        ours, theirs = values
        if setting == "languages" and None not in values:
            ours, theirs = (tuple(map(code_of, each)) for each in values)
        if ours != theirs:
            raise InputError(
                f"tasks: {name!r} occurs twice, with {setting} {values[0]!r} and"
                f" {values[1]!r}; give one of the two another name (name: ...)"
            )


def _check_bases(jobs: Iterable[CheckpointJob]) -> None:
    """Raises InputError if bases form a circle. A base runs before the checkpoints
    that need it."""
    bases = {job.name: job.base for job in jobs if not job.is_made}
    for name in bases:
        trail = [name]
        while (base := bases.get(trail[-1])) is not None:
            trail.append(base)
            if base in trail[:-1]:
                raise InputError(
                    "base: joined sweeps compare models in a circle:"
                    f" {' -> '.join(trail)}"
                )


def parts_of(config: SweepConfig) -> tuple[tuple[str, ...], ...]:
    """The parts of a sweep whose models share bases, by first model. Fetches
    nothing. Raises InputError as `expand`."""
    jobs = expand(
        config, Path("RUN"), resolve=lambda value: local_directory(value) or Path(value)
    )
    dense = {job.name: job.model for job in jobs if not job.is_made}
    home = {model: model for model in dict.fromkeys(job.model for job in jobs)}
    for job in jobs:
        if job.base is not None and job.base in dense:
            ours, theirs = home[job.model], home[dense[job.base]]
            first = min(ours, theirs, key=list(home).index)
            home = {
                model: first if at in (ours, theirs) else at
                for model, at in home.items()
            }
    # a given compressed one goes with its base
    named = {name for grid in _grids(config) for name in grid.models}
    groups = (
        [model for model, at in home.items() if at == first and model in named]
        for first in home.values()
    )
    return tuple(dict.fromkeys(map(tuple, groups)))


Group = tuple[str, str]  # base, task


def screened_groups(jobs: Sequence[CheckpointJob]) -> dict[Group, tuple[str, ...]]:
    """The checkpoints, no bases, that the gate may decide early, by base and task
    with open answers."""
    by_name = {job.name: job for job in jobs}
    bases = {job.base for job in jobs}
    found: dict[Group, tuple[str, ...]] = {}
    for job in jobs:
        if job.base not in by_name or job.name in bases:
            continue
        for name, task in job.tasks.items():
            both = [task, *filter(None, [by_name[job.base].tasks.get(name)])]
            judged = [
                each
                for each in both
                if "greedy" in each.probes
                and "open" in each.formats
                and not each.is_text
            ]
            if len(judged) == 2:
                found[job.base, name] = (*found.get((job.base, name), ()), job.name)
    return found


def check_screening(jobs: Sequence[CheckpointJob], rule: Screen | None) -> None:
    """Raises InputError if a screened sweep has nothing to screen."""
    if rule is not None and not screened_groups(jobs):
        raise InputError(
            "screen: there is nothing to screen: no compressed checkpoint and its base"
            " share a task with open answers (probe greedy, format open)"
        )
