"""How many items a second do 1, 2, 3 and 4 engines of one GPU evaluate, with Ray, and
with a setting changed?

python -m tests.gpu.engines MODEL OUT --items 200 [--only 1,2]

Each row is a run of its own, from its first finished shard to its last: the starts of
engines do not count."""

import argparse
import json
import os
import subprocess
import time
from datetime import datetime
from pathlib import Path

import yaml

from benchmarks.harness import environment, module_command
from evaluator.core.errors import Json

_ROWS: dict[str, tuple[int, Json, dict[str, str]]] = {
    **{str(number): (number, {}, {}) for number in (1, 2, 3, 4)},
    "256-rows": (1, {"max_num_seqs": 256}, {}),
    "1024-rows": (1, {"max_num_seqs": 1024}, {}),
    "BLNHC": (1, {}, {"VLLM_KV_CACHE_LAYOUT": "BLNHC"}),
    "sync-check": (1, {}, {"VLLM_GPU_SYNC_CHECK": "warn"}),
}


def row_of(name: str, model: Path, out: Path, items: int) -> Json:
    """Items a second, and the engines' shares of their time."""
    engines, settings, variables = _ROWS[name]
    run = out / f"engines-{name}"
    document = {
        "models": {"dense": str(model)},
        "tasks": [{"task": "gazetteer", "items": items}],
        "engine": {"dtype": "bfloat16", **settings},
        "resources": {"engines_per_gpu": engines, "shard_items": 5},
        "controls": "none",
    }
    sweep = out / f"engines-{name}.yaml"
    sweep.write_text(yaml.safe_dump(document), encoding="utf-8")
    command = module_command("launch.commands.cli", "sweep", sweep, "--out", run)
    began = time.monotonic()
    done = subprocess.run(
        command,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )
    row: Json = {
        "row": name,
        "seconds": time.monotonic() - began,
        "rc": done.returncode,
    }
    if done.returncode:
        return row | {"error": done.stderr[-300:]}
    events = [
        json.loads(line)
        for line in (run / "logs" / "events.jsonl").read_text().splitlines()
    ]
    shards = [event for event in events if event["event"] == "advanced"]
    times = [datetime.fromisoformat(event["time"]).timestamp() for event in shards]
    finished = sum(event["items"] for event in shards[1:])
    served = json.loads((run / "run.json").read_text())["engine_stats"]
    shares = [[each["waiting_share"], each["idle_share"]] for each in served]
    rate = finished / (times[-1] - times[0]) if len(times) > 1 else None
    return row | {"items_a_second": rate, "waiting_and_idle": shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--only", default=",".join(_ROWS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.only.split(","):
        row = row_of(name, options.model.absolute(), options.out, options.items)
        failed += bool(row["rc"])
        print(json.dumps(row), flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    main()
