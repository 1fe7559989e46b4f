"""How many rows of an engine are idle in a sweep of one engine: some checkpoints, each
swapped in place, on some tasks.

    python -m tests.support.rows --checkpoints 5 --tasks 3 --items 270
    python -m tests.support.v2 python -m tests.support.rows     # on the runner of GPUs

Everything is real: the command, Ray, vLLM, swaps. The checkpoints are the bundled model
and copies with one changed weight, and the probes are those by default. A row is one of
`max_num_seqs`. It is in use in a step that computes its request. The shares are of the
rows' time in steps and swaps, up to `--last` seconds before the end. Time between two
steps of a stream is the host's: `bench host` tells it.

idle      rows without a request: the sum of the next four
start     in steps before the first one that is full, or leaves a request waiting
stream    between that and the last one, through shards and tasks
drain     after the last one
swap      from a checkpoint's last step to the next one's first
held      rows that are free while a request waits in the engine: for tokens that it
          shares with another, or until the scheduler knows that another has ended

The last line is JSON.

In an engine's process this module is a plugin, which notes steps and loads."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from safetensors.torch import load_file, save_file

from benchmarks.harness import Options, count, print_table, run_main
from evaluator.core.errors import Json, ResurfaceError, json_text
from evaluator.engine.vllm.engine import VLLMEngine
from launch.sweep.models import BUNDLED_MODEL
from launch.sweep.plugins import VARIABLE
from tests.support.runs import resurface_apart

NOTES = "RESURFACE_ROWS"  # names the file
ROOT = Path(__file__).resolve().parents[2]
KINDS = ("start", "stream", "drain", "swap")


class Step(NamedTuple):
    began: float
    ended: float
    used: int = 0  # rows
    waiting: int = 0  # requests in the engine without a row

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def note_steps(path: Path) -> None:
    """From now on, this process writes a line for each step and each load of its
    engine."""
    step, load = VLLMEngine._step, VLLMEngine.load
    rows: list[tuple[int, int]] = []  # used, waiting: of the step that is scheduled

    def write(began: float, **what: int) -> None:
        line = {"began": began, "ended": time.monotonic(), **what}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def stepped(engine: VLLMEngine, core: Any) -> Any:
        scheduler, began = core.engine_core.scheduler, time.monotonic()
        if "schedule" not in vars(scheduler):
            schedule = scheduler.schedule

            def scheduled(*given: Any, **named: Any) -> Any:
                output = schedule(*given, **named)
                rows.append((len(output.num_scheduled_tokens), len(scheduler.waiting)))
                return output

            scheduler.schedule = scheduled
        outputs = step(engine, core)
        assert engine._started is not None
        if rows and rows[-1][0]:
            used, waiting = rows[-1]
            most = engine._started.max_num_seqs
            write(began, used=used, waiting=waiting, rows=most)
        rows.clear()
        return outputs

    def loaded(engine: VLLMEngine, checkpoint: Path) -> Any:
        began = time.monotonic()
        report = load(engine, checkpoint)
        write(began)
        return report

    vllm: Any = VLLMEngine
    vllm._step, vllm.load = stepped, loaded


def read(path: Path) -> tuple[int, list[list[Step]]]:
    """An engine's rows, and the steps of its stream on each checkpoint."""
    rows, streams = 0, list[list[Step]]()
    for line in path.read_text(encoding="utf-8").splitlines():
        said = json.loads(line)
        if "used" not in said:
            streams.append([])
        elif streams:  # else, of its first self-check
            rows = said.pop("rows")
            streams[-1].append(Step(**said))
    return rows, [stream for stream in streams if stream]


def kinds_of(rows: int, streams: Sequence[Sequence[Step]]) -> list[tuple[str, Step]]:
    """Each step, and each swap, with its kind."""
    found: list[tuple[str, Step]] = []
    for steps in streams:
        if found:
            found.append(("swap", Step(found[-1][1].ended, steps[0].began)))
        full = [n for n, step in enumerate(steps) if step.used + step.waiting >= rows]
        first, last = (full[0], full[-1]) if full else (len(steps), len(steps))
        for number, step in enumerate(steps):
            before = "start" if number < first else "stream"
            found.append(("drain" if number > last else before, step))
    return found


def shares(rows: int, streams: Sequence[Sequence[Step]], last: float) -> Json:
    """The shares of the rows' time, but for the `last` seconds."""
    end = streams[-1][-1].ended - last
    kept = [each for each in kinds_of(rows, streams) if each[1].ended <= end]
    if not kept:
        raise ResurfaceError(f"the sweep took less than {last:g} s: ask more --items")
    idle, held = dict.fromkeys(KINDS, 0.0), 0.0
    for kind, step in kept:
        free = rows - step.used
        idle[kind] += step.seconds * max(0, free - step.waiting)
        held += step.seconds * min(free, step.waiting)
    whole = rows * sum(step.seconds for _, step in kept)
    found = {"idle": sum(idle.values()), **idle, "held": held}
    return {name: spent / whole for name, spent in found.items()}


def sweep(options: Any, folder: Path) -> Path:
    """Runs it; returns the notes."""
    models = {"dense": str(BUNDLED_MODEL)}
    weights = load_file(BUNDLED_MODEL / "model.safetensors")
    changed = next(tensor for name, tensor in weights.items() if "mlp" in name)
    for number in range(1, options.checkpoints):
        models[f"c{number}"] = str(folder / f"c{number}")
        shutil.copytree(BUNDLED_MODEL, models[f"c{number}"])
        changed[0, number] += 0.001
        save_file(weights, folder / f"c{number}" / "model.safetensors")
    document = {
        "models": models,
        "base": "dense",
        "tasks": [
            {"task": "gazetteer", "items": -(-options.items // 9), "seed": seed, "name": f"t{seed}"}
            for seed in range(options.tasks)
        ],
    }  # fmt: skip
    (folder / "sweep.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    path = filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)])
    variables = {
        VARIABLE: "tests.support.rows",
        NOTES: str(folder / "notes"),
        "PYTHONPATH": os.pathsep.join(path),
    }
    words = "sweep", folder / "sweep.yaml", "--out", folder / "run"
    done = resurface_apart(*words, cwd=None, **variables)
    if done.returncode:
        raise ResurfaceError(done.stderr.strip())
    return folder / "notes"


def main() -> None:
    parser = Options(__doc__)
    add = parser.add_argument
    add("--checkpoints", type=count, default=5, help="(default: 5)")
    add("--tasks", type=count, default=3, help="(default: 3)")
    add("--items", type=count, default=270, help="of each task (default: 270)")
    last = "seconds at the end that are left out (default: 30)"
    add("--last", type=float, default=30.0, help=last)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows, streams = read(sweep(options, Path(folder)))
    found = shares(rows, streams, options.last)
    table = [(kind, f"{100 * share:.2f}") for kind, share in found.items()]
    print_table("% of the rows' time", ("", "%"), table)
    steps = sum(map(len, streams))
    seconds = streams[-1][-1].ended - streams[0][0].began
    print(json_text({"rows": rows, "steps": steps, "seconds": seconds, **found}))


if path := os.environ.get(NOTES):
    note_steps(Path(path))
if __name__ == "__main__":
    run_main(main)
