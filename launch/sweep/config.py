"""A sweep: a user's YAML file. Reading starts nothing; jobs.py expands it.

models: {dense: bundled}                 # name: checkpoint directory or hub id
prune:                                   # every method x sparsity (or pattern) x model
  - {method: wanda, sparsity: [0.5, 0.6, 0.7]}
  - {method: sparsegpt, pattern: "2:4"}
  - {method: layers, sparsity: 0.25}     # a quarter of the layers
  - {method: drop, pattern: "20-25,28"}  # these layers
compress:                                # every method x scheme x model; `after` names
                                         prunings
  - {method: rtn, scheme: [FP8_DYNAMIC, W8A8], after: [dense, wanda-0.5]}
  - {method: reap, experts: 0.25}        # removes a quarter of each layer's experts
  - {checkpoint: models/mine-w4a16, label: mine-w4a16}      # an existing checkpoint
kv_cache: [auto, fp8]                    # every checkpoint with each cache; the dense
                                         ones always with auto
controls: [repeat]                       # each base once more: the noise floor
                                         (evaluator/core/controls.py)
calibration: {source: gazetteer, samples: 64, sequence_length: 512}
prompts: {terse: "{{ question }} Answer:"}  # more prompts than the paper's (prompts.py)
grading: paper                           # strict (default), or the paper's containment
tasks:
  - {task: gazetteer, items: 40}
  - {suite: zero-shot}                   # its tasks; zero-shot:DIR reads DIR/<task>
gate: {max_drop: 2, min_recovery: 98}     # what a compressed checkpoint may lose
(evaluator/deciding/thresholds.py)
                                          is sure (the same file)
include: [main.yaml]                     # other sweeps (files, bundled recipes, or in
                                         place), joined with this one
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from evaluator.checkpoints.served import Endpoint
from evaluator.core.config import Day, Frozen, validated
from evaluator.core.controls import NONE, checked
from evaluator.core.document import read_document
from evaluator.core.errors import InputError, Json, meant, nearest, rows_at, unknown
from evaluator.core.records import Grading
from evaluator.deciding.policy import Stated
from evaluator.deciding.thresholds import Thresholds
from evaluator.engine.config import AUTO_CACHE, ENGINES, EngineConfig
from evaluator.probes.config import EvalConfig
from evaluator.probes.item import Seed, each_once
from evaluator.tasks import TASKS
from launch.sweep.models import BUNDLED
from launch.sweep.prompts import PromptFile, Prompts, problem_of
from pruning.config import USUAL, CalibrationConfig, PruneConfig, Selection
from quantising.config import MethodName
from quantising.methods import METHODS
from quantising.methods.base import IGNORED

SCHEMA_VERSION = 2
_MOST_SHARING = 16
DENSE = "dense"  # in `after:`, a model as it is
_NEEDED = {"prune": "models", "compress": "models", "prompts": "tasks"}
RECIPES = Path(__file__).parents[1] / "recipes"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_Value = TypeVar("_Value")
# A single value is a list of one.
OneOrMany = Annotated[
    tuple[_Value, ...],
    BeforeValidator(
        lambda value: value if isinstance(value, list | tuple) else (value,)
    ),
]


def _sharing(value: Any) -> Any:
    """`engines_per_gpu`, also as an option. Raises ValueError."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if number != "auto" and (
        type(number) is not int or not 1 <= number <= _MOST_SHARING
    ):
        raise ValueError(f"must be auto, or a number from 1 to {_MOST_SHARING}")
    return number


def _controls(value: Any) -> Any:
    """`controls`, of which `none` is an empty list. Raises ValueError."""
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        return given
    changes = tuple(each for each in map(str, given) if each != NONE)
    if changes and len(changes) < len(given):
        raise ValueError(f"{NONE} goes with no other control")
    each_once(changes or None)
    try:
        return tuple(map(checked, changes))
    except InputError as error:
        raise ValueError(str(error)) from error


def tasks_of_suite(suite: str) -> list[str]:
    """Raises InputError for an unknown one."""
    known = dict.fromkeys(name for task in TASKS for name in task.suites)
    if suite not in known:
        raise unknown("suite", suite, known)
    return [task.name for task in TASKS if suite in task.suites]


def _with_suites(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """`tasks`, with its tasks in place of a suite. Raises ValueError for an unknown
    one; errors count the entries as they were given."""
    tasks, places = list[Any](), list[int]()
    for place, entry in enumerate(value if isinstance(value, list | tuple) else ()):
        given = entry if isinstance(entry, dict) else {}
        if given.get("suite") is None or given.get("task") is not None:
            tasks.append(entry)
            places.append(place)
            continue
        suite, colon, folder = str(given["suite"]).partition(":")
        try:
            names = tasks_of_suite(suite)
        except InputError as error:
            raise ValueError(str(error)) from error
        for name in names:
            at = f"{name}:{folder}/{name}" if colon else name
            tasks.append({**given, "suite": suite, "task": at})
            places.append(place)
    try:
        return check(tasks or value)
    except ValidationError as error:
        problems: list[Any] = [*error.errors()]
        for problem in problems:
            if at := problem["loc"]:
                problem["loc"] = (places[at[0]], *at[1:])
        raise ValidationError.from_exception_data(error.title, problems) from error


class PruneSetting(Selection):
    """One line of the grid: a method with sparsities or patterns."""

    sparsity: OneOrMany[float] = ()
    pattern: OneOrMany[str] = ()
    calibration: CalibrationConfig | None = None  # None: the sweep's
    # The end of its checkpoints' names; None: the calibration's source, unless it is
    # the usual one.
    label: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._]*$")

    @model_validator(mode="after")
    def _is_possible(self) -> PruneSetting:
        """Raises ValueError for an impossible pruning. A later check could not name
        the line of the file."""
        if not self.sparsity and not self.pattern:
            raise ValueError(
                "needs a sparsity (0.5) or a pattern (2:4; for method drop 20-25)"
            )
        for cell in self.cells():
            try:
                PruneConfig(
                    source=Path(), calibration=self.calibration or USUAL, **cell
                )
            except ValidationError as error:
                problem = error.errors()[0]
                field = ".".join(map(str, problem["loc"]))
                message = problem["msg"].removeprefix("Value error, ")
                raise ValueError(f"{field}: {message}" if field else message) from error
        return self

    def cells(self) -> Iterator[Json]:
        """The settings of each pruning, without the calibration."""
        patterns: list[Json] = [{"sparsity": share} for share in self.sparsity]
        patterns += [{"pattern": pattern} for pattern in self.pattern]
        shared = {name: getattr(self, name) for name in Selection.model_fields}
        for pattern in patterns:
            yield shared | pattern


class CompressSetting(Frozen):
    """One line of `compress:`: a method with one or several schemes, or an existing
    compressed checkpoint."""

    method: MethodName | None = None
    scheme: OneOrMany[str] = ()
    # of method `reap`: shares of each layer's experts
    experts: OneOrMany[float] = ()
    # the sources: the models themselves, or prunings by their checkpoints' names
    after: OneOrMany[str] = (DENSE,)
    group_size: int | None = None
    ignore: OneOrMany[str] = IGNORED
    recipe: Path | None = Field(
        default=None, description="llm-compressor's YAML, for method recipe"
    )
    calibration: CalibrationConfig | None = None  # None: the sweep's
    checkpoint: str | None = None  # a directory or hub id; excludes all settings above
    base: str | None = None  # the model to compare it with; None: the only one
    # The end of its checkpoints' names; the whole name of a given checkpoint.
    label: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")

    @model_validator(mode="after")
    def _is_complete(self) -> CompressSetting:
        if self.checkpoint is not None:
            more = self.model_fields_set - {"checkpoint", "base", "label"}
            problem = ""
            if more:
                problem = f"takes no {min(more)}"
            elif self.label is None:
                problem = "needs a label, the name of its results"
            if problem:
                raise ValueError(f"checkpoint: {self.checkpoint!r} {problem}")
        elif self.method is None or not self.after:
            raise ValueError(
                f"needs a method ({', '.join(METHODS.names)}) or a checkpoint"
            )
        elif METHODS[self.method].takes_experts:
            if not self.experts or self.after != (DENSE,):
                raise ValueError("needs experts (0.25), and no after")
        elif not self.scheme and self.recipe is None:
            schemes = ", ".join(METHODS[self.method].schemes)
            raise ValueError(f"needs a scheme ({schemes})")
        elif self.base is not None:
            raise ValueError(f"base: {self.base!r} applies to a given checkpoint only")
        return self


class Resources(Frozen):
    """The resources of a run. They change no result and are not part of the sweep's
    digest."""

    # None: one per GPU (or per tensor_parallel GPUs), or one per node without GPUs.
    # Each has a thread in the driver.
    engines: int | None = Field(
        default=None, ge=1, le=1000, description="engines to run; default one per GPU"
    )
    # Engines that share a GPU, and its gpu_memory_utilization. `auto`: up to four
    # (`launch/run/decide/sharing.py`).
    engines_per_gpu: Annotated[int | Literal["auto"], BeforeValidator(_sharing)] = (
        Field(
            default="auto", description="engines on one GPU; auto: while one more gains"
        )
    )
    # fewer of long answers
    shard_items: int = Field(
        default=20, ge=1, le=10**6, description="items per file, which a crash can lose"
    )
    # The run sets a checkpoint or a prune job aside, and retires an engine, after this
    # many failures in a row.
    attempts: int = Field(default=3, ge=1, le=1000)
    # The run treats an engine or a prune task as hung after this long without a step,
    # or a load after this long without an end. It waits longer if longer pauses ended
    # well. A prune task's first step is a load.
    stall_seconds: int = Field(default=600, ge=1, le=30 * 24 * 3600)
    load_seconds: int = Field(default=1800, ge=1, le=30 * 24 * 3600)
    # The run ends after this long without GPUs for any engine; at most a month.
    placement_seconds: int = Field(default=600, ge=1, le=30 * 24 * 3600)
    price_per_gpu_hour: float | None = Field(
        default=None, ge=0, description="of one GPU, in any currency: table price"
    )
    # RUN/references, after the run
    keep_references: bool = Field(
        default=False, description="keep the distributions of probe fidelity"
    )


class SweepConfig(Frozen):
    """models x pruning settings x tasks, joined with other sweeps.

    Each included sweep keeps its own models, settings, tasks, seed and grading. The
    outermost sweep decides engine, resources, controls and gate. Models with one name
    must be the same model."""

    models: dict[
        str,
        Annotated[
            Annotated[str, Tag("Path")] | Annotated[Endpoint, Tag("Endpoint")],
            Discriminator(
                lambda value: (
                    "Endpoint" if isinstance(value, dict | Endpoint) else "Path"
                )
            ),
        ],
    ] = Field(default_factory=dict)
    # the model to compare other models with (`resurface eval --base`)
    base: str | None = None
    prune: tuple[PruneSetting, ...] = ()
    compress: tuple[CompressSetting, ...] = ()
    kv_cache: OneOrMany[str] = Field(
        default=(AUTO_CACHE,),
        title="D[,D]",
        description=(
            "of cached keys and values: auto, fp8, fp8_e5m2, ...; a variant each"
        ),
    )
    # under changes that should not matter (evaluator.core.controls, controls.py); the
    # outermost sweep decides
    controls: Annotated[tuple[str, ...] | None, BeforeValidator(_controls)] = Field(
        default=None,
        title="C[,C]",
        description=(
            "the base once more, for the noise floor: repeat, order, batch, dtype:D,"
            " engine:E; beside `order` where noise is expected; none: no control at all"
        ),
    )
    # What chat templates take for today; None: the day of the run's first call. The
    # outermost sweep decides.
    date: Day | None = None
    calibration: CalibrationConfig = USUAL
    prompts: Prompts = Field(default_factory=dict)
    tasks: Annotated[tuple[EvalConfig, ...], WrapValidator(_with_suites)] = ()
    # in YAML also files and names of bundled recipes
    include: tuple[SweepConfig, ...] = ()
    # only these models and their compressed versions; the outermost sweep decides
    only: tuple[str, ...] = ()
    seed: Seed = 0
    # of each task with drawn answers
    seeds: tuple[Seed, ...] | None = None
    grading: Grading = "strict"  # the rule by which an answer is right
    engine: EngineConfig = EngineConfig()
    resources: Resources = Resources()
    # not part of a run's identity: they only judge its records
    gate: Stated = Thresholds()

    @field_validator("kv_cache", "seeds")
    @classmethod
    def _each_once(cls, value: tuple[object, ...] | None) -> tuple[object, ...] | None:
        each_once(value)
        return value

    @model_validator(mode="after")
    def _names(self) -> SweepConfig:
        if self.engine.kv_cache != AUTO_CACHE:
            raise ValueError(
                f"engine.kv_cache: {self.engine.kv_cache!r} belongs to kv_cache, beside"
                " models"
            )
        for name in self.models:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"models: name {name!r}: letters, digits, '.', '_' and '-' only"
                )
        if bool(self.models) != bool(self.tasks) or not (self.models or self.include):
            raise ValueError("models and tasks: at least one of each is needed")
        for name, needed in _NEEDED.items():
            if getattr(self, name) and not getattr(self, needed):
                raise ValueError(f"{name}: there are no {needed} for it here")
        if self.seeds is not None and not any(task.draws for task in self.tasks):
            raise ValueError("seeds: no task here has a probe that draws answers")
        if problem := problem_of(self.tasks, self.prompts):
            raise ValueError(problem)
        if self.base is not None and self.base not in self.models:
            raise ValueError(
                f"base: {self.base!r} is not one of the models"
                f" ({', '.join(self.models)}){nearest(self.base, self.models)}"
            )
        shared, gpus = self.resources.engines_per_gpu, self.engine.tensor_parallel
        if gpus > 1 and shared not in (1, "auto"):
            raise ValueError(
                f"resources.engines_per_gpu: {shared}: engines of tensor_parallel"
                f" {gpus} share no GPU"
            )
        return self


def bundled_recipes() -> dict[str, Path]:
    """The files of the bundled recipes, by name."""
    return {
        file.relative_to(RECIPES).with_suffix("").as_posix(): file
        for file in sorted(RECIPES.rglob("*.yaml"))
        if file.name != "paper_values.yaml"
    }


def find_recipe(value: str, beside: Path = Path()) -> Path:
    """An existing file, or a bundled recipe by its name (`main`, `small/main`).
    Raises InputError for neither."""
    path = beside / Path(os.path.expanduser(value))
    for file in (path, Path(f"{path}.yaml")):
        if file.is_file():
            return file
    bundled = bundled_recipes()
    name = value.removesuffix(".yaml")
    if name in bundled:
        return bundled[name]
    if path.is_dir():
        raise InputError(
            f"{path}: cannot read the sweep file: it is a directory, not a file"
        )
    if path.suffix or path.exists():
        raise InputError(
            f"{path}: cannot read the sweep file: no such file, and no bundled recipe"
            f" {name!r}{meant(path)}"
        )
    raise unknown("recipe", value, bundled)


def load_sweep(path: Path) -> SweepConfig:
    """Read and check a sweep file and its includes. Raises InputError naming file,
    field and value."""
    return with_served_caches(
        validated(SweepConfig, _document(path, ()), str(path)), f"{path}: kv_cache"
    )


def rechecking(config: SweepConfig) -> SweepConfig:
    """The sweep and what it includes, with each task's cut answers posed again."""
    again = {"recheck_cut": True}
    tasks = tuple(task.model_copy(update=again) for task in config.tasks)
    included = tuple(map(rechecking, config.include))
    return config.model_copy(update={"tasks": tasks, "include": included})


def with_served_caches(config: SweepConfig, place: str) -> SweepConfig:
    """The sweep. Raises InputError, after `place`, if its engine serves no cache of
    a dtype that it or a part names."""
    kind, parts = ENGINES[config.engine.kind], [config]
    # a cluster has other machines
    served = kind.cache_dtypes(not os.environ.get("RAY_ADDRESS"))
    for part in parts:
        parts += part.include
        for value in part.kv_cache:
            if value not in served:
                raise InputError(
                    f"{place}: {value!r}: engine {kind.name} supports"
                    f" {', '.join(served)} here"
                )
    return config


def read_prompts(path: Path) -> dict[str, str]:
    """The templates in a file of prompts, or in a sweep file. Raises InputError
    naming file, template and field."""
    document = read_document(path, "the file of prompts")
    inner = document.get("prompts") if isinstance(document, dict) else None
    found = inner if isinstance(inner, dict) else document
    if not isinstance(found, dict) or not found:
        raise InputError(f"{path}: a file of prompts maps names to templates")
    return validated(PromptFile, {"prompts": found}, str(path)).prompts


def _document(path: Path, including: tuple[Path, ...]) -> Json:
    """The YAML document of a file, with included sweeps in place of their names."""
    if path.resolve() in including:
        raise InputError(
            f"{including[-1]}: include: {path.name!r} includes this file in turn"
        )
    document = read_document(path)
    if not isinstance(document, dict):
        raise InputError(
            f"{path}: a sweep file is a mapping with models, prune and tasks"
        )
    return _with_includes(document, path, (*including, path.resolve()))


def _find_beside(directory: Path, document: Json) -> None:
    """Resolve paths that are relative to the sweep file's directory. What has another
    form is the model's to refuse."""

    def resolve(holder: Any, name: str) -> None:
        value = holder.get(name)
        if isinstance(value, str) and value != BUNDLED and (directory / value).exists():
            holder[name] = str(directory / value)

    models = document.get("models")
    if isinstance(models, dict):
        for name in models:
            resolve(models, name)
    for line in rows_at(document, "compress"):
        resolve(line, "checkpoint")
        resolve(line, "recipe")
    for task, name in product(rows_at(document, "tasks"), ("task", "suite")):
        kind, _, value = str(task.get(name)).partition(":")
        if value and (directory / value).exists():
            cast("Json", task)[name] = f"{kind}:{directory / value}"


def _with_includes(document: Json, path: Path, including: tuple[Path, ...]) -> Json:
    _find_beside(path.parent, document)
    if isinstance(document.get("prompts"), str):
        document["prompts"] = read_prompts(path.parent / document["prompts"])
    entries = document.get("include", [])
    if not isinstance(entries, list) or not all(
        isinstance(entry, str | dict) for entry in entries
    ):
        raise InputError(
            f"{path}: include: {json.dumps(entries, default=str)[:120]}: a list of"
            " sweeps is needed"
        )
    included = []
    for number, entry in enumerate(entries):
        if isinstance(entry, dict):
            inner = _with_includes(entry, path, including)
            where = f"{path}: include.{number}"
        else:
            file = find_recipe(entry, path.parent)
            inner, where = _document(file, including), str(file)
        included.append(validated(SweepConfig, inner, where))
    return document | {"include": included} if included else document
