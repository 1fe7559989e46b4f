"""How many engines of one GPU does a run keep, and what does a setting change?

python -m tests.gpu.engines MODEL OUT [--only auto,256-rows] [--seconds 20]

Each row is a run of its own, with more work than it gets time for. `auto` ends with
the run's decision; its figures are in `decisions`. Another row is measured for some
seconds from its first finished shard on: starts do not count."""

import argparse
import json
import os
import subprocess
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness import environment, module_command
from evaluator.core.errors import Json
from launch.run.directory.lock import STOP

_COPIES = 8  # of 2,700 items: without MPS, a trial needs work for ten starts
_POLL_SECONDS = 0.5
_ROWS: dict[str, tuple[int | str, Json, dict[str, str]]] = {
    "auto": ("auto", {}, {}),
    "one": (1, {}, {}),
    "two": (2, {}, {}),
    "256-rows": (1, {"max_num_seqs": 256}, {}),
    "1024-rows": (1, {"max_num_seqs": 1024}, {}),
    "BLNHC": (1, {}, {"VLLM_KV_CACHE_LAYOUT": "BLNHC"}),
    "sync-check": (1, {}, {"VLLM_GPU_SYNC_CHECK": "warn"}),
}


def row_of(name: str, model: Path, out: Path, seconds: float) -> Json:
    """Items a second, decisions on the number of engines, and the engines' seconds."""
    engines, settings, variables = _ROWS[name]
    run, sweep = out / f"engines-{name}", out / f"engines-{name}.yaml"
    document = {
        "models": {f"copy-{number}": str(model) for number in range(_COPIES)},
        "tasks": [{"task": "gazetteer"}],
        "engine": {"dtype": "bfloat16", **settings},
        "resources": {"engines_per_gpu": engines, "shard_items": 5},
        "controls": "none",
    }
    sweep.write_text(yaml.safe_dump(document), encoding="utf-8")
    command = module_command("launch.commands.cli", "sweep", sweep, "--out", run)
    with sweep.with_suffix(".log").open("wb") as log:
        driver = subprocess.Popen(
            command, env=environment(**variables), stdout=log, stderr=log
        )
        while driver.poll() is None:
            time.sleep(_POLL_SECONDS)
            times, items, decisions = _so_far(run)
            # "auto: 1: ..." where there is nothing to try
            tries = engines == "auto" and not any(": 1: " in each for each in decisions)
            settled = any("on each GPU" in each for each in decisions)
            measured = len(times) > 1 and times[-1] - times[0] > seconds
            if settled if tries else measured:
                (run / STOP).touch()
                driver.wait()
    times, items, decisions = _so_far(run)
    row: Json = {"row": name, "decisions": decisions, "items_a_second": None}
    if len(times) > 1:
        row["items_a_second"] = sum(items[1:]) / (times[-1] - times[0])
        served = json.loads((run / "run.json").read_text())["engine_stats"]
        names = ("seconds", "waiting_seconds", "idle_seconds")
        row["engines"] = [{name: each[name] for name in names} for each in served]
    else:
        row["error"] = sweep.with_suffix(".log").read_text()[-300:]
    return row


def _so_far(run: Path) -> tuple[list[float], list[int], list[str]]:
    """When its shards ended, their items, and what the run has decided."""
    file = run / "logs" / "events.jsonl"
    # the last line may be half written
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    events: list[dict[str, Any]] = [json.loads(line) for line in lines]
    shards = [event for event in events if event["event"] == "advanced"]
    return (
        [datetime.fromisoformat(event["time"]).timestamp() for event in shards],
        [event["items"] for event in shards],
        [
            event["text"]
            for event in events
            if "engines_per_gpu: " in event.get("text", "")
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(_ROWS))
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.only.split(","):
        row = row_of(name, options.model.absolute(), options.out, options.seconds)
        failed += row["items_a_second"] is None
        print(json.dumps(row), flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    main()
