"""The recipe `two_models` as a desk of chaos, and what must be there in the morning."""

import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from evaluator.tasks import load_task
from launch.sweep.config import find_recipe
from tests.support.kills import Desk
from tests.support.runs import records, resurface
from tests.support.smollm2 import MODEL

_THREADS = timedelta(seconds=1)  # two may write the other way round
_AFTER = {  # what was struck: the events of which one must follow
    "driver": {"started"},
    "SIGTERM": {"interrupted"},
    "engine": {"died", "started"},
    "prune task": {"made", "started"},
}


class Night(Desk):
    """Runs the recipe with a tracker and a notice. The bundled model stands in for
    SmolLM2 where that is not there."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._document = yaml.safe_load(
            find_recipe("two_models").read_text(encoding="utf-8")
        )
        there = (MODEL / "made_from.json").exists()
        self._document["models"]["smollm2"] = os.fspath(MODEL) if there else "bundled"
        # the beginning: a CPU takes half an hour for SmolLM2 on all of it
        text = directory / "text.txt"
        text.write_text(
            (load_task("text:gazetteer", None).text or "")[:4000], encoding="utf-8"
        )
        self._document["tasks"][1]["task"] = f"text:{text}"

    def sweep(
        self, *, shard_items: int = 3, engines: int | None = 1, **resources: int | str
    ) -> Path:
        file = self.directory / f"night-{shard_items}-{engines}.yaml"
        resources |= {
            "shard_items": shard_items,
            **({} if engines is None else {"engines": engines}),
        }
        file.write_text(
            yaml.safe_dump(self._document | {"resources": resources}), encoding="utf-8"
        )
        return file

    def start(
        self, sweep: Path, run: Path, *more: str, **given: Any
    ) -> subprocess.Popen[bytes]:
        tell = f"""sh -c 'echo "$RESURFACE_STATE" >> {shlex.quote(str(self.directory / "notified"))}'"""
        return super().start(
            sweep, run, *more, "--track", "mlflow", "--notify", tell, **given
        )


def check_night(desk: Desk, run: Path) -> int:
    """The number of records of twelve checkpoints: by every probe,
    tracked, and judged by the gate."""
    found, stated = records(run), json.loads((run / "run.json").read_text())
    assert (stated["state"], len(stated["checkpoints"]), found["probe"].nunique()) == (
        "finished",
        12,
        10,
    )
    assert resurface("gate", run).returncode in (0, 4)
    told = [json.loads(line) for line in desk.tracked.read_text().splitlines()]
    assert told[-1]["call"] == "set_terminated"
    assert (run.parent / "notified").read_text().split()[-1] == "finished"
    return len(found)


def check_story(
    run: Path, struck: Sequence[tuple[datetime, str]], ended: Mapping[str, int]
) -> dict[str, int]:
    """How often each event is in the log of a finished run, which must tell of each
    strike and of what followed.

    `struck`: when, and what; `ended`: how many commands ended how.
    """
    lines = (run / "logs" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    told: list[dict[str, Any]] = [json.loads(line) for line in filter(None, lines)]
    kinds = [
        each["state"] if each["event"] == "end" else each["event"] for each in told
    ]
    times = [datetime.fromisoformat(each["time"]) for each in told]
    assert all(other - one > -_THREADS for one, other in pairwise(times))
    starts = [each["call"] for each in told if each["event"] == "started"]
    assert (
        starts
        == sorted({each["call"] for each in told})
        == list(range(1, len(starts) + 1))
    )
    ends = [each["call"] for each in told if each["event"] == "end"]
    assert ends == sorted(set(ends))
    assert kinds[-1] == "finished"
    # Only a command that was killed has no end, or not even a start.
    assert len(starts) <= sum(ended.values()) <= len(ends) + ended.get("killed", 0)
    for when, name in struck:
        after = {kind for kind, time in zip(kinds, times, strict=True) if time >= when}
        assert after & _AFTER.get(name, {"finished"}), (when, name, after)
    for number, each in enumerate(told):
        # then the engine starts again, or is gone, or the command ended
        if each["event"] == "died":
            own = {
                other["event"]
                for other in told[number:]
                if other.get("engine", -1) in (-1, each["engine"])
            }
            assert own & {"placed", "left", "started", "end"}, each
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}
