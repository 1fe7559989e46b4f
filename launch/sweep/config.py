"""A sweep: the YAML file that a user writes. Reading it starts nothing; jobs.py expands it.

models: {dense: bundled}                 # name: checkpoint directory or hub id
prune:                                   # every method x sparsity (or pattern) x model
  - {method: wanda, sparsity: [0.5, 0.6, 0.7]}
  - {method: sparsegpt, pattern: "2:4"}
  - {method: layers, sparsity: 0.25}     # of the layers; heads and channels: of those of each layer
  - {method: drop, pattern: "20-25,28"}  # these layers
compress:                                # every method x scheme x model, and after prunings that are named
  - {method: rtn, scheme: [FP8_DYNAMIC, W8A8], after: [dense, wanda-0.5]}
  - {checkpoint: models/mine-w4a16, label: mine-w4a16}      # one that is there already
calibration: {source: gazetteer, samples: 64, sequence_length: 512}
prompts: {terse: "{{ question }} Answer:"}  # templates that pose tasks beside the paper's wording (prompts.py)
tasks:
  - {task: gazetteer, items: 40}
gate: {max_drop: 2, min_recovery: 98}     # what a compressed checkpoint may lose (evaluator/deciding/thresholds.py)
screen: {items: 100}                      # stops evaluating a checkpoint when the gate is sure (the same file)
include: [main.yaml]                     # other sweeps (files, bundled recipes, or in place), joined with this one
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from evaluator.core.config import Frozen
from evaluator.core.errors import InputError, unknown
from evaluator.deciding.thresholds import Screen, Thresholds
from evaluator.engine.config import EngineConfig
from evaluator.probes.base import Seed
from evaluator.probes.config import EvalConfig
from launch.sweep.document import read_document
from launch.sweep.models import BUNDLED
from launch.sweep.prompts import PromptFile, Prompts, problem_of, prompts_in
from launch.sweep.prunings import OneOrMany, PruneSetting
from pruning.config import CalibrationConfig
from quantising.config import IGNORED
from quantising.config import MethodName as QuantiseName
from quantising.methods import METHODS

SCHEMA_VERSION = 1
DENSE = "dense"  # in `after:`, a model as it is
RECIPES = Path(__file__).parents[1] / "recipes"
_Model = TypeVar("_Model", bound=BaseModel)
_SHOWN = 120  # characters of a wrong value
# Pydantic tells a type of Python's; who writes YAML knows it by another name.
_MEANT = {
    "tuple_type": "a list is needed: [...], or a line with '- ' for each entry",
    "dict_type": "a mapping is needed: {name: value}, or a line 'name: value' for each entry",
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class CompressSetting(Frozen):
    """One line of `compress:`: a method at one or several schemes, or a compressed checkpoint that is there already."""

    method: QuantiseName | None = None
    scheme: OneOrMany[str] = ()
    after: OneOrMany[str] = (DENSE,)  # what is quantised: the models themselves, prunings by their checkpoints' names
    group_size: int | None = None
    ignore: OneOrMany[str] = IGNORED
    recipe: Path | None = None  # llm-compressor's YAML, for method `recipe`
    calibration: CalibrationConfig | None = None  # None: the sweep's
    checkpoint: str | None = None  # a directory or hub id, in place of all these
    base: str | None = None  # the model that it is compared with; None: the only one
    # What the names of its checkpoints end in; the whole name of a given checkpoint.
    label: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")

    @model_validator(mode="after")
    def _asks_for_something(self) -> CompressSetting:
        given = self.model_fields_set - {"checkpoint", "base", "label"}
        if self.checkpoint is not None and (given or self.label is None):
            told = f"takes no {min(given)}" if given else "needs a label, the name of its results"
            raise ValueError(f"checkpoint: {self.checkpoint!r} {told}")
        if self.checkpoint is None and (self.method is None or not self.after):
            raise ValueError(f"needs a method ({', '.join(METHODS.names)}) or a checkpoint")
        if self.checkpoint is None and not self.scheme and self.recipe is None:
            raise ValueError(f"needs a scheme ({', '.join(METHODS[str(self.method)].schemes)})")
        if self.base is not None and self.checkpoint is None:
            raise ValueError(f"base: {self.base!r} applies to a given checkpoint only")
        return self


class Resources(Frozen):
    """How the work is spread. None of it changes a result, and none of it is part of the sweep's digest."""

    # None: as many as have GPUs, or one on each node without GPUs. The driver has a thread for each.
    engines: int | None = Field(default=None, ge=1, le=1000)
    shard_items: int = Field(default=20, ge=1)  # items per Parquet part: what a crash can lose, per engine
    # Failures in a row after which a checkpoint or a prune job is set aside, and an engine retired.
    attempts: int = Field(default=3, ge=1, le=1000)
    # Without a finished step an engine or a prune task is taken for hung, and without an end a load, after this long;
    # after more where longer pauses have ended well. A prune task's first step is a load.
    stall_seconds: int = Field(default=600, ge=1, le=30 * 24 * 3600)
    load_seconds: int = Field(default=1800, ge=1, le=30 * 24 * 3600)
    # For which no engine may have found GPUs before the run ends; at most a month.
    placement_seconds: int = Field(default=600, ge=1, le=30 * 24 * 3600)
    # Keep a base and what is made of it on one type of device, the first that has records of one of them.
    same_device: bool = False
    keep_references: bool = False  # keep the bases' distributions (RUN/references) once the run is finished


class SweepConfig(Frozen):
    """models x pruning settings x tasks, joined with other sweeps.

    Each included sweep keeps its own models, settings, tasks and seed; engine, resources, gate and screen are those of
    the outermost one. Models of one name must be the same model.
    """

    models: dict[str, str] = Field(default_factory=dict)
    base: str | None = None  # the model that models without pruning lines are compared with (`resurface eval --base`)
    prune: tuple[PruneSetting, ...] = ()
    compress: tuple[CompressSetting, ...] = ()
    calibration: CalibrationConfig = CalibrationConfig(source="c4")
    prompts: Prompts = Field(default_factory=dict)
    tasks: tuple[EvalConfig, ...] = ()
    include: tuple[SweepConfig, ...] = ()  # in YAML also files and names of bundled recipes
    only: tuple[str, ...] = ()  # of the models these alone, with what is pruned from them; the outermost sweep's counts
    seed: Seed = 0
    engine: EngineConfig = EngineConfig()
    resources: Resources = Resources()
    gate: Thresholds = Thresholds()  # they judge what was measured, and are not part of a run's identity
    screen: Screen | None = None  # which records are written, not what they hold; None: all of them

    @model_validator(mode="after")
    def _names(self) -> SweepConfig:
        for name in self.models:
            if not _NAME.fullmatch(name):
                raise ValueError(f"models: name {name!r}: letters, digits, '.', '_' and '-' only")
        if bool(self.models) != bool(self.tasks) or not (self.models or self.include):
            raise ValueError("models and tasks: at least one of each is needed")
        if self.prune and not self.models:
            raise ValueError("prune: there are no models to prune")
        if self.compress and not self.models:
            raise ValueError("compress: there are no models to compress")
        if self.prompts and not self.tasks:
            raise ValueError("prompts: there are no tasks to pose; those of included sweeps have prompts of their own")
        if problem := problem_of(self.tasks, self.prompts):
            raise ValueError(problem)
        if self.base is not None and self.base not in self.models:
            raise ValueError(f"base: {self.base!r} is not one of the models ({', '.join(self.models)})")
        return self


def bundled_recipes() -> dict[str, Path]:
    """The files of the bundled recipes, by name."""
    return {file.relative_to(RECIPES).with_suffix("").as_posix(): file for file in sorted(RECIPES.rglob("*.yaml"))}


def find_recipe(value: str, beside: Path = Path()) -> Path:
    """The file that a user means: an existing one, or a bundled recipe by its name (`main`, `small/main`).

    Raises InputError for a name that is neither.
    """
    path = beside / Path(os.path.expanduser(value))
    for file in (path, Path(f"{path}.yaml")):
        if file.is_file():
            return file
    bundled = bundled_recipes()
    name = value.removesuffix(".yaml")
    if name in bundled:
        return bundled[name]
    if path.is_dir():
        raise InputError(f"{path}: cannot read the sweep file: it is a directory, not a file")
    if path.suffix or path.exists():
        raise InputError(f"{path}: cannot read the sweep file: no such file, and no bundled recipe {name!r}")
    raise unknown("recipe", value, bundled)


def load_sweep(path: Path) -> SweepConfig:
    """Read and check a sweep file and those that it includes. Raises InputError naming file, field and value.

    Relative paths of models and tasks are looked for beside the file that names them, then in the current directory.
    """
    return validated(SweepConfig, _document(path, ()), str(path))


def read_prompts(path: Path) -> dict[str, str]:
    """The templates in a file of prompts, or in a sweep file. Raises InputError naming file, template and field."""
    return validated(PromptFile, {"prompts": prompts_in(path)}, str(path)).prompts


def _document(path: Path, including: tuple[Path, ...]) -> dict[str, Any]:
    """The YAML document of a file; the sweeps that it includes replace their names."""
    if path.resolve() in including:
        raise InputError(f"{including[-1]}: include: {path.name!r} includes this file in turn")
    document = read_document(path)
    if not isinstance(document, dict):
        kind = "a list" if isinstance(document, list) else "empty" if document is None else "a single value"
        raise InputError(f"{path}: a sweep file is a mapping with models, prune and tasks; this is {kind}")
    return _with_includes(document, path, (*including, path.resolve()))


def _find_beside(directory: Path, document: dict[str, Any]) -> None:
    """Resolve paths that are relative to the sweep file's directory."""
    models, tasks = document.get("models"), document.get("tasks")
    lines = document.get("compress")
    for line in lines if isinstance(lines, list) else ():
        for name in ("checkpoint", "recipe"):
            value = line.get(name) if isinstance(line, dict) else None
            if isinstance(value, str) and value != BUNDLED and (directory / value).exists():
                line[name] = str(directory / value)
    if isinstance(models, dict):
        for name, value in models.items():
            if isinstance(value, str) and value != BUNDLED and (directory / value).is_dir():
                models[name] = str(directory / value)
    for task in tasks if isinstance(tasks, list) else ():
        if isinstance(task, dict):
            kind, _, value = str(task.get("task")).partition(":")
            if value and (directory / value).exists():
                task["task"] = f"{kind}:{directory / value}"


def _with_includes(document: dict[str, Any], path: Path, including: tuple[Path, ...]) -> dict[str, Any]:
    _find_beside(path.parent, document)
    if isinstance(document.get("prompts"), str):
        document["prompts"] = read_prompts(path.parent / document["prompts"])
    entries = document.get("include", [])
    if not isinstance(entries, list) or not all(isinstance(entry, str | dict) for entry in entries):
        raise InputError(f"{path}: include: {json.dumps(entries, default=str)[:120]}: a list of sweeps is needed")
    included = []
    for number, entry in enumerate(entries):
        if isinstance(entry, dict):
            inner, where = _with_includes(entry, path, including), f"{path}: include.{number}"
        else:
            file = find_recipe(entry, path.parent)
            inner, where = _document(file, including), str(file)
        included.append(validated(SweepConfig, inner, where))
    return document | {"include": included} if included else document


def _dotted(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) or "(top level)"


def validated(
    model: type[_Model],
    document: Mapping[str, Any],
    where: str,
    field_of: Callable[[tuple[int | str, ...]], str] = _dotted,
) -> _Model:
    """Check `document` against `model`. Raises InputError with the first problem: where, field and value.

    `field_of` spells a place in the document as who wrote it would; empty for one that nobody wrote.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        # An unknown key often explains why another one is missing.
        problem = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
        field = field_of(problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = _known_keys(model, problem["loc"])
            raise InputError(f"{where}: {unknown('key', str(problem['loc'][-1]), known)}, at {field}") from error
        message = problem["msg"].removeprefix("Value error, ")
        if not (problem["loc"] and field) and problem["type"] == "value_error":  # the message names the fields
            raise InputError(f"{where}: {message}") from error
        raise InputError(f"{where}: {field}{_value_shown(problem)}: {_MEANT.get(problem['type'], message)}") from error


def _value_shown(problem: ErrorDetails) -> str:
    """The wrong value behind its field, if there is one."""
    if problem["type"] == "missing":
        return ""
    text = json.dumps(problem["input"], default=str)
    return f": {text}" if len(text) <= _SHOWN else f": {text[:_SHOWN]}..."


def _known_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The valid keys at the place of an unknown one, found by walking the model's annotations."""
    fields = model.model_fields
    for part in location[:-1]:
        if isinstance(part, int) or part not in fields:
            continue
        inner = [t for t in _leaf_types(fields[part].annotation) if hasattr(t, "model_fields")]
        if inner:
            fields = inner[0].model_fields
    return list(fields)


def _leaf_types(annotation: Any) -> list[Any]:
    arguments = getattr(annotation, "__args__", None)
    return [leaf for a in arguments for leaf in _leaf_types(a)] if arguments else [annotation]


def digest(document: object) -> str:
    """sha256 of a JSON document with sorted keys."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()
