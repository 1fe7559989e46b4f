"""Sends a run that has ended to an experiment tracker (`--track`): its settings, the
numbers of its headline, page, tables and records."""

from __future__ import annotations

import importlib
import math
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.core.errors import Document, InputError, one_line, unknown

if TYPE_CHECKING:
    import pandas as pd

PROJECT = "resurface"
_FOLDERS = ("report", "tables", "records")
_NOT_IN_NAMES = re.compile(r"[^\w./ -]")
_VALUE = 500  # characters of a parameter: the limit of MLflow's older servers


def to_mlflow(
    module: Any, run: Path, settings: Document, headline: pd.DataFrame
) -> None:
    """A run in `MLFLOW_EXPERIMENT_NAME`, or `resurface`."""
    module.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT)
    with module.start_run(run_name=run.name):
        for name, value in settings.items():
            module.log_param(name, str(value)[:_VALUE])
        for name, number in numbers_of(headline).items():
            module.log_metric(_NOT_IN_NAMES.sub("_", name), number)
        for folder in _FOLDERS:
            module.log_artifacts(str(run / folder), artifact_path=folder)


def to_wandb(
    module: Any, run: Path, settings: Document, headline: pd.DataFrame
) -> None:
    """A run in project `WANDB_PROJECT`, or `resurface`."""
    with module.init(
        project=os.environ.get("WANDB_PROJECT") or PROJECT,
        name=run.name,
        config=dict(settings),
        settings=module.Settings(silent=True),  # the terminal is ours
    ) as sent:
        sent.log(numbers_of(headline))
        artifact = module.Artifact(f"{sent.id}-files", type="report")
        for folder in _FOLDERS:
            artifact.add_dir(str(run / folder), name=folder)
        sent.log_artifact(artifact)


# A run directory, its settings and its headline.
Tracker = Callable[[Path, Document, "pd.DataFrame"], None]
TRACKERS: Mapping[str, Callable[..., None]] = {"mlflow": to_mlflow, "wandb": to_wandb}


def tracker_of(name: str) -> Tracker:
    """Raises InputError if its name is unknown, or if it cannot be imported."""
    if name not in TRACKERS:
        raise unknown("--track", name, TRACKERS)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"--track {name}: it is not installed: pip install 'resurface[track]' ({error})"
        ) from error
    except Exception as error:  # a dependency in an incompatible version
        raise InputError(
            f"--track {name}: cannot be imported: {one_line(error)}"
        ) from error
    return partial(TRACKERS[name], module)


def numbers_of(headline: pd.DataFrame) -> dict[str, float]:
    """The finite numbers, as `checkpoint/task/column`."""
    numbers = {}
    for row in headline.to_dict("records"):
        for name, value in row.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and math.isfinite(value):
                numbers[f"{row['checkpoint']}/{row['task']}/{name}"] = float(value)
    return numbers
