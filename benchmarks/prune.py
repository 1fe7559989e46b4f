"""Our pruning against the published recipe, written plainly: whole-job time, peak memory, and whether masks agree.

    resurface bench prune [--model DIR | --shape 0.2b] [--samples 16] [--tokens 512] [--methods wanda,sparsegpt]
    python benchmarks/prune.py --shape 1.7b --only ours      the memory of a large model
    python benchmarks/prune.py --peer llm-compressor         with llm-compressor's modifiers beside

Each job runs in a process of its own, in turn, `--repeat` times; the fastest counts. Peak memory is resident memory
above what the process held after its imports. Prints a table and, as last line, JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import prune_peer
from synthetic import SHAPES, write_checkpoint, write_passages


def _status(field: str) -> int:
    """A field of /proc/self/status, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def job(who: str, method: str, source: Path, passages: Path, out: Path, tokens: int, threads: int) -> dict[str, Any]:
    """One pruning in this process."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM  # noqa: F401

    from pruning import run

    torch.set_num_threads(threads)
    texts = passages.read_text().splitlines()
    base = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts here
    started, cpu = time.perf_counter(), time.process_time()
    if who == "ours":
        from pruning.config import CalibrationConfig, PruneConfig

        calibration = CalibrationConfig(source=f"text:{passages}", samples=len(texts), sequence_length=tokens)
        run.prune(PruneConfig(source=source, method=method, sparsity=0.5, calibration=calibration, device="cpu"), out)
    else:
        import prune_recipe

        prune_recipe.run(source, out, method, 0.5, texts, tokens)
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
        "peak_gib": (_status("VmHWM") - base) / 2**30,
    }


def agreement(first: Path, second: Path) -> float:
    """Share of the weights of all decoder matrices whose zeros agree."""
    from pruning.checkpoint import Checkpoint

    one, two = Checkpoint(first), Checkpoint(second)
    same = total = 0
    for name, entry in one.entries.items():
        if ".layers." in name and len(entry.shape) == 2:
            equal = (one.read(name) == 0) == (two.read(name) == 0)
            same, total = same + int(equal.sum()), total + equal.numel()
    return same / total


def compare(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    if arguments.model is None:
        shape = SHAPES[arguments.shape]
        if arguments.layers:
            shape = dataclasses.replace(shape, layers=arguments.layers)
        source = write_checkpoint(folder / "dense", shape)
    else:
        source = arguments.model
    passages = arguments.passages or write_passages(folder / "passages.txt", arguments.samples, arguments.tokens)
    sides = ["ours", "recipe"] if arguments.only is None else [arguments.only]
    python = None if arguments.peer is None else prune_peer.environment()
    if isinstance(python, Path):
        sides.append(prune_peer.NAME)
    elif python is not None:
        print(f"{prune_peer.NAME} is left out: {python}", file=sys.stderr)
    rows = []
    for method in arguments.methods.split(","):
        made: dict[str, Path] = {}
        measured: dict[str, dict[str, Any]] = {}
        for who in sides:
            runs = []
            for number in range(arguments.repeat):
                made[who] = folder / f"{who}-{method}-{number}"
                work = (method, source, passages, made[who], arguments.tokens, arguments.threads)
                if who == prune_peer.NAME:
                    assert isinstance(python, Path)
                    runs.append(prune_peer.run(python, *work))
                else:
                    runs.append(_apart(who, *work))
            measured[who] = {"method": method, "who": who} | min(runs, key=lambda run: run["seconds"])
        for other in [who for who in sides if who != "ours" and "ours" in measured]:
            ours, theirs = measured["ours"], measured[other]
            theirs["ours_times_faster"] = theirs["seconds"] / ours["seconds"]
            theirs["ours_times_less_cpu"] = theirs["cpu_seconds"] / ours["cpu_seconds"]
            theirs["masks_agree"] = agreement(made["ours"], made[other])
        rows += measured.values()
    return rows


def _apart(*work: object) -> dict[str, Any]:
    """`job` in a process of its own."""
    command = [sys.executable, __file__, "--job", json.dumps(list(map(str, work)))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a dense checkpoint")
    parser.add_argument("--passages", type=Path, help="text file, one passage a line; default: random letters")
    parser.add_argument("--shape", choices=SHAPES, default="0.2b")
    parser.add_argument("--layers", type=int, help="of the shape, if not all")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--methods", default="wanda,sparsegpt")
    parser.add_argument("--only", choices=("ours", "recipe"))
    parser.add_argument("--peer", choices=(prune_peer.NAME,), help="compare with it too, in an environment of its own")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        who, method, source, passages, out, tokens, threads = json.loads(arguments.job)
        print(json.dumps(job(who, method, Path(source), Path(passages), Path(out), int(tokens), int(threads))))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(arguments, Path(folder))
    print(f"{'method':10} {'who':14} {'seconds':>8} {'cpu s':>8} {'peak GiB':>9} {'ours is':>14} {'masks agree':>12}")
    for row in rows:
        faster = f"{row['ours_times_faster']:.2f}x as fast" if "ours_times_faster" in row else ""
        agree = f"{row['masks_agree']:.6%}" if "masks_agree" in row else ""
        print(
            f"{row['method']:10} {row['who']:14} {row['seconds']:8.1f} {row['cpu_seconds']:8.1f} "
            f"{row['peak_gib']:9.2f} {faster:>14} {agree:>12}"
        )
    model = arguments.shape if arguments.model is None else arguments.model.name
    ratios = [row["ours_times_faster"] for row in rows if row["who"] == "recipe" and "ours_times_faster" in row]
    print(json.dumps({"benchmark": "prune", "model": model, "ratio": min(ratios, default=None), "rows": rows}))


if __name__ == "__main__":
    main()
