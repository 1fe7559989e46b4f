"""Our pruning against the published recipe, written plainly: whole-job time, peak
memory, and whether masks agree.

    resurface bench prune [--samples 16] [--tokens 512] [--methods wanda,sparsegpt]
    resurface bench prune --shape 0.2b              # one of its two models; or --model
    resurface bench prune --shape 1.7b --only ours  # the memory of a large model
    resurface bench prune --shape 8b --only gpu     # ours on a GPU: seconds and peak
    resurface bench prune --peer llm-compressor     # with its modifiers beside

Each job runs in a separate process, the sides in turn. Peak memory is resident
memory above that after the imports. If masks do not agree, no ratio is printed and
the exit code is 1."""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.harness import (
    Child,
    Options,
    count,
    module_command,
    print_table,
    run_main,
    spread,
)
from benchmarks.pruning.llm_compressor_job import measured
from benchmarks.pruning.synthetic import SHAPES, write_checkpoint, write_passages
from evaluator.core.errors import Document, InputError, Json, json_text
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


@dataclass(frozen=True, slots=True)
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
            config = PruneConfig(
                source=source,
                method=method,
                sparsity=0.5,
                calibration=calibration,
                device="cuda" if who == "gpu" else "cpu",
            )
            manifest = run.prune(config, out)
            if who == "gpu":
                found["peak_gib"] = manifest.peak_memory_bytes / 2**30
    return found


def agreement(first: Path, second: Path) -> dict[str, float]:
    """Share of the weights of all decoder matrices whose zeros agree, and of those
    of the first layer alone."""
    from evaluator.checkpoints.checkpoint import Checkpoint

    one, two = Checkpoint(first).tensors, Checkpoint(second).tensors
    same, total = Counter[str](), Counter[str]()
    for name, tensor in one.items():
        if ".layers." not in name or len(tensor.shape) != 2:
            continue
        equal = (tensor.read() == 0) == (two[name].read() == 0)
        counted = ["masks_agree"]
        if ".layers.0." in name:
            counted.append("first_layer_agrees")
        for field in counted:
            same[field] += int(equal.sum())
            total[field] += equal.numel()
    return {field: same[field] / total[field] for field in total}


def _cases(options: argparse.Namespace, folder: Path) -> Iterator[Case]:
    """The requested model; without a request, the bundled one and a random one."""
    chosen = options.model or options.shape
    for name in [chosen] if chosen else ["bundled", "0.2b"]:
        passages, tokens = folder / "passages.txt", options.tokens
        if name == "bundled":
            from launch.sweep.compress import SOURCES

            source, tokens = BUNDLED_MODEL, _DEMO["tokens"]
            texts = SOURCES["gazetteer"](_DEMO["samples"], 0)
            lines = [" ".join(text.split()) + "\n" for text in texts]
            passages.write_text("".join(lines))
        else:
            source = Path(name)
            if not options.model:
                source = write_checkpoint(folder / "dense", SHAPES[name])
            write_passages(passages, source, options.samples, tokens)
        yield Case(Path(name).name, source, passages, tokens)


def _run_job(who: str, python: Path | None, work: Sequence[str], folder: Path) -> Json:
    """One job in a process of its own; `python`: of a side that is not ours."""
    if python is None:
        job_options = ("--job", json.dumps([who, *work]))
        command = module_command("benchmarks.pruning.prune", *job_options)
        return Child("a pruning job", command).only()
    # on the CPU; it leaves logs where it runs
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    command = [str(python), "-P", str(_JOB), *work]
    return Child(llm_compressor.NAME, command, env=env, cwd=folder).only()


def measure(
    case: Case,
    method: str,
    sides: Mapping[str, Path | None],
    options: argparse.Namespace,
    folder: Path,
) -> list[Json]:
    """A row per side, of `--repeat` jobs of each in turn; a side's value is its
    interpreter if it is not ours."""
    jobs: dict[str, list[Json]] = {who: [] for who in sides}
    outputs = {who: folder / f"{case.model}-{method}-{who}" for who in sides}
    paths = case.source.resolve(), case.passages.resolve()
    for _ in range(options.repeat):
        for who, python in sides.items():
            shutil.rmtree(outputs[who], ignore_errors=True)
            work = (method, *paths, outputs[who], case.tokens, options.threads)
            jobs[who].append(_run_job(who, python, list(map(str, work)), folder))
    rows = []
    for who, of_side in jobs.items():
        row: Json = {"model": case.model, "method": method, "who": who}
        row["rounds"] = options.repeat
        for field in of_side[0]:
            row[field] = median(one[field] for one in of_side)
        row |= spread("seconds", [one["seconds"] for one in of_side])
        if who != "ours" and "ours" in jobs:
            pairs = zip(of_side, jobs["ours"], strict=True)
            ratios = [one["seconds"] / ours["seconds"] for one, ours in pairs]
            row |= spread("ours_times_faster", ratios)
            row |= agreement(outputs["ours"], outputs[who])
        rows.append(row)
    for output in outputs.values():
        shutil.rmtree(output)
    return rows


_COLUMNS = {
    "model": "{model}",
    "method": "{method}",
    "who": "{who}",
    "median s": "{seconds:.2f} ({seconds_min:.2f}-{seconds_max:.2f})",
    "cpu s": "{cpu_seconds:.2f}",
    "peak GiB": "{peak_gib:.2f}",
}
_COMPARED = {
    "ours is, times faster": (
        "{ours_times_faster:.2f}"
        " ({ours_times_faster_min:.2f}-{ours_times_faster_max:.2f})"
    ),
    "masks agree (layer 0)": "{masks_agree:.4%} ({first_layer_agrees:.3%})",
}


def report(rows: Sequence[Document]) -> None:
    """Print the table and the JSON line. Raises SystemExit with code 1 where the masks
    of the recipe are not ours."""
    cells, ratios = [], []
    for row in rows:
        shown = [text.format(**row) for text in _COLUMNS.values()]
        if "ours_times_faster" in row:
            shown += [text.format(**row) for text in _COMPARED.values()]
            if row["who"] == "recipe":
                _check(row)
                ratios.append(row["ours_times_faster"])
        cells.append(shown)
    print_table("bench prune", [*_COLUMNS, *_COMPARED], cells, left=3)
    ratio = min(ratios, default=None)
    print(json_text({"benchmark": "prune", "ratio": ratio, "rows": rows}))


def _check(row: Document) -> None:
    for field, bar in _BARS[row["method"]].items():
        if row[field] < bar:
            print(
                f"prune: no ratio: {row['method']} on {row['model']}: {field}:"
                f" {row[field]:.4%} of the weights, {bar:.2%} are required",
                file=sys.stderr,
            )
            raise SystemExit(1)


def main() -> None:
    parser = Options(__doc__)
    models = parser.add_mutually_exclusive_group()
    models.add_argument("--model", help="'bundled', or a dense checkpoint's directory")
    models.add_argument("--shape", choices=SHAPES, help="of a random checkpoint")
    add = parser.add_argument
    add("--samples", type=count, default=16, help="random passages")
    add("--tokens", type=count, default=512, help="of a random passage, and the window")
    add("--methods", default="wanda,sparsegpt")
    add("--only", choices=("ours", "recipe", "gpu"))
    add("--peer", choices=(llm_compressor.NAME,), help="compare with it too")
    add("--repeat", type=count, default=3, help="jobs of each side, in turn")
    add("--threads", type=count, default=len(os.sched_getaffinity(0)))
    add("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        who, method, *paths, tokens, threads = json.loads(options.job)
        source, passages, out = map(Path, paths)
        found = job(who, method, source, passages, out, int(tokens), int(threads))
        print(json.dumps(found))
        return
    methods = options.methods.split(",")
    for method in methods:
        if method not in _BARS:
            parser.error(f"--methods: {method!r} is not one of {', '.join(_BARS)}")
    if options.model not in (None, "bundled") and not Path(options.model).is_dir():
        parser.error(f"--model: {options.model}: no such directory")
    names = [options.only] if options.only else ["ours", "recipe"]
    sides: dict[str, Path | None] = dict.fromkeys(names)
    if options.peer:
        try:
            sides[llm_compressor.NAME] = llm_compressor.environment()
        except InputError as error:
            print(f"{llm_compressor.NAME} is left out: {error}", file=sys.stderr)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for case in _cases(options, folder):
            for method in methods:
                rows += measure(case, method, sides, options, folder)
    report(rows)


if __name__ == "__main__":
    run_main(main)
