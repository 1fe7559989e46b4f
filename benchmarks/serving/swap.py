"""The next checkpoint: swapped into the running engine and verified, against
building a new engine for it.

    resurface bench swap [--model DIR | random:SHAPE] [--rounds 3] [--engine-args
    JSON]

Both are timed without their imports. The other checkpoint is the model pruned by
magnitude to 0.5. After the swap the engine must give the log-likelihoods that a new
engine gives."""

import argparse
import json
import tempfile
import time
from pathlib import Path

from benchmarks.harness import (
    Agreement,
    Child,
    Options,
    Side,
    compare,
    count,
    module_command,
    run_main,
)
from benchmarks.serving import workload
from evaluator.core.errors import Document, Json
from evaluator.engine.base import FixedSource, Score
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from pruning.config import PruneConfig
from pruning.run import prune

# Nats, of each token's log-likelihood. In bfloat16 the same weights give the same bits
# only in the same kernels, which an engine chooses anew when it starts.
TOLERANCES = {"float32": 1e-5, "half": 0.1}


def _ask(engine: VLLMEngine) -> Json:
    request = Score(
        request_id="0",
        prompt_ids=tuple(range(10, 60)),
        continuation_ids=tuple(range(20, 40)),
    )
    (response,) = engine.run(FixedSource([request]))
    return {"logprobs": list(response.logprobs), "dtype": engine.dtype}


def fresh(checkpoint: str, engine_args: Json) -> Json:
    """A new engine for this checkpoint, in this process."""
    import vllm  # noqa: F401  # importing it is not part of a start

    engine = VLLMEngine(EngineConfig(**engine_args))
    started = time.perf_counter()
    engine.load(Path(checkpoint))
    return {"seconds": time.perf_counter() - started, **_ask(engine)}


class Swapper:
    """One engine, between a dense checkpoint and another of its architecture."""

    def __init__(self, dense: Path, other: Path, engine_args: Json) -> None:
        self._dense, self._other = dense, other
        self._engine = VLLMEngine(EngineConfig(**engine_args))
        self._engine.load(dense)

    def swap(self) -> Json:
        """From the dense checkpoint to the other."""
        self._engine.load(self._dense)
        return {"seconds": self._engine.load(self._other).seconds, **_ask(self._engine)}


def agree(ours: Document, theirs: Document) -> Agreement:
    """Whether the swapped engine gives the log-likelihoods of a new one."""
    pairs = zip(ours["logprobs"], theirs["logprobs"], strict=True)
    largest = max(abs(one - other) for one, other in pairs)
    exact = ours.get("dtype", "float32") == "float32"
    allowed = TOLERANCES["float32" if exact else "half"]
    how = f"log-likelihoods within {allowed} nats (largest {largest:.1e})"
    return Agreement(holds=largest <= allowed, how=how)


def main() -> None:
    parser = Options(__doc__)
    workload.add_model(parser)
    rounds = "timed rounds of each side (default: 3)"
    parser.add_argument("--rounds", type=count, default=3, help=rounds)
    parser.add_argument("--fresh", help=argparse.SUPPRESS)  # the child
    options = parser.parse_args()
    if options.fresh:
        print(json.dumps(fresh(options.fresh, options.engine_args)), flush=True)
        return
    dense = workload.model_directory(options.model)
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "pruned"
        prune(PruneConfig(source=dense, method="magnitude", sparsity=0.5), other)
        swapper = Swapper(dense, other, options.engine_args)
        arguments = ("--fresh", other, "--engine-args", json.dumps(options.engine_args))
        command = module_command("benchmarks.serving.swap", *arguments)
        ours = Side(
            name="swapped in place, verified",
            run=swapper.swap,
            facts=lambda: {"model": options.model},
        )
        theirs = Side(
            name="a new engine",
            run=lambda: Child("a new engine", command).only(),
            agree=agree,
        )
        compare("swap", {"ours": ours, "theirs": theirs}, rounds=options.rounds)


if __name__ == "__main__":
    run_main(main)
