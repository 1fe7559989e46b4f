"""The next checkpoint: swapped into the running engine and verified, against building a new engine for it.

    resurface bench swap [--model DIR | random:SHAPE] [--rounds 3] [--engine-args JSON]

Both are timed without their imports. The other checkpoint is the model pruned by magnitude to 0.5. After the swap the
engine must give the log-likelihoods that a new engine gives. Besides: how long it takes to read the files' bytes from
the page cache, and a swap whose files are not in it, without and with reading ahead (as a run does while the checkpoint
before is evaluated).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import workload
from harness import Agreement, Side, compare

from pruning.config import PruneConfig
from pruning.run import prune

TOLERANCE = 1e-5  # nats, of each token's log-likelihood
AHEAD_SECONDS = 2.0  # what the kernel is given to read ahead: less than any checkpoint takes to evaluate


def fresh(checkpoint: str, engine_args: dict[str, Any]) -> None:
    """The child: a new engine for `checkpoint`; prints how long it took and what it computes."""
    import vllm  # noqa: F401  # importing it is not part of a start

    from evaluator.engine.config import EngineConfig
    from evaluator.engine.vllm.engine import VLLMEngine

    engine = VLLMEngine(EngineConfig(**engine_args))
    started = time.perf_counter()
    engine.load(Path(checkpoint))
    print(json.dumps({"seconds": time.perf_counter() - started, "logprobs": _ask(engine)}), flush=True)


def _ask(engine: Any) -> list[float]:
    from evaluator.engine.base import FixedSource, Score

    request = Score(request_id="0", prompt_ids=tuple(range(10, 60)), continuation_ids=tuple(range(20, 40)))
    return list(next(iter(engine.run(FixedSource([request])))).logprobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    workload.add_model(parser)
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of each side (default: 3)")
    parser.add_argument("--fresh", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fresh:
        fresh(options.fresh, options.engine_args)
        return
    from evaluator.checkpoints.readahead import read_ahead
    from evaluator.engine.config import EngineConfig
    from evaluator.engine.vllm.engine import VLLMEngine

    dense = workload.model_directory(options.model)
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "pruned"
        prune(PruneConfig(source=dense, method="magnitude", sparsity=0.5), other)
        engine = VLLMEngine(EngineConfig(**options.engine_args))
        engine.load(dense)

        def swap() -> Any:
            engine.load(dense)
            report = engine.load(other)
            return {"seconds": report.seconds, "logprobs": _ask(engine)}

        def start() -> Any:
            command = [sys.executable, __file__, "--fresh", str(other)]
            command += ["--engine-args", json.dumps(options.engine_args)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            return json.loads(done.stdout.strip().splitlines()[-1])

        def beside() -> dict[str, Any]:
            files = sorted(other.glob("*.safetensors"))
            started = time.perf_counter()
            size = sum(len(file.read_bytes()) for file in files)
            facts = {"model": options.model, "gib": size / 2**30, "reading_s": time.perf_counter() - started}
            for name, ahead in (("uncached_s", False), ("read_ahead_s", True)):
                engine.load(dense)
                _forget(files)
                if ahead and (thread := read_ahead(other)) is not None:
                    thread.join()
                    time.sleep(AHEAD_SECONDS)
                facts[name] = engine.load(other).seconds
            return {key: round(value, 4) if isinstance(value, float) else value for key, value in facts.items()}

        compare(
            "swap",
            ours=Side(name="swapped in place, verified", run=swap),
            theirs=Side(name="a new engine", run=start),
            agree=_agree,
            rounds=options.rounds,
            facts=beside,
        )


def _forget(files: list[Path]) -> None:
    """Drop the files from the page cache."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)  # only what is on disk can be dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _agree(ours: Any, theirs: Any) -> Agreement:
    largest = max(abs(a - b) for a, b in zip(ours["logprobs"], theirs["logprobs"], strict=True))
    return Agreement(holds=largest <= TOLERANCE, how=f"log-likelihoods within {TOLERANCE} nats (largest {largest:.1e})")


if __name__ == "__main__":
    main()
