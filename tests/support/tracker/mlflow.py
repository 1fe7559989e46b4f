"""In place of MLflow: what its functions are told, a line each, in the file `TRACKED`."""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any


def _heard(call: str, **arguments: Any) -> None:
    with open(os.environ["TRACKED"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"call": call} | arguments) + "\n")


def set_experiment(name: str) -> None:
    _heard("set_experiment", name=name)


@contextlib.contextmanager
def start_run(run_name: str) -> Iterator[None]:
    _heard("start_run", run_name=run_name)
    yield
    _heard("end_run")


def log_param(key: str, value: str) -> None:
    _heard("log_param", key=key, value=value)


def log_metric(key: str, value: float) -> None:
    _heard("log_metric", key=key, value=value)


def log_artifacts(local_dir: str, artifact_path: str) -> None:
    names = sorted(os.listdir(local_dir))
    _heard("log_artifacts", names=names, artifact_path=artifact_path)
