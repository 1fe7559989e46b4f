"""From a sweep to its jobs: each checkpoint, its making and its tasks.

Several joined sweeps may name one checkpoint, most often the dense baseline. It is
one job with merged tasks. Tasks that differ only in formats, probes and seeds
become one task with the union of each list. So no prompt is computed twice. A joined
sweep may run a little more than its parts, but never less."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from evaluator.asking.templates import PromptTemplate
from evaluator.checkpoints.served import Endpoint
from evaluator.core.controls import change_of, name_of
from evaluator.core.errors import InputError, Json, unknown
from evaluator.core.records import FORMATS
from evaluator.core.text import code_of
from evaluator.deciding.policy import as_policy, need_known
from evaluator.engine.config import AUTO_CACHE
from evaluator.probes import PROBES
from evaluator.probes.config import EvalConfig
from evaluator.tasks import Source, task_name
from evaluator.tasks.base import AT, PAPER, PLUS
from launch.sweep.compress import given, prunings, quantisations, spelled_source
from launch.sweep.config import SweepConfig
from launch.sweep.models import ModelValue, is_served, local_directory
from launch.sweep.prompts import names_for
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
    "grader",
    "options",
    "few_shot",
    "system",
    "template",
    "context_tokens",
    *Source.model_fields,
)
# a checkpoint's tasks of one name may differ in these
_MERGED = ("formats", "probes", "seeds", "name")
_EQUAL = [name for name in EvalConfig.model_fields if name not in _MERGED]
# of a checkpoint: names of directories and logs contain it and have at most 255
# characters
_LONGEST_NAME = 200


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
    # the same files, served with another cache or as a control
    is_variant: bool = False
    most: int | None = None  # items of each task that a control asks; None: all
    # by the name of their records
    tasks: Mapping[str, EvalConfig] = field(default_factory=dict)

    @property
    def is_made(self) -> bool:
        return self.prune is not None or self.quantise is not None

    @property
    def change(self) -> str | None:
        """Of a control; None for any other checkpoint."""
        return change_of(self.name)

    def with_control(self, change: str, most: int | None) -> "CheckpointJob":
        """Its control, which is compared with itself."""
        return replace(
            self,
            name=name_of(self.name, change),
            base=self.name,
            prune=None,
            quantise=None,
            after=self.name,
            is_variant=True,
            most=most,
        )

    def with_cache(self, kv_cache: str) -> "CheckpointJob":
        """Its variant with another cache, which is compared with the same base; a
        base's with the base itself."""
        return replace(
            self,
            name=f"{self.name}-kv-{kv_cache}",
            base=self.base or self.name,
            prune=None,
            quantise=None,
            after=self.name,
            kv_cache=kv_cache,
            is_variant=True,
        )


Jobs = Sequence[CheckpointJob]


def unfetched(name: str, value: ModelValue, base: Path | None) -> Path:
    """A model's directory as far as it is here; of a served one its base's."""
    return base or local_directory(str(value)) or Path(str(value))


def expand(
    config: SweepConfig,
    run_dir: Path = Path("RUN"),
    fetch: Callable[[str, ModelValue, Path | None], Path] = unfetched,
) -> tuple[CheckpointJob, ...]:
    """Each model, of `only` if given, and its compressed versions, with complete
    tasks. `fetch`: the directory of a model, by name, value, and the base of a served
    one. Raises InputError, also if joined sweeps disagree."""
    grids = list(_grids(config))
    values = _wanted(config, grids)
    bases = _served_bases(grids)
    sources = {}
    for name, value in values.items():
        if not isinstance(value, Endpoint) and name not in bases:
            sources[name] = fetch(name, value, None)
    for name, base in bases.items():
        if name in values:
            sources[name] = fetch(name, values[name], sources[base])
    jobs: dict[str, CheckpointJob] = {}
    for grid in grids:
        tasks = list(_posed_tasks(grid))
        made = run_dir / "checkpoints"
        of_grid = list(_checkpoints(grid, grids, sources, bases, made))
        names = [job.name for job in of_grid]
        # `auto` also serves what others are compared with
        needed = {job.base or job.name for job in of_grid}
        for job in of_grid:
            if names.count(job.name) > 1:
                raise _twice(job.name)
            plain = AUTO_CACHE in grid.kv_cache or job.name in needed
            _join(jobs, job, tasks if plain else ())
            for cache in grid.kv_cache:
                if cache != AUTO_CACHE:
                    _join(jobs, job.with_cache(cache), tasks)
    _check_items(jobs.values())
    _check_bases(jobs.values())
    known = {name for job in jobs.values() for name in job.tasks}
    need_known(as_policy(config.gate), known, "gate")
    order = list(values)
    return tuple(sorted(jobs.values(), key=lambda job: order.index(job.model)))


def _served_bases(grids: Sequence[SweepConfig]) -> dict[str, str]:
    """The served models, each with the model that it was made from. Raises InputError
    where that is not clear."""
    bases: dict[str, str] = {}
    for grid in grids:
        plain = [name for name, value in grid.models.items() if not is_served(value)]
        for name, value in grid.models.items():
            if not is_served(value):
                continue
            base = grid.base
            if base is None and len(plain) == 1:
                (base,) = plain
            if base is None or base not in plain:
                raise InputError(
                    f"models: {name!r} is served: name the model that it was made from"
                    " (base: NAME, or --base DIR)"
                )
            if grid.kv_cache != (AUTO_CACHE,):
                raise InputError(
                    f"kv_cache: {', '.join(grid.kv_cache)}: the server of {name!r}"
                    " chooses its own"
                )
            bases[name] = base
        bases |= {label: base for label, value, base in given(grid) if is_served(value)}
    return bases


def _join(
    jobs: dict[str, CheckpointJob], job: CheckpointJob, tasks: Iterable[EvalConfig]
) -> None:
    """Add a job, or its tasks and base to the same job of an earlier sweep. Raises
    InputError."""
    if len(job.name) > _LONGEST_NAME:
        raise InputError(
            f"checkpoint {job.name[:40]!r}...: its name has {len(job.name)} characters;"
            f" the limit is {_LONGEST_NAME}"
        )
    known = jobs.get(job.name, job)
    if replace(known, base=None, tasks={}) != replace(job, base=None):
        raise _twice(job.name)
    jobs[job.name] = replace(
        known, base=known.base or job.base, tasks=_merged(known.tasks, tasks)
    )


def _twice(name: str) -> InputError:
    return InputError(
        f"checkpoint {name!r} occurs twice in models, prune and compress; give a"
        " setting a label"
    )


def _grids(config: SweepConfig) -> Iterator[SweepConfig]:
    """The joined sweeps that have models, included ones first."""
    for included in config.include:
        yield from _grids(included)
    if config.models:
        yield config


def models_of(config: SweepConfig) -> dict[str, ModelValue]:
    """Every existing checkpoint of a sweep, by name: a directory or hub id. Raises
    InputError."""
    models: dict[str, ModelValue] = {}
    for grid in _grids(config):
        of_grid = dict(grid.models)
        of_grid |= {label: path for label, path, _ in given(grid)}
        for name, value in of_grid.items():
            if models.setdefault(name, value) != value:
                raise InputError(
                    f"models: {name!r} is {models[name]!r} in one joined sweep,"
                    f" {value!r} in another"
                )
    return models


def _wanted(config: SweepConfig, grids: Sequence[SweepConfig]) -> dict[str, ModelValue]:
    """The existing checkpoints: all, or `only` and those compared with them. Raises
    InputError for an unknown name."""
    models = models_of(config)
    if not config.only:
        return models
    dense = [name for grid in grids for name in grid.models]
    for name in config.only:
        if name not in dense:
            raise unknown(
                "model of `only`, which takes no compressed ones:", name, dense
            )
    wanted = {*config.only}
    for grid in grids:
        wanted |= {label for label, _, base in given(grid) if base in config.only}
    return {name: path for name, path in models.items() if name in wanted}


def _checkpoints(
    grid: SweepConfig,
    grids: Sequence[SweepConfig],
    sources: Mapping[str, Path],
    served: Mapping[str, str],
    made: Path,
) -> Iterator[CheckpointJob]:
    """The checkpoints of one of the joined sweeps, without tasks. `served`: the served
    models, with their bases."""
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
        base = served.get(model, base)
        yield CheckpointJob(name=model, path=sources[model], model=model, base=base)
        if model in served:  # there are no weights to compress
            continue
        prefix = f"{model}-" if several else ""
        compressed = CheckpointJob(name="", path=made, model=model, base=model)
        pruned = set()
        for name, prune in prunings(grid, sources[model], usual):
            pruned.add(name)
            yield replace(
                compressed, name=prefix + name, path=made / (prefix + name), prune=prune
            )
        for after, name, quantise in quantisations(grid, sources[model], usual, pruned):
            before = None
            if after in pruned:
                before, name = prefix + after, f"{after}-{name}"
                quantise = quantise.model_copy(update={"source": made / before})
            yield replace(
                compressed,
                name=prefix + name,
                path=made / (prefix + name),
                quantise=quantise,
                after=before,
            )
    for label, _, base in given(grid):
        if label in sources:
            yield CheckpointJob(name=label, path=sources[label], model=label, base=base)


def _posed_tasks(grid: SweepConfig) -> Iterator[EvalConfig]:
    """Every task once per length of its contexts and prompt that poses it, each
    under its own name, with its sweep's seed and grading and the options `alike` as
    defaults. Raises InputError."""
    for task in grid.tasks:
        settings: Json = {"options": task.options or "alike", "prompts": None}
        names = ("seed", "grading", "seeds") if task.draws else ("seed", "grading")
        for name in names:
            if name not in task.model_fields_set:
                settings[name] = getattr(grid, name)
        if settings.get("grading", task.grading) == "paper" and task.grader != "text":
            raise InputError(
                f"task {task.task!r}: grading: paper has the grader text alone"
            )
        seed = settings.get("seed", task.seed)
        seeds = settings.get("seeds", task.seeds)
        if seeds is not None and seed not in seeds:
            raise InputError(
                f"tasks: seeds: {', '.join(map(str, seeds))}: the run seed {seed} must"
                f" be one of them: add it, or set seed: {seeds[0]} (--seed {seeds[0]})"
            )
        posings = product(task.context_tokens, names_for(task, grid.prompts))
        for tokens, prompt in posings:
            settings |= {"context_tokens": (tokens,), "name": task.name}
            if tokens and len(task.context_tokens) > 1:
                settings["name"] = f"{task_name(task.task, task.name)}{AT}{tokens}"
            settings["template"] = task.usual_template
            if task.suite and prompt == PAPER and not task.is_text:
                plain = task_name(task.task, settings["name"])
                settings["name"] = plain + PLUS + task.suite
            if prompt != PAPER:
                plain = task_name(task.task, settings["name"])
                settings["name"] = plain + PLUS + prompt
                template = PromptTemplate(name=prompt, text=grid.prompts[prompt])
                settings["template"] = template
            yield task.model_copy(update=settings)


def _merged(
    known: Mapping[str, EvalConfig], tasks: Iterable[EvalConfig]
) -> dict[str, EvalConfig]:
    """A checkpoint's tasks with more tasks; those of one name become one. Raises
    InputError."""
    merged = dict(known)
    for task in tasks:
        name = task_name(task.task, task.name)
        if name not in merged:
            merged[name] = task
            continue
        other = merged[name]
        _check_same(name, other, task, _EQUAL)
        formats, probes = {*other.formats, *task.formats}, {*other.probes, *task.probes}
        seeds = None
        if other.seeds is not None or task.seeds is not None:
            seeds = tuple(sorted({*other.run_seeds, *task.run_seeds}))
        update = {
            "formats": tuple(each for each in FORMATS if each in formats),
            "probes": tuple(each for each in PROBES.names if each in probes),
            "seeds": seeds,
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
        compared = list(values)
        if setting == "languages" and None not in values:
            compared = [tuple(map(code_of, languages)) for languages in values]
        if compared[0] != compared[1]:
            raise InputError(
                f"tasks: {name!r} occurs twice, with {setting} {values[0]!r} and"
                f" {values[1]!r}; give one of the two another name (name: ...)"
            )


def _check_items(jobs: Iterable[CheckpointJob]) -> None:
    """Raises InputError if a task's items differ between checkpoints: tables compare
    its records."""
    first: dict[str, EvalConfig] = {}
    for job in jobs:
        for name, task in job.tasks.items():
            _check_same(name, first.setdefault(name, task), task, _ITEM_SETTINGS)


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
    jobs = expand(config)
    model_of = {job.name: job.model for job in jobs}
    part = {model: model for model in model_of.values()}  # by the first of its models
    order = list(part)
    for job in jobs:
        joined = part[job.model], part[model_of[job.base or job.name]]
        first = min(joined, key=order.index)
        for model, home in part.items():
            if home in joined:
                part[model] = first
    # a given compressed one goes with its base
    dense = {name for grid in _grids(config) for name in grid.models}
    parts: dict[str, list[str]] = {}
    for model, home in part.items():
        if model in dense:
            parts.setdefault(home, []).append(model)
    return tuple(map(tuple, parts.values()))
