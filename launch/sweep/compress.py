"""The lines of `compress:` in a sweep: the quantised checkpoints that they request, and their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evaluator.core.errors import InputError, unknown
from launch.sweep.config import DENSE, CompressSetting, SweepConfig, validated
from launch.sweep.document import read_document
from launch.sweep.prunings import spelled_source
from pruning.config import CalibrationConfig
from quantising.config import QuantiseConfig
from quantising.methods import METHODS
from quantising.schemes import SCHEMES


def quantisations(
    grid: SweepConfig, source: Path, prunings: Mapping[str, object]
) -> Iterator[tuple[str, QuantiseConfig, CompressSetting]]:
    """The quantisations of one model: their source (DENSE or a name in `prunings`), settings and line.

    `source` is the dense model's directory. Raises InputError for an impossible line.
    """
    for number, setting in enumerate(grid.compress):
        if setting.method is None:
            continue
        place = f"compress.{number}"
        method = METHODS[setting.method]
        recipe = None if setting.recipe is None else _read_recipe(setting.recipe, place)
        calibration = spelled_source(setting.calibration or grid.calibration) if method.needs_calibration else None
        for scheme in setting.scheme or (_scheme_of(setting.recipe, place),):
            wanted: dict[str, Any] = {"source": source, "scheme": scheme, "recipe": recipe, "seed": grid.seed}
            wanted |= {name: getattr(setting, name) for name in ("method", "group_size", "ignore")}
            config = validated(QuantiseConfig, wanted | {"calibration": calibration}, place)
            for after in setting.after:
                if after != DENSE and after not in prunings:
                    raise InputError(f"{place}: after: {unknown('pruning', after, (DENSE, *prunings))}")
                yield after, _plain(config), setting


def given(grid: SweepConfig) -> Iterator[tuple[str, str, str]]:
    """The given checkpoints: label, directory or hub id, and base. Raises InputError."""
    for number, setting in enumerate(grid.compress):
        if setting.checkpoint is None or setting.label is None:
            continue
        place = f"compress.{number}"
        base = setting.base or grid.base or (next(iter(grid.models)) if len(grid.models) == 1 else None)
        if base is None:
            raise InputError(f"{place}: base: several models need one to be named: {', '.join(grid.models)}")
        if base not in grid.models:
            raise InputError(f"{place}: base: {unknown('model', base, grid.models)}")
        if setting.label in grid.models:
            raise InputError(f"{place}: label: {setting.label!r} is the name of a model")
        yield setting.label, setting.checkpoint, base


def name_of(config: QuantiseConfig, setting: CompressSetting, usual: CalibrationConfig) -> str:
    """The part of a checkpoint's name that follows the name of its source."""
    words = [config.method, config.scheme.lower()]
    if setting.recipe is not None:
        words = [re.sub(r"[^A-Za-z0-9]+", "_", setting.recipe.stem).strip("_") or "recipe"]
    if config.group_size is not None:
        words.append(f"g{config.group_size}")
    if setting.label is not None:
        words.append(setting.label)
    elif config.calibration is not None and config.calibration != usual:
        words.append(re.sub(r"[^A-Za-z0-9]+", "_", config.calibration.source).strip("_"))
    return "-".join(words)


def _plain(config: QuantiseConfig) -> QuantiseConfig:
    """The scheme's own group size gives the same job as none."""
    own = SCHEMES[config.scheme].group if config.scheme in SCHEMES else None
    return config.model_copy(update={"group_size": None}) if config.group_size == own else config


def _read_recipe(file: Path, place: str) -> str:
    try:
        document = read_document(file, "the recipe")
        if isinstance(document, dict):
            return file.read_text(encoding="utf-8")
    except InputError as error:
        raise InputError(f"{place}: recipe: {error}") from error
    raise InputError(f"{place}: recipe: {file}: a recipe is a mapping of stages")


def _scheme_of(file: Path | None, place: str) -> str:
    """The scheme that a recipe names. Raises InputError if it names none or several."""
    named = [] if file is None else sorted(set(_schemes_in(read_document(file))))
    if len(named) != 1:
        found = "none" if not named else ", ".join(named)
        raise InputError(f"{place}: recipe: {file}: its schemes are {found}: choose the one to serve (scheme: W4A16)")
    return named[0]


def _schemes_in(document: object) -> Iterator[str]:
    if isinstance(document, dict):
        for key, value in document.items():
            if key == "scheme" and isinstance(value, str):
                yield value.upper()
            else:
                yield from _schemes_in(value)
    elif isinstance(document, list):
        for value in document:
            yield from _schemes_in(value)
