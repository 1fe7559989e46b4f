"""The result cards of a GPU machine: the doctor's, and one of the benchmarks on random Qwen3 models of real sizes.

    make gpu-card                       or: python -m benchmarks.gpu.card [--shapes 0.6b,1.7b,8b] [--out DIR]

For each shape a checkpoint of random weights is written to a temporary directory, and `pass`, `score`, `swap` and
`prune` run on it; on 0.6b `pass` also with `engine: {deterministic: true}`, for what that costs. Both sides of a
benchmark have an engine on the same GPU, so each gets less than half of its memory.
The card is written again after every benchmark: one that is cut off keeps what was measured. A benchmark that fails, or
whose sides disagree, is a row that says so.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import Options, environment, module_command, run_main
from benchmarks.pruning.synthetic import SHAPES, write_checkpoint
from evaluator.errors import InputError, one_line, unknown
from evaluator.store.files import write_atomically
from launch.doctor.machine import Machine, this_machine

SIZES = ("0.6b", "1.7b", "8b")
RESULTS = Path(__file__).parents[1] / "results"
_SHARE = 0.42  # of the GPU's memory, for the engine of either side
_DETERMINISTIC = "pass, deterministic"
_OURS = {"gpu_memory_utilization": _SHARE}
# What a user of vLLM's offline interface has on a GPU, with the sizes that ours chooses.
_THEIRS = {
    "dtype": "bfloat16",
    "enforce_eager": False,
    "block_size": None,
    "max_num_seqs": 256,
    "enable_chunked_prefill": True,
    "max_num_batched_tokens": 16_384,
    "gpu_memory_utilization": _SHARE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One benchmark on one shape; `answer` is its JSON line, or why there is none."""

    shape: str
    benchmark: str
    answer: Mapping[str, Any] | str


def commands(model: Path, *, deterministic: bool = False) -> list[tuple[str, list[str]]]:
    """The benchmarks of a checkpoint: name, and the command that runs it; `deterministic` adds a second pass."""
    ours, theirs = json.dumps(_OURS), json.dumps(_THEIRS)
    sides = ("--engine-args", ours, "--llm-args", theirs)
    serving = "benchmarks.serving"

    def one_pass(engine: str) -> list[str]:
        options = ("--items", 90, "--rounds", 3, "--engine-args", engine, "--llm-args", theirs)
        return module_command(f"{serving}.checkpoint_pass", "--model", model, *options)

    return [
        ("pass", one_pass(ours)),
        *([(_DETERMINISTIC, one_pass(json.dumps(_OURS | {"deterministic": True})))] if deterministic else []),
        ("score", module_command(f"{serving}.score", "--model", model, "--items", 200, "--rounds", 3, *sides)),
        ("swap", module_command(f"{serving}.swap", "--model", model, "--rounds", 2, "--engine-args", ours)),
        (
            "prune",
            module_command(
                *("benchmarks.pruning.prune", "--model", model, "--only", "gpu", "--repeat", 1),
                *("--samples", 128, "--tokens", 2048),
            ),
        ),
    ]


def measured(command: Sequence[str]) -> Mapping[str, Any] | str:
    """The JSON line of a benchmark, or the last line of its errors."""
    done = subprocess.run(command, env=environment(HF_HUB_OFFLINE="1"), capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines or not lines[-1].startswith("{"):
        return one_line((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def markdown(machine: Machine, rows: Sequence[Row]) -> str:
    """The card."""
    lines = [f"# {machine.gpus[0].name}: benchmarks", "", "`make gpu-card`.", "", "| machine | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in machine.lines()]
    lines += ["", "| shape | benchmark | ours s | theirs s | ratio (min-max) | results |", "|---|---|---|---|---|---|"]
    for row in rows:
        lines += ["| " + " | ".join(cells) + " |" for cells in _cells(row)]
    lines += ["", "Random weights in the shapes of Qwen3; `prune` is Wanda and SparseGPT on the GPU, alone.", ""]
    lines += _costs(rows)
    for row in rows:
        if not isinstance(row.answer, str):
            lines += [f"<details><summary>{row.shape} {row.benchmark}</summary>", "", "```json"]
            lines += [json.dumps(row.answer, indent=1), "```", "", "</details>", ""]
    return "\n".join(lines)


def _costs(rows: Sequence[Row]) -> list[str]:
    """What batch-invariant kernels cost, of each shape of which both passes were measured."""
    seconds = {(row.shape, row.benchmark): row.answer.get("ours_s") for row in rows if isinstance(row.answer, Mapping)}
    lines = []
    for shape in dict.fromkeys(row.shape for row in rows):
        plain, deterministic = (seconds.get((shape, name)) for name in ("pass", _DETERMINISTIC))
        if plain and deterministic:
            ratio = f"{deterministic / plain:.2f} times as long"
            lines += [f"{shape}: with `engine: {{deterministic: true}}`, our pass took {ratio}.", ""]
    return lines


def _cells(row: Row) -> list[tuple[str, ...]]:
    answer = row.answer
    if isinstance(answer, str):
        return [(row.shape, row.benchmark, "", "", "", answer.replace("|", r"\|"))]
    if row.benchmark == "prune":
        return [
            (
                row.shape,
                f"prune, {each['method']}",
                f"{each['seconds']:.1f}",
                "",
                "",
                f"peak {each['peak_gib']:.1f} GiB",
            )
            for each in answer["rows"]
        ]
    ratio = f"{answer['ratio']:.2f} ({answer['ratio_min']:.2f}-{answer['ratio_max']:.2f})"
    seconds = (f"{answer['ours_s']:.2f}", f"{answer['theirs_s']:.2f}")
    return [(row.shape, row.benchmark, *seconds, ratio, str(answer["agreement"]))]


def make(machine: Machine, shapes: Sequence[str], out: Path) -> None:
    """Run everything and write both cards into `out`. Raises InputError on a machine without a GPU."""
    if not machine.gpus:
        raise InputError("no NVIDIA GPU answers on this machine (nvidia-smi): there is nothing to make a card of")
    for shape in shapes:
        if shape not in SHAPES:
            raise unknown("shape of a random model", shape, SHAPES)
    slug = re.sub(r"[^a-z0-9]+", "-", machine.gpus[0].name.lower()).strip("-")
    doctor = module_command("launch.commands.cli", "doctor", "--out", out / f"doctor-{slug}.md")
    print(f"doctor: exit code {subprocess.run(doctor, env=environment(), check=False).returncode}", flush=True)
    rows: list[Row] = []
    for shape in shapes:
        with tempfile.TemporaryDirectory() as folder:
            model = write_checkpoint(Path(folder) / shape, SHAPES[shape])
            for name, command in commands(model, deterministic=shape == SIZES[0]):
                rows.append(Row(shape=shape, benchmark=name, answer=measured(command)))
                write_atomically(out / f"{slug}.md", markdown(machine, rows).encode())
                print(*(" ".join(cells) for cells in _cells(rows[-1])), sep="\n", flush=True)
    print(f"cards: {out / f'doctor-{slug}.md'}, {out / f'{slug}.md'}")


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--shapes", default=",".join(SIZES), help=f"some of {', '.join(SHAPES)}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the cards are written")
    arguments = parser.parse_args()
    make(this_machine(), arguments.shapes.split(","), arguments.out)


if __name__ == "__main__":
    run_main(main)
