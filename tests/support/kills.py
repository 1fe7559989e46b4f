"""A sweep on a tiny model that can be killed anywhere, and what must hold of its
records whatever was killed."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import yaml

from tests.support.models import save_tiny_model
from tests.support.runs import KEY, assert_alike, command, environment, records

CHECKPOINTS = {"dense", "wanda-0.5", "magnitude-0.6"}
# columns of `price`
_MEASURED = ["peak_memory", "tokens_per_second", "seconds_per_item", "machine"]
_MEASURED += ["seconds", "engine_hours"]
TRACKER = Path(__file__).parent / "tracker"  # has a module in place of mlflow
PRUNING, ENGINE = "ray::make_checkpoint", "ray::EngineActor"


class Desk:
    """A directory with a model and sweep files in it, and what has been started
    there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._model = save_tiny_model(directory / "model", max_position_embeddings=4096)
        self.program = command()
        self.tracked = directory / "mlflow.jsonl"  # what the tracker hears
        self.started: list[subprocess.Popen[bytes]] = []

    def sweep(
        self,
        *,
        shard_items: int = 3,
        engines: int | None = 1,
        tasks: int = 1,
        **resources: int | str,
    ) -> Path:
        """A sweep file; `engines` None: one on each node. `tasks` share the items."""
        document = {
            "models": {"dense": "model"},
            "controls": "none",  # a cluster would have some, a CPU none
            "prune": [
                {"method": "wanda", "sparsity": 0.5},
                {"method": "magnitude", "sparsity": 0.6},
            ],
            "calibration": {
                "source": "gazetteer",
                "samples": 9,
                "sequence_length": 256,
            },
            "tasks": [
                {
                    "task": "gazetteer",
                    "name": f"gazetteer-{seed}" if seed else "gazetteer",
                    "seed": seed,
                    "items": 4 // tasks,
                    "languages": ["english", "korean", "arabic"],
                }
                for seed in range(tasks)
            ],
            "resources": {"shard_items": shard_items, "engines": engines, **resources},
        }
        file = self.directory / "-".join(
            ["sweep", *map(str, (shard_items, engines, tasks, *resources.values()))]
        )
        file = file.with_suffix(".yaml")
        file.write_text(yaml.safe_dump(document), encoding="utf-8")
        return file

    def start(
        self,
        sweep: Path,
        run: Path,
        *more: str,
        variables: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Run a sweep in the background; `variables` are added to its environment.
        `log`: not the run's."""
        folders = os.pathsep.join(
            filter(None, [str(TRACKER), os.environ.get("PYTHONPATH")])
        )
        with (log or self.log(run)).open("wb") as output:
            process = subprocess.Popen(
                [*self.program, "sweep", str(sweep), "--out", str(run), *more],
                env=environment()
                | {"PYTHONPATH": folders, "TRACKED": str(self.tracked)}
                | dict(variables or {}),
                stdout=output,
                stderr=output,
                # a shell's background jobs ignore it
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self.started.append(process)
        return process

    def log(self, run: Path) -> Path:
        return self.directory / f"{run.name}.log"

    def finish(self, sweep: Path, run: Path, *more: str) -> None:
        """Run a sweep to its good end."""
        assert self.start(sweep, run, *more).wait() == 0, self.log(run).read_text()


def check_same(run: Path, expected: pd.DataFrame) -> None:
    """None lost, none twice; the same texts, tokens and ranks, and log-probabilities
    up to rounding."""
    found = records(run)
    assert set(found["checkpoint"]) == CHECKPOINTS
    assert not found[KEY].duplicated().any()
    assert_alike(found, expected)
    assert json.loads((run / "run.json").read_text())["state"] == "finished"
    assert (run / "report" / "index.html").stat().st_size > 0
    assert not list(run.rglob("*.writing")) + list(run.rglob("*.partial*"))


def tables(run: Path) -> dict[str, pd.DataFrame]:
    """Every table, by name, without what is measured anew in each run: times, and
    memory."""
    found = {
        file.stem: pd.read_csv(file) for file in sorted((run / "tables").glob("*.csv"))
    }
    found["price"] = found["price"].drop(columns=_MEASURED)
    return found


def check_tables(run: Path, expected: Mapping[str, pd.DataFrame]) -> None:
    """The same tables, with the same numbers up to the last digit of those that
    follow from log-probabilities."""
    found = tables(run)
    assert set(found) == set(expected)
    for name, table in expected.items():
        pd.testing.assert_frame_equal(
            found[name], table, check_exact=False, rtol=0, atol=2e-3, obj=name
        )


def family(process: subprocess.Popen[bytes], title: str = "") -> list[psutil.Process]:
    """The living processes that a driver started, directly or not."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it ended while it was looked at
                if child.status() != psutil.STATUS_ZOMBIE and " ".join(
                    child.cmdline()
                ).startswith(title):
                    found.append(child)
    return found


def of_ray(process: subprocess.Popen[bytes], program: str) -> list[psutil.Process]:
    """Those of a local Ray's own processes that are called so: `raylet`,
    `gcs_server`."""
    found = []
    for each in family(process):
        with contextlib.suppress(psutil.Error, IndexError):  # it has ended
            if Path(each.cmdline()[0]).name == program:
                found.append(each)
    return found


def parts(run: Path) -> list[Path]:
    return list(run.glob("records/*/*.parquet"))


def when(
    process: subprocess.Popen[bytes], seen: Callable[[], list[Any]], log: Path
) -> list[Any]:
    """What `seen` finds as soon as it finds anything."""
    while not (found := seen()):
        assert process.poll() is None, (
            f"ended before the moment came: {log.read_text()}"
        )
        time.sleep(0.05)  # each look reads all of /proc
    return found


def gone(processes: list[psutil.Process]) -> bool:
    return not any(
        process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        for process in processes
    )
