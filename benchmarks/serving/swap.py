"""The next checkpoint: swapped into the running engine and verified, against
building a new engine for it.

    resurface bench swap [--model DIR | random:SHAPE] [--rounds 3] [--engine-args
    JSON]

Both are timed without their imports. The other checkpoint is the model pruned by
magnitude to 0.5. After the swap the engine must give the log-likelihoods that a new
engine gives. Also measured: reading the files' bytes from the page cache, and a swap
whose files are not in that cache, without and with reading ahead (a run reads ahead
while it still evaluates the previous checkpoint)."""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    Agreement,
    Options,
    Side,
    answer_of,
    compare,
    count,
    module_command,
    run_main,
)
from benchmarks.serving import workload
from pruning.config import PruneConfig
from pruning.run import prune

# Nats, of each token's log-likelihood. In bfloat16 the same weights give the same bits
# only in the same kernels, which an engine chooses anew when it starts.
TOLERANCES = {"float32": 1e-5, "half": 0.1}
# what the kernel is given to read ahead: less than any checkpoint takes to evaluate
AHEAD_SECONDS = 2.0


def _ask(engine: Any) -> dict[str, Any]:
    from evaluator.engine.base import FixedSource, Score

    request = Score(
        request_id="0",
        prompt_ids=tuple(range(10, 60)),
        continuation_ids=tuple(range(20, 40)),
    )
    return {
        "logprobs": list(next(iter(engine.run(FixedSource([request])))).logprobs),
        "dtype": engine.dtype,
    }


class Swapper:
    """One engine, between a dense checkpoint and another of its architecture."""

    def __init__(self, dense: Path, other: Path, engine_args: dict[str, Any]) -> None:
        from evaluator.engine.config import EngineConfig
        from evaluator.engine.vllm.engine import VLLMEngine

        self._dense, self._other = dense, other
        self._engine = VLLMEngine(EngineConfig(**engine_args))
        self._engine.load(dense)

    def swap(self) -> dict[str, Any]:
        """From the dense checkpoint to the other."""
        self._engine.load(self._dense)
        return {"seconds": self._engine.load(self._other).seconds, **_ask(self._engine)}

    def uncached(self, *, ahead: bool) -> float:
        """Seconds of a swap whose files are not in the page cache; `ahead`: a reader
        loads them ahead."""
        from evaluator.checkpoints.files import read_ahead

        self._engine.load(self._dense)
        for file in self._other.glob("*.safetensors"):
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)  # only what is on disk can be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        if ahead and (thread := read_ahead(self._other)) is not None:
            thread.join()
            time.sleep(AHEAD_SECONDS)
        seconds: float = self._engine.load(self._other).seconds
        return seconds


def agree(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Agreement:
    """Whether the swapped engine gives the log-likelihoods of a new one."""
    largest = max(
        abs(a - b) for a, b in zip(ours["logprobs"], theirs["logprobs"], strict=True)
    )
    allowed = TOLERANCES[
        "float32" if ours.get("dtype", "float32") == "float32" else "half"
    ]
    return Agreement(
        holds=largest <= allowed,
        how=f"log-likelihoods within {allowed} nats (largest {largest:.1e})",
    )


def main() -> None:
    parser = Options(__doc__)
    workload.add_model(parser)
    parser.add_argument(
        "--rounds", type=count, default=3, help="timed rounds of each side (default: 3)"
    )
    # the child: a new engine for this checkpoint
    parser.add_argument("--fresh", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fresh:
        import vllm  # noqa: F401  # importing it is not part of a start

        from evaluator.engine.config import EngineConfig
        from evaluator.engine.vllm.engine import VLLMEngine

        engine = VLLMEngine(EngineConfig(**options.engine_args))
        started = time.perf_counter()
        engine.load(Path(options.fresh))
        print(
            json.dumps({"seconds": time.perf_counter() - started, **_ask(engine)}),
            flush=True,
        )
        return
    dense = workload.model_directory(options.model)
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "pruned"
        prune(PruneConfig(source=dense, method="magnitude", sparsity=0.5), other)
        swapper = Swapper(dense, other, options.engine_args)
        arguments = ("--fresh", other, "--engine-args", json.dumps(options.engine_args))
        command = module_command("benchmarks.serving.swap", *arguments)

        def beside() -> dict[str, Any]:
            started = time.perf_counter()
            return {
                "model": options.model,
                "gib": round(
                    sum(len(file.read_bytes()) for file in other.glob("*.safetensors"))
                    / 2**30,
                    4,
                ),
                "reading_s": round(time.perf_counter() - started, 4),
                "uncached_s": round(swapper.uncached(ahead=False), 4),
                "read_ahead_s": round(swapper.uncached(ahead=True), 4),
            }

        compare(
            "swap",
            {
                "ours": Side(
                    name="swapped in place, verified", run=swapper.swap, facts=beside
                ),
                "theirs": Side(
                    name="a new engine",
                    run=lambda: answer_of("a new engine", command),
                    agree=agree,
                ),
            },
            rounds=options.rounds,
        )


if __name__ == "__main__":
    run_main(main)
