"""Sends a run's results to an experiment tracker, checkpoint by checkpoint, while
the run works (`--track`).

A checkpoint is sent when it and its base are complete: its settings, the numbers of
its headline row, its tables and figures. A separate thread computes these from the
records on disk. `RUN/tracking.json` stores what was sent and the tracker's
ids, so that a resumed run continues under the same ids."""

from __future__ import annotations

import importlib
import json
import math
import os
import queue
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from evaluator.core.errors import (
    Document,
    InputError,
    Json,
    json_text,
    mapping_at,
    one_line,
    unknown,
)
from evaluator.core.files import write_atomically
from launch.run.events import Ended, Event, Tell
from launch.run.state import RunState

if TYPE_CHECKING:
    from launch.sweep.config import SweepConfig
    from launch.sweep.preflight import Prepared

NAME = "tracking.json"
PROJECT = "resurface"
_NOT_IN_NAMES = re.compile(r"[^\w./ -]")
_PATIENCE = 30.0  # seconds that an ended run waits for an answer
_POLL = 0.1
_VALUE = 500  # characters of a parameter: the limit of MLflow's older servers
_T = TypeVar("_T")
Parameters = Mapping[str, str]
Numbers = Mapping[str, float]


class MLflow:
    """A sweep is a run in `MLFLOW_EXPERIMENT_NAME`, or `resurface`; each checkpoint
    is a child run."""

    name = "mlflow"

    def __init__(self, module: Any) -> None:
        self._module = module
        self._client: Any = None
        self._experiment = ""

    def begin(self, run: str, known: str | None, parameters: Parameters) -> str:
        """Begin a run, or continue the one with the id `known`; returns its id."""
        self._client = self._module.MlflowClient()
        named = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        found = self._client.get_experiment_by_name(named)
        self._experiment = (
            self._client.create_experiment(named)
            if found is None
            else found.experiment_id
        )
        if known is not None:
            self._client.update_run(known, status="RUNNING")
            return known
        return self._made(run, {}, parameters)

    def checkpoint(
        self,
        parent: str,
        name: str,
        parameters: Parameters,
        numbers: Numbers,
        folder: Path,
    ) -> str:
        """Send an ended checkpoint as a separate run below `parent`; `folder` holds
        its files. Returns its id."""
        child = self._made(name, {"mlflow.parentRunId": parent}, parameters)
        for key, number in numbers.items():
            self._client.log_metric(child, _NOT_IN_NAMES.sub("_", key), number)
        self._client.log_artifacts(child, str(folder))
        self._client.set_terminated(child)
        return child

    def end(self, run: str, files: Sequence[Path], finished: bool) -> None:
        """End the run and send the `files` that it wrote; not `finished`: it failed
        or was interrupted."""
        for file in files:
            self._client.log_artifact(run, str(file), artifact_path=file.parent.name)
        self._client.set_terminated(run, status="FINISHED" if finished else "FAILED")

    def _made(self, name: str, tags: dict[str, str], parameters: Parameters) -> str:
        made: str = self._client.create_run(
            self._experiment, run_name=name, tags=tags
        ).info.run_id
        for key, value in parameters.items():
            self._client.log_param(made, _NOT_IN_NAMES.sub("_", key), value[:_VALUE])
        return made


class WandB:
    """A sweep is a group in project `WANDB_PROJECT`, or `resurface`, with one run
    for itself and one per checkpoint."""

    name = "wandb"

    def __init__(self, module: Any) -> None:
        self._module = module
        self._group = ""
        self._parameters: dict[str, str] = {}

    def begin(self, run: str, known: str | None, parameters: Parameters) -> str:
        """Only choose an id. W&B allows one run at a time in a process, so `end`
        makes the sweep's own run."""
        self._group = run
        self._parameters = dict(parameters)
        return known or f"{_letters(run)}-{secrets.token_hex(4)}"

    def checkpoint(
        self,
        parent: str,
        name: str,
        parameters: Parameters,
        numbers: Numbers,
        folder: Path,
    ) -> str:
        return self._logged(
            f"{parent}-{_letters(name)}", name, parameters, numbers, [folder]
        )

    def end(self, run: str, files: Sequence[Path], finished: bool) -> None:
        self._logged(
            run, self._group, self._parameters, {}, files, 0 if finished else 1
        )

    def _logged(
        self,
        known: str,
        name: str,
        parameters: Parameters,
        numbers: Numbers,
        files: Sequence[Path],
        code: int = 0,
    ) -> str:
        run = self._module.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            group=self._group,
            id=known,
            name=name,
            resume="allow",
            config=dict(parameters),
            # the terminal belongs to the progress display
            settings=self._module.Settings(silent=True),
        )
        try:
            if numbers:
                run.log(dict(numbers))
            if files:
                artifact = self._module.Artifact(f"{known}-files", type="report")
                for each in files:
                    (artifact.add_dir if each.is_dir() else artifact.add_file)(
                        str(each)
                    )
                run.log_artifact(artifact)
        finally:
            run.finish(exit_code=code)
        return known


# An exception of a tracker's methods becomes a warning and ends nothing.
Tracker = MLflow | WandB
TRACKERS: dict[str, Callable[[Any], Tracker]] = {"mlflow": MLflow, "wandb": WandB}


def tracker_of(name: str) -> Tracker:
    """Return a tracker. Raises InputError if its name is unknown, or if it is not
    installed or cannot be imported."""
    if name not in TRACKERS:
        raise unknown("--track", name, TRACKERS)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"--track {name}: it is not installed: pip install {name} ({error})"
        ) from error
    except Exception as error:  # a dependency in an incompatible version
        raise InputError(
            f"--track {name}: cannot be imported: {one_line(error)}"
        ) from error
    return TRACKERS[name](module)


def _letters(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)[:60]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    name: str
    base: str | None
    parameters: Parameters


class Tracking:
    """Sends checkpoints that have ended to a tracker; a run that finishes sets
    `results`, its written files."""

    def __init__(
        self,
        tracker: Tracker,
        run_dir: Path,
        checkpoints: Sequence[Tracked],
        parameters: Parameters,
        warn: Tell,
    ) -> None:
        self.name = tracker.name
        self.results: Sequence[Path] | None = None
        self._tracker, self._run_dir, self._warn = tracker, run_dir, warn
        self._parameters = parameters
        self._pending = {each.name: each for each in checkpoints}
        self._all = dict(self._pending)
        self._grown: set[str] = set()  # evaluated by this call
        self._state = RunState()
        # False: the last one
        self._turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._sent: dict[str, str] = {}  # the tracker's ids, by checkpoint
        self._asked: float | None = None  # since when a call waits for its answer
        self._folder = tempfile.TemporaryDirectory(
            prefix="resurface-tracking-", ignore_cleanup_errors=True
        )
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)

    def __enter__(self) -> Tracking:
        self._thread.start()
        self._turns.put(True)
        return self

    @property
    def works(self) -> bool:
        """Whether the tracker began the run, or may still begin it."""
        return self._thread.is_alive()

    def __exit__(self, *_: object) -> None:
        """Wait until all is sent, but not for a tracker without an answer in
        `_PATIENCE` seconds of a call."""
        self._turns.put(False)
        ended = time.monotonic()
        while self._thread.is_alive():
            self._thread.join(_POLL)
            asked = self._asked
            if asked is not None and time.monotonic() > max(asked, ended) + _PATIENCE:
                # a daemon: it delays nothing, and warns no more
                self._warn(
                    f"--track {self.name}: no answer in {_PATIENCE:g} s; the same"
                    " command sends what is left"
                )
                self._warn = lambda _: None
                break
        self._folder.cleanup()

    def on(self, event: Event, state: RunState) -> None:
        self._state = state
        if isinstance(event, Ended):
            if event.items:  # a checkpoint that was sent may have grown
                self._grown.add(event.checkpoint)
            self._turns.put(True)

    def _work(self) -> None:
        run = self._guarded(self._begin)
        if run is None:
            return
        more = True
        while more:
            more = self._turns.get()
            # one check covers all checkpoints that have ended meanwhile
            while more and not self._turns.empty():
                more = self._turns.get()
            while self._grown:
                name = self._grown.pop()
                if name in self._all:
                    self._pending[name] = self._all[name]
            for each in self._ended():
                # if sending fails, the same command sends it again
                del self._pending[each.name]
                self._guarded(partial(self._tell, run, each))
        files, finished = self.results or (), self.results is not None
        self._guarded(partial(self._ask, self._tracker.end, run, files, finished))

    def _ended(self) -> list[Tracked]:
        """The complete checkpoints whose bases are complete, as far as the run has
        them."""
        open_names = self._state.incomplete()
        ended = []
        for each in self._pending.values():
            waits = each.name in open_names
            waits |= each.base in self._all and each.base in open_names
            if self._state.planned and not waits:
                ended.append(each)
        return ended

    def _ask(self, call: Callable[..., _T], *given: Any) -> _T:
        self._asked = time.monotonic()
        try:
            return call(*given)
        finally:
            self._asked = None

    def _guarded(self, act: Callable[[], _T]) -> _T | None:
        """Return the result of `act`; if it fails, warn the user and return None."""
        try:
            return act()
        # a tracker is foreign code, and its server may be unreachable
        except Exception as error:
            self._warn(
                f"--track {self.name}: {type(error).__name__}:"
                f" {one_line(error)}; the run continues"
            )
            return None

    def _begin(self) -> str:
        """Begin the run, or continue the one of an earlier call; returns the
        tracker's id."""
        earlier = mapping_at(_read(self._run_dir / NAME), self.name)
        known = str(earlier.get("run") or "") or None
        run = self._ask(
            self._tracker.begin, self._run_dir.resolve().name, known, self._parameters
        )
        sent = mapping_at(earlier, "checkpoints") if known else {}
        self._sent = {str(name): str(its) for name, its in sent.items()}
        self._remember(run)
        for name in self._sent:
            self._pending.pop(name, None)
        return run

    def _tell(self, run: str, each: Tracked) -> None:
        from evaluator.report import write_part

        with tempfile.TemporaryDirectory(
            dir=self._folder.name, ignore_cleanup_errors=True
        ) as folder:
            names = {each.name, each.base or each.name}
            headline = write_part(self._run_dir, names, Path(folder)).headline
            rows = headline[headline["checkpoint"] == each.name].to_dict("records")
            self._sent[each.name] = self._ask(
                self._tracker.checkpoint,
                run,
                each.name,
                each.parameters,
                numbers_of(rows),
                Path(folder),
            )
        self._remember(run)

    def _remember(self, run: str) -> None:
        document = _read(self._run_dir / NAME)
        document[self.name] = {"run": run, "checkpoints": self._sent}
        write_atomically(self._run_dir / NAME, json_text(document, indent=2).encode())


def tracking_of(
    tracker: Tracker, run_dir: Path, prepared: Prepared, config: SweepConfig, warn: Tell
) -> Tracking:
    """What sends the checkpoints of a sweep; without controls, which are no results."""
    rows = []
    for job in prepared.jobs:
        if job.change:
            continue
        settings: Json = {
            "model": job.model,
            "base": job.base,
            "kv_cache": job.kv_cache if job.is_variant else None,
            "prune": job.prune and job.prune.model_dump(mode="json"),
            "compress": job.quantise and job.quantise.model_dump(mode="json"),
            "after": job.after,
        }
        row = Tracked(name=job.name, base=job.base, parameters=flattened(settings))
        rows.append(row)
    document = flattened(config.model_dump(mode="json", exclude_defaults=True))
    return Tracking(tracker, run_dir, rows, document, warn)


def flattened(document: Document, prefix: str = "") -> dict[str, str]:
    """`{"a": {"b": 1}}` as `{"a.b": "1"}`; null is left out. Pure."""
    found: dict[str, str] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            found |= flattened(value, f"{prefix}{name}.")
        elif value is not None:
            found[prefix + name] = (
                value if isinstance(value, str) else json.dumps(value, default=str)
            )
    return found


def _read(file: Path) -> Json:
    """The JSON object in a file; empty if there is none."""
    with suppress(OSError, ValueError):
        return dict(mapping_at(json.loads(file.read_bytes())))
    return {}


def numbers_of(rows: Sequence[Mapping[Any, Any]]) -> dict[str, float]:
    """The finite numbers of a headline's rows, as `task/column`. Pure."""
    numbers = {}
    for row in rows:
        for name, value in row.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and math.isfinite(value):
                numbers[f"{row['task']}/{name}"] = float(value)
    return numbers
