"""A sweep: the YAML file that a user writes, and the jobs that it expands to. Pure: reads one file, starts nothing.

models: {dense: bundled}                 # name: checkpoint directory
prune:                                   # every method x sparsity (or pattern) x model
  - {method: wanda, sparsity: [0.5, 0.6, 0.7]}
  - {method: sparsegpt, pattern: "2:4"}
calibration: {source: gazetteer, samples: 64, sequence_length: 512}
tasks:
  - {task: gazetteer, items: 40}
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from evaluator.config import EngineConfig, EvalConfig, Frozen
from evaluator.errors import InputError, unknown
from pruning.config import CalibrationConfig, PruneConfig

SCHEMA_VERSION = 1
BUNDLED = "bundled"  # names the model that ships with Resurface wherever a checkpoint is asked for
BUNDLED_MODEL = Path(__file__).parent / "reference_model"
RECIPES = Path(__file__).parent / "recipes"
_Model = TypeVar("_Model", bound=BaseModel)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class PruneSetting(Frozen):
    """One line of the grid: a method at one or several sparsities, or at one or several N:M patterns."""

    method: str
    sparsity: tuple[float, ...] = ()
    pattern: tuple[str, ...] = ()
    calibration: CalibrationConfig | None = None  # None: the sweep's

    @field_validator("sparsity", "pattern", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return value if isinstance(value, list | tuple) else (value,)

    @model_validator(mode="after")
    def _asks_for_something(self) -> PruneSetting:
        if not self.sparsity and not self.pattern:
            raise ValueError("needs a sparsity (0.5) or a pattern (2:4)")
        return self


class Resources(Frozen):
    """How the work is spread. Nothing here changes a result, so nothing here is part of the sweep's digest."""

    engines: int | None = Field(default=None, ge=1)  # None: one per GPU, or one on a CPU machine
    shard_items: int = Field(default=20, ge=1)  # items per Parquet part: what a crash can lose, per engine
    attempts: int = Field(default=3, ge=1)  # engine failures in a row, without a finished shard between, that end a run


class SweepConfig(Frozen):
    """models x pruning settings x tasks."""

    models: dict[str, str]
    base: str | None = None  # the model that models without pruning lines are compared with (`resurface eval --base`)
    prune: tuple[PruneSetting, ...] = ()
    calibration: CalibrationConfig = CalibrationConfig(source="c4")
    tasks: tuple[EvalConfig, ...]
    seed: int = Field(default=0, ge=0)
    engine: EngineConfig = EngineConfig()
    resources: Resources = Resources()

    @model_validator(mode="after")
    def _names(self) -> SweepConfig:
        for name in self.models:
            if not _NAME.fullmatch(name):
                raise ValueError(f"models: name {name!r}: letters, digits, '.', '_' and '-' only")
        if not self.models or not self.tasks:
            raise ValueError("models and tasks: at least one of each is needed")
        if self.base is not None and self.base not in self.models:
            raise ValueError(f"base: {self.base!r} is not one of the models ({', '.join(self.models)})")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointJob:
    """One checkpoint to evaluate; `prune` says how to make it when it is not there to begin with."""

    name: str
    path: Path
    base: str | None
    prune: PruneConfig | None = None


def load_sweep(path: Path) -> SweepConfig:
    """Read and check a sweep file; relative model paths are taken from the file's own directory first.

    Raises InputError naming file, field and value.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"{path}: cannot read the sweep file: {reason}") from error
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: a sweep file is a mapping with models, prune and tasks, not {document!r}"[:200])
    return validated(SweepConfig, document, str(path))


def validated(model: type[_Model], document: Mapping[str, Any], where: str) -> _Model:
    """`model` made from `document`. Raises InputError with the first problem as one line: where, field and value."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"]) or "(top level)"
        if problem["type"] == "extra_forbidden":
            known = _known_keys(model, problem["loc"])
            raise InputError(f"{where}: {unknown('key', str(problem['loc'][-1]), known)}, at {field}") from error
        message = problem["msg"].removeprefix("Value error, ")
        value = "" if problem["type"] == "missing" else f": {json.dumps(problem['input'], default=str)[:120]}"
        raise InputError(f"{where}: {field}{value}: {message}") from error


def _known_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The field names valid where an unknown key stood, found by walking the model's annotations."""
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


def resolve_model(value: str) -> Path:
    """A checkpoint directory from what a user typed: `bundled` or a path."""
    return BUNDLED_MODEL if value == BUNDLED else Path(value).expanduser()


def expand(config: SweepConfig, run_dir: Path) -> list[CheckpointJob]:
    """Every checkpoint of the sweep: each model, then its pruned versions. Raises InputError for a bad setting."""
    jobs: list[CheckpointJob] = []
    for model, value in config.models.items():
        source = resolve_model(value)
        jobs.append(CheckpointJob(name=model, path=source, base=config.base if model != config.base else None))
        for number, setting in enumerate(config.prune):
            cells = [{"sparsity": s} for s in setting.sparsity] + [{"pattern": p} for p in setting.pattern]
            for cell in cells:
                prune = validated(
                    PruneConfig,
                    {
                        "source": source,
                        "method": setting.method,
                        "seed": config.seed,
                        "calibration": None
                        if setting.method == "magnitude"
                        else setting.calibration or config.calibration,
                        **cell,
                    },
                    f"prune.{number}",
                )
                prefix = f"{model}-" if len(config.models) > 1 else ""
                name = f"{prefix}{setting.method}-{next(iter(cell.values()))}".replace(":", "of")
                if setting.calibration is not None:
                    name += "-" + re.sub(r"[^A-Za-z0-9]+", "_", setting.calibration.source).strip("_")
                jobs.append(CheckpointJob(name=name, path=run_dir / "checkpoints" / name, base=model, prune=prune))
    names = [job.name for job in jobs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"checkpoint {name!r} is asked for twice by models and prune")
    return jobs


def digest(document: object) -> str:
    """sha256 of a JSON document with sorted keys."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()
