"""The next checkpoint: swapped into the running engine and verified, against building a new engine for it.

    resurface bench swap [--model DIR] [--rounds 3]

Both are timed without their imports. The other checkpoint is the model pruned by magnitude to 0.5. After the swap the
engine must give the log-likelihoods that a new engine gives.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import Agreement, Side, compare

from launch.models import resolve_model
from pruning.config import PruneConfig
from pruning.run import prune

TOLERANCE = 1e-5  # nats, of each token's log-likelihood


def fresh(checkpoint: str) -> None:
    """The child: a new engine for `checkpoint`; prints how long it took and what it computes."""
    import vllm  # noqa: F401  # importing it is not part of a start

    from evaluator.config import EngineConfig
    from evaluator.engine.vllm_engine import VLLMEngine

    engine = VLLMEngine(EngineConfig())
    started = time.perf_counter()
    engine.load(Path(checkpoint))
    print(json.dumps({"seconds": time.perf_counter() - started, "logprobs": _ask(engine)}), flush=True)


def _ask(engine: Any) -> list[float]:
    from evaluator.engine.base import FixedSource, Score

    request = Score(request_id="0", prompt_ids=tuple(range(10, 60)), continuation_ids=tuple(range(20, 40)))
    return list(next(iter(engine.run(FixedSource([request])))).logprobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fresh", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fresh:
        fresh(options.fresh)
        return
    from evaluator.config import EngineConfig
    from evaluator.engine.vllm_engine import VLLMEngine

    dense = resolve_model(options.model)
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "pruned"
        prune(PruneConfig(source=dense, method="magnitude", sparsity=0.5), other)
        engine = VLLMEngine(EngineConfig())
        engine.load(dense)

        def swap() -> Any:
            engine.load(dense)
            report = engine.load(other)
            return {"seconds": report.seconds, "logprobs": _ask(engine)}

        def start() -> Any:
            command = [sys.executable, __file__, "--fresh", str(other)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            return json.loads(done.stdout.strip().splitlines()[-1])

        compare(
            "swap",
            ours=Side(name="swapped in place, verified", run=swap),
            theirs=Side(name="a new engine", run=start),
            agree=_agree,
            rounds=options.rounds,
            facts=lambda: {"model": options.model},
        )


def _agree(ours: Any, theirs: Any) -> Agreement:
    largest = max(abs(a - b) for a, b in zip(ours["logprobs"], theirs["logprobs"], strict=True))
    return Agreement(holds=largest <= TOLERANCE, how=f"log-likelihoods within {TOLERANCE} nats (largest {largest:.1e})")


if __name__ == "__main__":
    main()
