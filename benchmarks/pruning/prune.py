"""Our Wanda and SparseGPT beside llm-compressor's: seconds of a whole job, peak memory,
and the share of the weights that both pruned alike.

    resurface bench prune                               # a random Qwen3 of 0.2 B
    resurface bench prune --model DIR --samples 128     # a dense checkpoint

Each job runs in a separate process, the sides in turn. Peak memory is resident memory
above that after the imports. If masks do not agree, no ratio is printed and the exit
code is 1."""

import argparse
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import (
    Agree,
    Agreement,
    Child,
    Options,
    Side,
    compare,
    count,
    module_command,
    run_main,
)
from benchmarks.pruning.llm_compressor_job import measured
from benchmarks.pruning.synthetic import SHAPES, write_checkpoint, write_passages
from evaluator.core.errors import Document, Json
from quantising.methods import llm_compressor

_THEIR_JOB = Path(__file__).with_name("llm_compressor_job.py")
# What share of all weights must be alike. SparseGPT's later layers are chaotic: it
# picks among updated weights, so one that was rounded otherwise changes what comes
# after it. The first layer sees the same inputs on both sides.
_BARS = {
    "wanda": {"masks_agree": 0.9999},
    "sparsegpt": {"first_layer_agrees": 0.999, "masks_agree": 0.97},
}


@dataclass(frozen=True, slots=True)
class Job:
    """One side prunes a checkpoint into `out`; each run replaces the last one's."""

    who: str
    command: list[str]
    out: Path
    env: dict[str, str]

    def run(self) -> Json:
        """Raises SystemExit, with the last line of its stderr, if the process ends."""
        shutil.rmtree(self.out, ignore_errors=True)
        child = Child(self.who, self.command, env=self.env, cwd=self.out.parent)
        return child.only()


def prune(
    method: str, source: Path, passages: Path, out: Path, tokens: int, threads: int
) -> dict[str, float]:
    """Our job; returns what it took."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM  # noqa: F401

    from pruning import run
    from pruning.config import CalibrationConfig, PruneConfig

    texts = passages.read_text().splitlines()
    calibration = CalibrationConfig(
        source=f"text:{passages}", samples=len(texts), sequence_length=tokens
    )
    config = PruneConfig(
        source=source,
        method=method,
        sparsity=0.5,
        calibration=calibration,
        device="cpu",
    )
    with measured(threads) as found:
        run.prune(config, out)
    return found


def agreement(method: str, ours: Path, theirs: Path) -> Agreement:
    """Whether the zeros of all decoder matrices agree, and those of the first layer."""
    from evaluator.checkpoints.checkpoint import Checkpoint

    own, other = Checkpoint(ours).tensors, Checkpoint(theirs).tensors
    same = dict.fromkeys(("masks_agree", "first_layer_agrees"), 0)
    total = dict(same)
    for name, tensor in own.items():
        if ".layers." not in name or len(tensor.shape) != 2:
            continue
        equal = (tensor.read() == 0) == (other[name].read() == 0)
        counted = ["masks_agree"]
        if ".layers.0." in name:
            counted.append("first_layer_agrees")
        for field in counted:
            same[field] += int(equal.sum())
            total[field] += equal.numel()
    shares = {field: same[field] / total[field] for field in total}
    return Agreement(
        holds=all(shares[field] >= bar for field, bar in _BARS[method].items()),
        how=", ".join(f"{field} {share:.4%}" for field, share in shares.items()),
    )


def sides_of(
    method: str, source: Path, passages: Path, folder: Path, options: argparse.Namespace
) -> dict[str, Side]:
    """Ours and llm-compressor's for one method."""
    keys = {"ours": f"ours-{method}", "theirs": f"theirs-{method}"}
    jobs: dict[str, Job] = {}
    for who, key in keys.items():
        out = folder / key
        work = list(
            map(str, (method, source, passages, out, options.tokens, options.threads))
        )
        command = module_command("benchmarks.pruning.prune", "--job", *work)
        if who == "theirs":
            python = llm_compressor.environment()
            command = [str(python), "-P", str(_THEIR_JOB), *work]
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
        jobs[who] = Job(key, command, out, env)
    peaks: dict[str, float] = {}

    def run(who: str) -> Document:
        result = jobs[who].run()
        peaks[who] = result["peak_gib"]
        return result

    agree: Agree = lambda *_: agreement(  # noqa: E731
        method, jobs["ours"].out, jobs["theirs"].out
    )
    return {
        keys["ours"]: Side(name=f"ours, {method}", run=lambda: run("ours")),
        keys["theirs"]: Side(
            name=f"llm-compressor, {method}",
            run=lambda: run("theirs"),
            agree=agree,
            ours=keys["ours"],
            facts=lambda: {"peak_gib": peaks},
        ),
    }


def main() -> None:
    parser = Options(__doc__)
    models = parser.add_mutually_exclusive_group()
    models.add_argument("--model", type=Path, help="a dense checkpoint's directory")
    models.add_argument("--shape", choices=SHAPES, default="0.2b", help="a random one")
    add = parser.add_argument
    add("--samples", type=count, default=16, help="random passages")
    add("--tokens", type=count, default=512, help="of a passage, and the window")
    add("--repeat", type=count, default=3, help="jobs of each side, in turn")
    add("--threads", type=count, default=len(os.sched_getaffinity(0)))
    add("--job", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        method, *paths, tokens, threads = options.job
        source, passages, out = map(Path, paths)
        print(
            json.dumps(prune(method, source, passages, out, int(tokens), int(threads)))
        )
        return
    if options.model is not None and not options.model.is_dir():
        parser.error(f"--model: {options.model}: no such directory")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = options.model or write_checkpoint(
            folder / "dense", SHAPES[options.shape]
        )
        passages = write_passages(
            folder / "passages.txt", source, options.samples, options.tokens
        )
        sides: dict[str, Side] = {}
        for method in _BARS:
            sides |= sides_of(method, source.resolve(), passages, folder, options)
        compare("prune", sides, rounds=options.repeat)


if __name__ == "__main__":
    run_main(main)
