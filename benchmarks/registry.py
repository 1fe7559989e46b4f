"""The benchmarks that `resurface bench NAME` runs. Each is a module with a command line of its own."""

from __future__ import annotations

from dataclasses import dataclass

from evaluator.core.config import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A benchmark by name. It is run as `python -m MODULE`, so that listing benchmarks imports none of them."""

    name: str
    module: str
    help: str  # what is compared with what, in one line


BENCHMARKS: Registry[Benchmark] = Registry("benchmark")
BENCHMARKS.register(
    Benchmark(
        name="score",
        module="benchmarks.serving.score",
        help="candidate log-likelihoods on a shared context, against one request per option",
    )
)
BENCHMARKS.register(
    Benchmark(
        name="beam",
        module="benchmarks.serving.beam",
        help="beam search without a barrier, against LLM.beam_search",
    )
)
BENCHMARKS.register(
    Benchmark(
        name="fidelity",
        module="benchmarks.serving.fidelity",
        help="divergence from a base over the whole vocabulary, against prompt_logprobs=-1",
    )
)
BENCHMARKS.register(
    Benchmark(
        name="swap",
        module="benchmarks.serving.swap",
        help="a checkpoint swapped into a running engine, against a new engine",
    )
)
BENCHMARKS.register(
    Benchmark(
        name="pass",
        module="benchmarks.serving.checkpoint_pass",
        help="every probe of a checkpoint as one stream, against one blocking call per probe",
    )
)
BENCHMARKS.register(
    Benchmark(
        name="driver",
        module="benchmarks.driver",
        help="requests per second of driver, records and Parquet with an engine that costs nothing",
    )
)
BENCHMARKS.register(
    Benchmark(
        name="cluster",
        module="benchmarks.cluster.run",
        help="a sweep of any size through the real driver, with pretended engines that die at random",
    )
)
BENCHMARKS.register(
    Benchmark(
        name="gate",
        module="benchmarks.gate.run",
        help="the gate's error rates and power, on made-up checkpoints whose true loss is known",
    )
)
BENCHMARKS.register(
    Benchmark(
        name="prune",
        module="benchmarks.pruning.prune",
        help="Wanda and SparseGPT, against the published recipe",
    )
)
