"""Our pruning against the published recipe, written plainly: whole-job time, peak
memory, and whether masks agree.

    resurface bench prune [--samples 16] [--tokens 512] [--methods wanda,sparsegpt]
    [--repeat 3] [--threads N] resurface bench prune --shape 0.2b
    one of its two models; or --model bundled, or --model DIR resurface bench prune
    --shape 1.7b --only ours      the memory of a large model resurface bench prune
    --shape 8b --only gpu         ours on a GPU: seconds and peak of the GPU's memory
    resurface bench prune --peer llm-compressor         with llm-compressor's
    modifiers beside

Each job runs in a separate process, the sides in turn. Peak memory is resident
memory above that after the imports. If masks do not agree, no ratio is printed and
the exit code is 1."""

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import (
    Options,
    answer_of,
    count,
    module_command,
    print_table,
    run_main,
)
from benchmarks.pruning.llm_compressor_job import measured
from benchmarks.pruning.synthetic import SHAPES, write_checkpoint, write_passages
from evaluator.core.errors import InputError, json_text
from launch.sweep.models import BUNDLED_MODEL
from quantising.methods import llm_compressor

_JOB = Path(__file__).with_name("llm_compressor_job.py")

_DEMO = {"samples": 128, "tokens": 512}  # calibration of `resurface demo`
# What share of all weights must be alike. SparseGPT's later layers are chaotic: it
# picks among updated weights, so one that was rounded otherwise changes what comes
# after it. The first layer sees the same inputs on both sides.
_BARS = {
    "wanda": {"masks_agree": 0.9999},
    "sparsegpt": {"first_layer_agrees": 0.999, "masks_agree": 0.97},
}


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One model and the text that it is calibrated with."""

    model: str
    source: Path
    passages: Path
    tokens: int  # a passage is cut to so many


def job(
    who: str,
    method: str,
    source: Path,
    passages: Path,
    out: Path,
    tokens: int,
    threads: int,
) -> dict[str, float]:
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM  # noqa: F401
    from transformers.utils import logging

    from benchmarks.pruning import recipe
    from pruning import run
    from pruning.config import CalibrationConfig, PruneConfig

    logging.disable_progress_bar()
    texts = passages.read_text().splitlines()
    with measured(threads) as found:
        if who == "recipe":
            recipe.run(source, out, method, 0.5, texts, tokens)
        else:
            calibration = CalibrationConfig(
                source=f"text:{passages}", samples=len(texts), sequence_length=tokens
            )
            device = "cuda" if who == "gpu" else "cpu"
            config = PruneConfig(
                source=source,
                method=method,
                sparsity=0.5,
                calibration=calibration,
                device=device,
            )
            manifest = run.prune(config, out)
    return (
        found
        if who != "gpu"
        else found | {"peak_gib": manifest.peak_memory_bytes / 2**30}
    )


def agreement(first: Path, second: Path) -> dict[str, float]:
    """Share of the weights of all decoder matrices whose zeros agree, and of those
    of the first layer alone."""
    from evaluator.checkpoints.checkpoint import Checkpoint

    one, two = Checkpoint(first).tensors, Checkpoint(second).tensors
    same, total = [0, 0], [0, 0]  # of all, of the first layer
    for name, tensor in one.items():
        if ".layers." in name and len(tensor.shape) == 2:
            equal = (tensor.read() == 0) == (two[name].read() == 0)
            for i in (0, 1) if ".layers.0." in name else (0,):
                same[i], total[i] = same[i] + int(equal.sum()), total[i] + equal.numel()
    return {"masks_agree": same[0] / total[0], "first_layer_agrees": same[1] / total[1]}


def _cases(arguments: argparse.Namespace, folder: Path) -> Iterator[Case]:
    """The requested model; without a request, the bundled one and a random one."""
    given = arguments.model or arguments.shape
    for name in [given] if given else ["bundled", "0.2b"]:
        passages, tokens = folder / "passages.txt", arguments.tokens
        if name == "bundled":
            from launch.sweep.compress import SOURCES

            source, tokens = BUNDLED_MODEL, _DEMO["tokens"]
            lines = SOURCES["gazetteer"](_DEMO["samples"], 0)
            passages.write_text(
                "".join(" ".join(line.split()) + "\n" for line in lines)
            )
        else:
            source = Path(name)
            if not arguments.model:
                layers = (
                    {"num_hidden_layers": arguments.layers} if arguments.layers else {}
                )
                source = write_checkpoint(
                    folder / "dense", dataclasses.replace(SHAPES[name], **layers)
                )
            write_passages(passages, source, arguments.samples, tokens)
        yield Case(Path(name).name, source, passages, tokens)


def measure(
    case: Case,
    method: str,
    sides: Mapping[str, Path | None],
    rounds: int,
    threads: int,
    folder: Path,
) -> list[dict[str, Any]]:
    """A row per side, of `rounds` jobs of each in turn; a side's value is its
    interpreter if it is not ours."""
    runs: dict[str, list[dict[str, Any]]] = {who: [] for who in sides}
    made: dict[str, Path] = {}
    for number in range(rounds):
        for who, python in sides.items():
            if who in made:
                shutil.rmtree(made[who])
            made[who] = folder / f"{case.model}-{method}-{who}-{number}"
            paths = (case.source.resolve(), case.passages.resolve(), made[who])
            work = [str(each) for each in (method, *paths, case.tokens, threads)]
            if python is None:
                own = module_command(
                    "benchmarks.pruning.prune", "--job", json.dumps([who, *work])
                )
                runs[who].append(answer_of("a pruning job", own))
            else:  # on the CPU; it leaves logs where it runs
                env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
                command = [str(python), "-P", str(_JOB), *work]
                runs[who].append(
                    answer_of(llm_compressor.NAME, command, env=env, cwd=folder)
                )
    rows = []
    for who, jobs in runs.items():
        row: dict[str, Any] = {
            "model": case.model,
            "method": method,
            "who": who,
            "rounds": rounds,
        }
        row |= {key: median(run[key] for run in jobs) for key in jobs[0]}
        row |= {"seconds_min": min(run["seconds"] for run in jobs)}
        row |= {"seconds_max": max(run["seconds"] for run in jobs)}
        if who != "ours" and "ours" in runs:
            ratios = [
                theirs["seconds"] / ours["seconds"]
                for theirs, ours in zip(jobs, runs["ours"], strict=True)
            ]
            row |= {"ours_times_faster": median(ratios)}
            row |= {
                "ours_times_faster_min": min(ratios),
                "ours_times_faster_max": max(ratios),
            }
            row |= agreement(made["ours"], made[who])
        rows.append(row)
    for out in made.values():
        shutil.rmtree(out)
    return rows


_COLUMNS = {
    "model": "{model}",
    "method": "{method}",
    "who": "{who}",
    "median s": "{seconds:.2f} ({seconds_min:.2f}-{seconds_max:.2f})",
    "cpu s": "{cpu_seconds:.2f}",
    "peak GiB": "{peak_gib:.2f}",
    "ours is, times faster": (
        "{ours_times_faster:.2f}"
        " ({ours_times_faster_min:.2f}-{ours_times_faster_max:.2f})"
    ),
    "masks agree (layer 0)": "{masks_agree:.4%} ({first_layer_agrees:.3%})",
}


def main() -> None:
    parser = Options(__doc__)
    models = parser.add_mutually_exclusive_group()
    models.add_argument("--model", help="'bundled', or a dense checkpoint's directory")
    models.add_argument("--shape", choices=SHAPES, help="of a random checkpoint")
    parser.add_argument("--layers", type=count, help="of the shape, if not all")
    parser.add_argument("--samples", type=count, default=16, help="random passages")
    parser.add_argument(
        "--tokens", type=count, default=512, help="of a random passage, and the window"
    )
    parser.add_argument("--methods", default="wanda,sparsegpt")
    parser.add_argument("--only", choices=("ours", "recipe", "gpu"))
    parser.add_argument(
        "--peer", choices=(llm_compressor.NAME,), help="compare with it too"
    )
    parser.add_argument(
        "--repeat", type=count, default=3, help="jobs of each side, in turn"
    )
    parser.add_argument("--threads", type=count, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        who, method, source, passages, out, tokens, threads = json.loads(arguments.job)
        print(
            json.dumps(
                job(
                    who,
                    method,
                    Path(source),
                    Path(passages),
                    Path(out),
                    int(tokens),
                    int(threads),
                )
            )
        )
        return
    methods = arguments.methods.split(",")
    if unknown := set(methods) - set(_BARS):
        parser.error(f"--methods: {min(unknown)!r} is not one of {', '.join(_BARS)}")
    if arguments.model not in (None, "bundled") and not Path(arguments.model).is_dir():
        parser.error(f"--model: {arguments.model}: no such directory")
    sides: dict[str, Path | None] = dict.fromkeys(
        [arguments.only] if arguments.only else ["ours", "recipe"]
    )
    if arguments.peer:
        try:
            sides[llm_compressor.NAME] = llm_compressor.environment()
        except InputError as error:
            print(f"{llm_compressor.NAME} is left out: {error}", file=sys.stderr)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in _cases(arguments, Path(folder)):
            for method in methods:
                rows += measure(
                    case,
                    method,
                    sides,
                    arguments.repeat,
                    arguments.threads,
                    Path(folder),
                )
    for row in rows:
        for field, bar in (
            _BARS[row["method"]].items() if row["who"] == "recipe" else ()
        ):
            if field in row and row[field] < bar:
                print(
                    f"prune: no ratio: {row['method']} on {row['model']}: {field}:"
                    f" {row[field]:.4%} of the weights, {bar:.2%} are required",
                    file=sys.stderr,
                )
                raise SystemExit(1)
    alone = [*_COLUMNS.values()][:6]  # of a side that none is compared with
    shown = [
        alone if "ours_times_faster" not in row else _COLUMNS.values() for row in rows
    ]
    cells = [
        [cell.format(**row) for cell in line]
        for line, row in zip(shown, rows, strict=True)
    ]
    print_table("bench prune", [*_COLUMNS], cells, left=3)
    ratios = [
        row["ours_times_faster"]
        for row in rows
        if row["who"] == "recipe" and "ours_times_faster" in row
    ]
    print(
        json_text(
            {"benchmark": "prune", "ratio": min(ratios, default=None), "rows": rows}
        )
    )


if __name__ == "__main__":
    run_main(main)
