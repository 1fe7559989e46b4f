"""Does the vLLM engine agree with the torch engine on a model, also after two swaps?

    python -m tests.gpu.agree MODEL DTYPE [--graphs full|piecewise|decode|false]
    [--tokens 300]

MODEL is a folder, or a tiny random model: heads-64, heads-256, or window (of 128
tokens). Each stage prints a line of JSON: the model itself, a pruned one that is
swapped in, and the model swapped back. A line has the largest distance and the mean
of

- scores, greedy, beams: nats between log-probabilities of a token; the oracle scores
  the tokens that the engine chose
- ranks, greedy ranks: logarithms of the ratio of two ranks; a greedy token should
  have rank 1
- samples: 1 for each that differs between a batch and alone

The exit code is 1 if a distance exceeds its bound, or a request has no answer."""

import dataclasses
import json
import math
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Options, count, run_main
from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.tokenizer import read_eos_ids
from evaluator.core.records import TokenIds
from evaluator.engine.base import (
    Engine,
    FixedSource,
    Generate,
    LoadReport,
    Response,
    Score,
)
from evaluator.engine.beam import BeamSearch, Hypothesis
from evaluator.engine.comparisons import DisagreementError, of_ranks, of_scores, pairs
from evaluator.engine.config import EngineConfig, build_engine
from evaluator.engine.tolerances import NATS, RANKS, Precision, Tolerance, precision
from pruning.config import PruneConfig
from pruning.run import prune
from tests.support.engines import answers, oracle_of, random_tokens
from tests.support.models import Architecture, save_tiny_model

# Heads for which FlashAttention 3 has schedules of its own
# (evaluator/engine/vllm/v2/schedules.py).
TINY: Mapping[str, tuple[Architecture, dict[str, Any]]] = {
    "heads-64": ("qwen3", {"head_dim": 64}),
    "heads-256": ("qwen3", {"head_dim": 256}),
    "window": ("mistral", {"head_dim": 64, "sliding_window": 128}),
}
# Nats between two programs, for larger models: about twice what an H100 showed with 0.6 B
# (benchmarks/results/gpu/agree.jsonl). Broken graphs were 22 nats away.
LARGE_APART: Mapping[Precision, Tolerance] = {
    "float32": NATS["float32"],
    "float32 on a GPU": Tolerance(0.08, 0.025),
    "half, float32 logits": Tolerance(1.1, 0.3),
}
# of prompts: within, at and after the ends of cache blocks
_LENGTHS = (1, 15, 16, 17, 31, 32, 33, 129)
_OPTIONS, _SAMPLES = 16, 12
_LEAST_TOKENS = 40 + _SAMPLES  # of the prompt that all samples begin with
Distances = dict[str, list[float]]
Beams = Mapping[str, tuple[Hypothesis, ...]]  # by prompt, best first


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """Requests by kind; the ids of a kind begin with its name."""

    scores: tuple[Score, ...]
    greedy: tuple[Generate, ...]
    samples: tuple[Generate, ...]
    searched: dict[str, TokenIds]  # prompts of beam searches, by name
    eos_ids: frozenset[int]

    @property
    def exact(self) -> tuple[Score | Generate, ...]:
        return (*self.scores, *self.greedy)


def exceeded(distances: Distances, nats: Tolerance, ranks: Tolerance) -> list[str]:
    """The kinds of distances that exceed their bounds, in words. No sample may
    differ."""
    found = []
    for kind, some in distances.items():
        allowed = ranks if "ranks" in kind else nats
        if kind == "samples":
            allowed = Tolerance(0, 0)
        if not allowed.allows(measured := Tolerance.of(some)):
            found.append(f"{kind} {measured}, allowed {allowed}")
    return found


def cases_of(vocabulary: int, tokens: int, eos_ids: frozenset[int]) -> Cases:
    """Requests of random tokens, with prompts of up to so many."""
    draw = random.Random(0)
    shared = random_tokens(draw, tokens, vocabulary)
    prompts = [
        random_tokens(draw, length, vocabulary)
        for length in _LENGTHS
        if length < tokens
    ] + [shared]
    scores = [
        Score(
            request_id=f"score-{len(ids)}",
            prompt_ids=ids,
            continuation_ids=random_tokens(draw, 7, vocabulary),
        )
        for ids in prompts
    ]
    for number in range(_OPTIONS):
        option = random_tokens(draw, number % 5 + 1, vocabulary)
        scores.append(
            Score(
                request_id=f"score-option-{number}",
                prompt_ids=shared,
                continuation_ids=option,
            )
        )
    greedy = [
        Generate(
            request_id=f"greedy-{len(ids)}",
            prompt_ids=ids,
            max_tokens=24,
            top_logprobs=8,
        )
        for ids in prompts
    ]
    drawn: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "top_p": 0.9}
    samples = [
        Generate(
            request_id=f"sample-{seed}",
            prompt_ids=shared[: 40 + seed],
            seed=seed,
            **drawn,
        )
        for seed in range(_SAMPLES)
    ]
    return Cases(
        scores=tuple(scores),
        greedy=tuple(greedy),
        samples=tuple(samples),
        searched={"beam-short": shared[:48], "beam-long": shared},
        eos_ids=eos_ids,
    )


def search(engine: Engine, cases: Cases) -> Beams:
    """Beam search from several prompts at once."""
    searches = {
        name: BeamSearch(name, prompt, width=5, max_tokens=16, eos_ids=cases.eos_ids)
        for name, prompt in cases.searched.items()
    }
    requests: list[Any] = [
        request for search in searches.values() for request in search.start()
    ]
    # the source reads what is appended here
    for response in engine.run(FixedSource(requests)):
        requests += searches[response.request_id.split("/")[0]].advance([response])
    return {name: search.hypotheses() for name, search in searches.items()}


def of_beams(beams: Beams, cases: Cases, oracle: Engine) -> list[float]:
    """Nats per token between each beam's score and that of the same tokens."""
    distances = []
    for name, hypotheses in beams.items():
        for each in hypotheses:
            request = Score(
                request_id=name,
                prompt_ids=cases.searched[name],
                continuation_ids=each.token_ids,
            )
            scored = sum(answers(oracle, [request])[name].logprobs)
            distances.append(abs(each.logprob - scored) / len(each.token_ids))
    return distances


def compare(engine: Engine, oracle: Engine, cases: Cases) -> Distances:
    """The distances by kind. Raises DisagreementError where a request has no answer."""
    exact, batch = answers(engine, cases.exact), answers(engine, cases.samples)
    alone: dict[str, Response] = {}
    for request in cases.samples:
        alone |= answers(engine, [request])
    for name, answer in (exact | batch | alone).items():
        if answer.status != "ok":
            raise DisagreementError(f"{name}: {answer.error or answer.status}")
    beams = search(engine, cases)
    # The engine's own tokens: rounding may turn a choice between two that are nearly
    # equal.
    chosen = [
        Score(
            request_id=each.request_id,
            prompt_ids=each.prompt_ids,
            continuation_ids=exact[each.request_id].token_ids,
        )
        for each in cases.greedy
    ]
    scored, followed = answers(oracle, cases.scores), answers(oracle, chosen)
    ours = {request.request_id: exact[request.request_id] for request in cases.scores}
    greedy = {request.request_id: exact[request.request_id] for request in cases.greedy}
    return {
        "scores": of_scores(ours, scored),
        "ranks": of_ranks(ours, scored),
        "greedy": of_scores(greedy, followed),
        "greedy ranks": [
            math.log(rank) for answer in followed.values() for rank in answer.ranks
        ],
        "beams": of_beams(beams, cases, oracle),
        "samples": [
            float(one.token_ids != other.token_ids)
            for _, one, other in pairs(batch, alone)
        ],
    }


def stages(
    config: EngineConfig, checkpoints: Sequence[Path], tokens: int = 300
) -> Iterator[tuple[LoadReport, Distances]]:
    """One engine loads the checkpoints in turn. Each is compared with the torch
    engine."""
    engine = build_engine(config)
    for checkpoint in checkpoints:
        report = engine.load(checkpoint)
        cases = cases_of(
            Checkpoint(checkpoint).vocabulary, tokens, read_eos_ids(checkpoint)
        )
        yield report, compare(engine, oracle_of(checkpoint, config), cases)
    engine.close()


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("dtype", choices=("float32", "bfloat16"))
    parser.add_argument(
        "--graphs", choices=("full", "piecewise", "decode", "false"), default="full"
    )
    parser.add_argument(
        "--tokens", type=count, default=300, help="of the longest prompt"
    )
    options = parser.parse_args()
    if options.tokens < _LEAST_TOKENS:
        parser.error(f"--tokens: {options.tokens}: at least {_LEAST_TOKENS} are needed")
    import torch

    config = EngineConfig(
        dtype=options.dtype,
        max_model_len=options.tokens + 64,
        max_num_seqs=64,
        cuda_graphs=False if options.graphs == "false" else options.graphs,
        kv_cache_gib=2,  # others may start on the same GPU
        gpu_memory_utilization=0.1,
    )
    exactness = precision(options.dtype, "float32", on_gpu=torch.cuda.is_available())
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        model, pruned = Path(options.model), Path(folder) / "pruned"
        if options.model in TINY:
            architecture, changes = TINY[options.model]
            model = save_tiny_model(
                Path(folder) / "tiny", architecture, dtype=options.dtype, **changes
            )
        prune(PruneConfig(source=model, method="magnitude", sparsity=0.5), pruned)
        names = iter(("dense", "pruned", "back"))
        for report, distances in stages(config, [model, pruned, model], options.tokens):
            line = {
                "model": options.model,
                "dtype": options.dtype,
                "stage": next(names),
                "swapped": report.swapped,
            }
            line |= {
                "graphs": report.setup.get("graphs"),
                "load_seconds": round(report.seconds, 1),
            }
            kinds = {kind: Tolerance.of(each) for kind, each in distances.items()}
            print(
                json.dumps(
                    line
                    | {kind: dataclasses.asdict(each) for kind, each in kinds.items()}
                ),
                flush=True,
            )
            found = exceeded(distances, LARGE_APART[exactness], RANKS[exactness])
            problems += [f"{line['stage']}: {problem}" for problem in found]
    words = ", ".join(f"{kind} {each}" for kind, each in kinds.items())
    print("; ".join(problems) or f"the engines agree: {words}")
    if problems:
        raise SystemExit(1)


if __name__ == "__main__":
    run_main(main)
