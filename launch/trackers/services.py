"""The experiment trackers of `--track`. None is a dependency: each is imported on demand."""

from __future__ import annotations

import importlib
import os
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evaluator.core.errors import InputError, one_line, unknown
from launch.trackers.tracking import Numbers, Parameters, Tracker

PROJECT = "resurface"
_NOT_IN_NAMES = re.compile(r"[^\w./ -]")
_VALUE = 500  # characters of a parameter: the limit of MLflow's older servers


class MLflow:
    """A sweep is a run in experiment `MLFLOW_EXPERIMENT_NAME`, or `resurface`; each checkpoint is a child run."""

    name = "mlflow"

    def __init__(self, module: Any) -> None:
        self._module = module
        self._client: Any = None
        self._experiment = ""

    def begin(self, run: str, known: str | None, parameters: Parameters) -> str:
        self._client = self._module.MlflowClient()
        named = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        found = self._client.get_experiment_by_name(named)
        self._experiment = self._client.create_experiment(named) if found is None else found.experiment_id
        if known is not None:
            self._client.update_run(known, status="RUNNING")
            return known
        return self._made(run, {}, parameters)

    def checkpoint(self, parent: str, name: str, parameters: Parameters, numbers: Numbers, folder: Path) -> str:
        child = self._made(name, {"mlflow.parentRunId": parent}, parameters)
        for key, number in numbers.items():
            self._client.log_metric(child, _named(key), number)
        self._client.log_artifacts(child, str(folder))
        self._client.set_terminated(child)
        return child

    def end(self, run: str, files: Sequence[Path], finished: bool) -> None:
        for file in files:
            self._client.log_artifact(run, str(file), artifact_path=file.parent.name)
        self._client.set_terminated(run, status="FINISHED" if finished else "FAILED")

    def _made(self, name: str, tags: dict[str, str], parameters: Parameters) -> str:
        made: str = self._client.create_run(self._experiment, run_name=name, tags=tags).info.run_id
        for key, value in parameters.items():
            self._client.log_param(made, _named(key), value[:_VALUE])
        return made


class WandB:
    """A sweep is a group in project `WANDB_PROJECT`, or `resurface`, with one run for itself and one per checkpoint."""

    name = "wandb"

    def __init__(self, module: Any) -> None:
        self._module = module
        self._group = ""
        self._parameters: dict[str, str] = {}

    def begin(self, run: str, known: str | None, parameters: Parameters) -> str:
        """Only choose an id. W&B allows one run at a time in a process, so `end` makes the sweep's own run."""
        self._group = run
        self._parameters = dict(parameters)
        return known or f"{_letters(run)}-{secrets.token_hex(4)}"

    def checkpoint(self, parent: str, name: str, parameters: Parameters, numbers: Numbers, folder: Path) -> str:
        return self._logged(f"{parent}-{_letters(name)}", name, parameters, numbers, [folder])

    def end(self, run: str, files: Sequence[Path], finished: bool) -> None:
        self._logged(run, self._group, self._parameters, {}, files, 0 if finished else 1)

    def _logged(
        self, known: str, name: str, parameters: Parameters, numbers: Numbers, files: Sequence[Path], code: int = 0
    ) -> str:
        run = self._module.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            group=self._group,
            id=known,
            name=name,
            resume="allow",
            config=dict(parameters),
            settings=self._module.Settings(silent=True),  # the terminal belongs to the progress display
        )
        try:
            if numbers:
                run.log(dict(numbers))
            if files:
                artifact = self._module.Artifact(f"{known}-files", type="report")
                for each in files:
                    add = artifact.add_dir if each.is_dir() else artifact.add_file
                    add(str(each))
                run.log_artifact(artifact)
        finally:
            run.finish(exit_code=code)
        return known


_TRACKERS: dict[str, Callable[[Any], Tracker]] = {"mlflow": MLflow, "wandb": WandB}


def tracker_of(name: str) -> Tracker:
    """Return a tracker. Raises InputError if its name is unknown, or if it is not installed or cannot be imported."""
    if name not in _TRACKERS:
        raise unknown("--track", name, _TRACKERS)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(f"--track {name}: it is not installed: pip install {name} ({error})") from error
    except Exception as error:  # a dependency in an incompatible version
        raise InputError(f"--track {name}: cannot be imported: {one_line(error)}") from error
    return _TRACKERS[name](module)


def _named(key: str) -> str:
    return _NOT_IN_NAMES.sub("_", key)


def _letters(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)[:60]
