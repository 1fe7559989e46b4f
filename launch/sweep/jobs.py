"""From a sweep to its jobs: each checkpoint, its making and its tasks.

Several joined sweeps may name one checkpoint, most often the dense baseline. It is one job with merged tasks. Tasks
that differ only in formats, probes and sample seeds become one task with the union of each list. So no prompt is
computed twice. A joined sweep may run a little more than its parts, but never less.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from evaluator.core.errors import InputError, mapping_at, unknown
from evaluator.core.records import FORMATS
from evaluator.core.text import code_of
from evaluator.deciding.thresholds import Screen
from evaluator.probes import PROBES
from evaluator.probes.config import EvalConfig
from evaluator.tasks import Source, task_name
from evaluator.tasks.distractors import DrawnOptions
from launch.sweep.compress import given, name_of, quantisations
from launch.sweep.config import SweepConfig
from launch.sweep.models import local_directory, resolve_model
from launch.sweep.prompts import posed_tasks
from launch.sweep.prunings import PruneSetting, spelled_source
from pruning.config import CalibrationConfig, PruneConfig, Repair, needs_calibration
from quantising.config import QuantiseConfig

# The settings that decide items, candidates and prompts. Tasks with one name must agree on them.
_ITEM_SETTINGS = ("task", "languages", "items", "seed", "options", "template", *Source.model_fields)
_REPAIRED: Mapping[Repair, str] = {"none": "", "least_squares": "+ls"}  # the end of a name
_MERGED = ("formats", "probes", "sample_seeds")
_LONGEST_NAME = 200  # of a checkpoint: names of directories and logs contain it and have at most 255 characters


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointJob:
    """One checkpoint to evaluate. It exists before the run if `prune` and `quantise` are None."""

    name: str
    path: Path
    model: str  # the name of the dense model: itself, or its source
    base: str | None  # the name of the checkpoint to compare it with
    prune: PruneConfig | None = None
    quantise: QuantiseConfig | None = None
    after: str | None = None  # the name of the job to quantise; None: the model itself
    tasks: Mapping[str, EvalConfig]  # by the name of their records

    @property
    def is_made(self) -> bool:
        """Whether the run makes the checkpoint."""
        return self.prune is not None or self.quantise is not None


@dataclass(slots=True)
class _Cell:
    """A checkpoint during the merge of the joined sweeps."""

    model: str
    base: str | None
    prune: PruneConfig | None
    suffix: str
    quantise: QuantiseConfig | None = None
    quantised_as: str = ""  # follows the name of its source
    tasks: dict[str, EvalConfig] = field(default_factory=dict)


def expand(
    config: SweepConfig, run_dir: Path, resolve: Callable[[str], Path] = resolve_model
) -> tuple[CheckpointJob, ...]:
    """Every checkpoint of a sweep: each model, then its pruned versions.

    `resolve` finds a model's directory. `only` leaves other models out and changes no name. Raises InputError for a bad
    setting, and if joined sweeps contradict each other.
    """
    grids = list(_grids(config))
    models = _models(grids)
    wanted = _wanted(config.only, grids)
    sources = {name: resolve(value) for name, value in models.items() if name in wanted}
    dense = [name for grid in grids for name in grid.models]
    usual = spelled_source(grids[0].calibration)
    options = _options_of(run_dir)
    cells: dict[object, _Cell] = {}
    for grid in grids:
        asked: set[object] = set()
        tasks = [_completed(task, grid.seed, options) for task in posed_tasks(grid.tasks, grid.prompts)]
        for cell in _cells(grid, sources, usual):
            key = (cell.model, *(_key(each) for each in (cell.prune, cell.quantise)))
            if key in asked:
                raise InputError(f"checkpoint {_name(cell, dense)!r} occurs twice in models, prune and compress")
            asked.add(key)
            known = cells.setdefault(key, cell)
            known.base = known.base or cell.base
            for task in tasks:
                _merge(known.tasks, task)
    _check_items(cells.values())
    _check_bases(cells.values())
    ordered = sorted(cells.values(), key=lambda cell: list(sources).index(cell.model))
    names = [_name(cell, dense) for cell in ordered]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"checkpoint {name!r} occurs twice in models, prune and compress; give a setting a label")
        if len(name) > _LONGEST_NAME:
            raise InputError(
                f"checkpoint {name[:40]!r}...: its name has {len(name)} characters; the limit is {_LONGEST_NAME}"
            )
    return tuple(_job(cell, name, sources, dense, run_dir) for name, cell in zip(names, ordered, strict=True))


def _key(config: PruneConfig | QuantiseConfig | None) -> str | None:
    return None if config is None else config.model_dump_json(exclude={"source"})


def _job(cell: _Cell, name: str, sources: Mapping[str, Path], dense: Sequence[str], run_dir: Path) -> CheckpointJob:
    made = cell.prune is not None or cell.quantise is not None
    quantise, after = cell.quantise, None
    if quantise is not None and cell.prune is not None:
        after = _name(replace(cell, quantise=None), dense)
        quantise = quantise.model_copy(update={"source": run_dir / "checkpoints" / after})
    return CheckpointJob(
        name=name,
        path=run_dir / "checkpoints" / name if made else sources[cell.model],
        model=cell.model,
        base=cell.base,
        prune=cell.prune if quantise is None else None,
        quantise=quantise,
        after=after,
        tasks=cell.tasks,
    )


def _grids(config: SweepConfig) -> Iterator[SweepConfig]:
    """The joined sweeps that have models, included ones first."""
    for included in config.include:
        yield from _grids(included)
    if config.models:
        yield config


def _models(grids: Sequence[SweepConfig]) -> dict[str, str]:
    models: dict[str, str] = {}
    for grid in grids:
        for name, value in (*grid.models.items(), *((label, path) for label, path, _ in given(grid))):
            if models.setdefault(name, value) != value:
                raise InputError(f"models: {name!r} is {models[name]!r} in one joined sweep, {value!r} in another")
    return models


def _wanted(only: Sequence[str], grids: Sequence[SweepConfig]) -> set[str]:
    """The names of existing checkpoints: all, or those in `only` and the ones compared with them.

    Raises InputError for a name that no model has.
    """
    dense = list(dict.fromkeys(name for grid in grids for name in grid.models))
    for name in only:
        if name not in dense:
            raise unknown("model of `only`:", name, dense)
    bases = {label: base for grid in grids for label, _, base in given(grid)}
    return {name for name in (*dense, *bases) if not only or name in only or bases.get(name) in only}


def _cells(grid: SweepConfig, sources: Mapping[str, Path], usual: CalibrationConfig) -> Iterator[_Cell]:
    for model in (name for name in grid.models if name in sources):
        if grid.base not in (None, *sources):
            raise InputError(f"only: {model!r} is compared with {grid.base!r}, which is left out")
        yield _Cell(model, grid.base if model != grid.base else None, None, "")
        made = list(_pruned(grid, model, sources, usual))
        yield from made
        pruned = {_name(cell, [model]): cell for cell in made}
        for after, quantise, setting in quantisations(grid, sources[model], pruned):
            source = pruned.get(after, _Cell(model, model, None, ""))
            yield replace(source, quantise=quantise, quantised_as=name_of(quantise, setting, usual), tasks={})
    for label, _, base in given(grid):
        if label in sources:
            yield _Cell(label, base, None, "")


def _pruned(grid: SweepConfig, model: str, sources: Mapping[str, Path], usual: CalibrationConfig) -> Iterator[_Cell]:
    for setting in grid.prune:
        for cell in setting.cells():
            observing = needs_calibration(cell["method"], cell["allocation"], cell["repair"])
            calibration = spelled_source(setting.calibration or grid.calibration) if observing else None
            suffix = _suffix(setting, calibration, usual) + _REPAIRED[cell["repair"]]
            wanted = {**cell, "source": sources[model], "seed": grid.seed, "calibration": calibration}
            yield _Cell(model, model, _plain(PruneConfig(**wanted)), suffix)


def _plain(prune: PruneConfig) -> PruneConfig:
    """The method's own group gives the same job as none."""
    usual = prune.model_copy(update={"group": None})
    return usual if usual.comparison == prune.comparison else prune


def _suffix(setting: PruneSetting, calibration: CalibrationConfig | None, usual: CalibrationConfig) -> str:
    if setting.label is not None:
        return f"-{setting.label}"
    if calibration is None or calibration == usual:
        return ""
    return "-" + re.sub(r"[^A-Za-z0-9]+", "_", calibration.source).strip("_")


def _name(cell: _Cell, models: Sequence[str]) -> str:
    """The name of a checkpoint; `models`: the dense ones of all joined sweeps."""
    prefix = f"{cell.model}-" if len(set(models)) > 1 else ""
    parts = [*filter(None, [_pruning_name(cell), cell.quantised_as if cell.quantise is not None else ""])]
    return prefix + "-".join(parts) if parts else cell.model


def _pruning_name(cell: _Cell) -> str:
    if cell.prune is None:
        return ""
    how_much = str(cell.prune.sparsity)
    if cell.prune.sparsity is None:  # "2:4", or a list of layers: "20-25,28"
        how_much = cell.prune.pattern.replace(":", "of").replace("-", "to").replace(",", "_")
    how: list[str] = [] if cell.prune.allocation == "uniform" else [cell.prune.allocation]
    how += [] if cell.prune.group is None else [cell.prune.group]
    return "-".join([cell.prune.method, how_much, *how]) + cell.suffix


def _options_of(run_dir: Path) -> DrawnOptions:
    """The default of `options`: `any` if the directory's run began with it, else `alike`."""
    if not (run_dir / "run.json").exists():
        return "alike"
    from evaluator.store.reading import read_run  # imports pandas

    asked = mapping_at(read_run(run_dir), "identity", "task_settings")
    tasks = [mapping_at(asked, checkpoint, task) for checkpoint in asked for task in mapping_at(asked, checkpoint)]
    return "any" if tasks and not any("options" in task for task in tasks) else "alike"


def _completed(task: EvalConfig, seed: int, options: DrawnOptions) -> EvalConfig:
    """A task with its sweep's seed and the run's `options` as defaults."""
    task = task.model_copy(update={"options": task.options or options})
    if "seed" not in task.model_fields_set:
        task = task.model_copy(update={"seed": seed})
    if task.seed not in task.seeds:
        raise InputError(
            f"tasks: sample_seeds: {', '.join(map(str, task.seeds))}: the run seed {task.seed} must be one of them"
        )
    return task


def _merge(tasks: dict[str, EvalConfig], task: EvalConfig) -> None:
    """Add a task to a checkpoint's tasks; merge it with one of the same name. Raises InputError."""
    name = task_name(task.task, task.name)
    known = tasks.setdefault(name, task)
    if known is task:
        return
    _same(name, known, task, [setting for setting in EvalConfig.model_fields if setting not in (*_MERGED, "name")])
    one_seed = known.sample_seeds is None and task.sample_seeds is None
    seeds = None if one_seed else tuple(sorted({*known.seeds, *task.seeds}))
    tasks[name] = known.model_copy(
        update={
            "formats": tuple(form for form in FORMATS if form in known.formats or form in task.formats),
            "probes": tuple(probe for probe in PROBES.names if probe in known.probes or probe in task.probes),
            "sample_seeds": seeds,
        }
    )


def _check_items(cells: Iterable[_Cell]) -> None:
    """Raises InputError if a task's items differ between checkpoints. Tables compare its records across them."""
    first: dict[str, EvalConfig] = {}
    for cell in cells:
        for name, task in cell.tasks.items():
            _same(name, first.setdefault(name, task), task, _ITEM_SETTINGS)


def _check_bases(cells: Iterable[_Cell]) -> None:
    """Raises InputError if bases form a circle. A base runs before the checkpoints that need it."""
    bases = {cell.model: cell.base for cell in cells if cell.prune is None and cell.quantise is None}
    for name in bases:
        trail = [name]
        while (base := bases.get(trail[-1])) is not None:
            trail.append(base)
            if base in trail[:-1]:
                raise InputError(f"base: joined sweeps compare models in a circle: {' -> '.join(trail)}")


def _same(name: str, one: EvalConfig, other: EvalConfig, settings: Sequence[str]) -> None:
    for setting in settings:
        if _compared(one, setting) != _compared(other, setting):
            raise InputError(
                f"tasks: {name!r} occurs twice, with {setting} {getattr(one, setting)!r} and "
                f"{getattr(other, setting)!r}; give one of the two another name (name: ...)"
            )


def _compared(task: EvalConfig, setting: str) -> object:
    """A setting for comparison: a language's name and its code are equal."""
    if setting == "languages" and task.languages is not None:
        return tuple(map(code_of, task.languages))
    value: object = getattr(task, setting)
    return value


@dataclass(frozen=True, slots=True)
class Part:
    """Models of a sweep that share bases and must run together. `name` is the first model's."""

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
    named = {name for grid in _grids(config) for name in grid.models}  # a given compressed one goes with its base
    groups = ([model for model, at in home.items() if at == first and model in named] for first in home.values())
    return tuple(Part(models) for models in dict.fromkeys(map(tuple, groups)))


Group = tuple[str, str]  # base, task


def screened_groups(jobs: Sequence[CheckpointJob]) -> dict[Group, tuple[str, ...]]:
    """The checkpoints that the gate may decide early, by base and task. Bases are never decided early."""
    bases = {job.name: job for job in jobs if any(other.base == job.name for other in jobs)}
    found: dict[Group, tuple[str, ...]] = {}
    for job in jobs:
        base = bases.get(job.base or "")
        if base is None or job.name in bases:
            continue
        for name, task in job.tasks.items():
            if name in base.tasks and _is_judged(task) and _is_judged(base.tasks[name]):
                found[base.name, name] = (*found.get((base.name, name), ()), job.name)
    return found


def check_screening(jobs: Sequence[CheckpointJob], rule: Screen | None) -> None:
    """Raises InputError if a screened sweep has nothing to screen."""
    if rule is not None and not screened_groups(jobs):
        raise InputError(
            "screen: there is nothing to screen: no compressed checkpoint and its base share a task with open answers "
            "(probe greedy, format open)"
        )


def most_saved(groups: Mapping[Group, Sequence[str]], items: Mapping[str, int], rule: Screen) -> int:
    """The most items that a screened sweep can save. `items`: by task."""
    return sum(len(names) * max(0, items[task] - rule.items) for (_, task), names in groups.items())


def _is_judged(task: EvalConfig) -> bool:
    """Whether the gate can judge a task: it needs open answers."""
    return not task.is_text and "greedy" in task.probes and "open" in task.formats
