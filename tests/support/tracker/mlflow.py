"""In place of MLflow: what its client is told, a line each, in the file `TRACKED`."""

import itertools
import json
import os
import socket
from types import SimpleNamespace
from typing import Any


class MlflowClient:
    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def _heard(self, call: str, **arguments: Any) -> None:
        # of a server that accepts, and never answers
        if address := os.environ.get("SILENT"):
            host, _, port = address.partition(":")
            with socket.create_connection((host, int(port))) as silent:
                silent.recv(1)
        with open(os.environ["TRACKED"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"call": call} | arguments) + "\n")

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=f"id of {name}")

    def create_experiment(self, name: str) -> str:
        return f"new {name}"

    def create_run(
        self, experiment_id: str, *, run_name: str, tags: dict[str, str]
    ) -> Any:
        made = str(next(self._ids))
        self._heard(
            "create_run",
            run_id=made,
            experiment_id=experiment_id,
            run_name=run_name,
            tags=tags,
        )
        return SimpleNamespace(info=SimpleNamespace(run_id=made))

    def update_run(
        self, run_id: str, status: str | None = None, name: str | None = None
    ) -> None:
        self._heard("update_run", run_id=run_id, status=status)

    def log_param(self, run_id: str, key: str, value: str) -> None:
        self._heard("log_param", run_id=run_id, key=key, value=value)

    def log_metric(self, run_id: str, key: str, value: float) -> None:
        self._heard("log_metric", run_id=run_id, key=key, value=value)

    def log_artifacts(self, run_id: str, local_dir: str) -> None:
        self._heard("log_artifacts", run_id=run_id, names=sorted(os.listdir(local_dir)))

    def log_artifact(self, run_id: str, local_path: str, artifact_path: str) -> None:
        self._heard(
            "log_artifact",
            run_id=run_id,
            name=os.path.basename(local_path),
            artifact_path=artifact_path,
        )

    def set_terminated(self, run_id: str, status: str = "FINISHED") -> None:
        self._heard("set_terminated", run_id=run_id, status=status)
