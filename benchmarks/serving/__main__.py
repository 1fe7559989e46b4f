"""Our engine and drivers against `vllm.LLM` used as its documentation shows, on the
same prompts.

    resurface bench score [--model DIR] [--task random:300,600] [--items 40]
    resurface bench beam [--model DIR] [--task gazetteer] [--items 20]
    resurface bench pass [--model DIR] [--task gazetteer] [--items 100]
    resurface bench pass --sides full,eager,theirs --kv-cache-gib 4 --out DIR
    resurface bench pass --thinking 1000 --engine-args '{"max_num_seqs": 16}'

score    Candidate log-likelihoods: forced decoding on one shared context, against one
         prompt-log-probability request per context and option.
beam     Beam search, 5 beams and 32 tokens: streamed rollouts without a barrier,
         against `LLM.beam_search`.
pass     Every probe of 100 items as one stream, records written, against greedy, then
         samples, then `LLM.beam_search`, then prompt log-probabilities, each as one
         blocking call. All `--sides` start together. Then they work in turn.
         DIR/pass-SIDE.json has the rounds of a side, as soon as each ends. With
         `--thinking` the model thinks first; the other side's thoughts are one more
         blocking call.
"""

import argparse
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.harness import (
    Agreement,
    Child,
    Options,
    Results,
    Side,
    compare,
    count,
    run_main,
    settings,
)
from benchmarks.serving import lm_eval, workload
from benchmarks.serving.launching import OURS, THEIRS, Work, start
from evaluator.core.errors import Document, InputError, Json, json_text, unknown
from evaluator.core.files import write_atomically

_SIDES = (*OURS, *THEIRS)
_ANSWERS = ("greedy", "scores", "beams")  # of a round


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Defaults of the options, and what either side does, in words."""

    work: Work
    task: str
    items: int
    rounds: int
    ours: str
    theirs: str


BENCHMARKS = {
    "score": Benchmark(
        "score",
        "random:300,600",
        40,
        5,
        "forced decoding, shared context",
        "LLM.generate(prompt_logprobs=0) per option",
    ),
    "beam": Benchmark(
        "beam", "gazetteer", 20, 3, "streamed rollouts", "LLM.beam_search"
    ),
    "pass": Benchmark(
        "everything",
        "gazetteer",
        100,
        3,
        "one stream, records written",
        "four blocking calls, nothing written",
    ),
}


def parser(name: str) -> Options:
    benchmark, made = BENCHMARKS[name], Options(__doc__)
    made.prog = f"resurface bench {name}"
    workload.add_model(made)
    add = made.add_argument
    task = f"a task, or random:300,600 (default: {benchmark.task})"
    add("--task", default=benchmark.task, help=task)
    items = f"items (default: {benchmark.items})"
    add("--items", type=count, default=benchmark.items, help=items)
    context = "tokens of each context, with other passages"
    add("--context-tokens", type=int, default=0, help=context)
    rounds = f"timed rounds of each side (default: {benchmark.rounds})"
    add("--rounds", type=count, default=benchmark.rounds, help=rounds)
    cache = "of each side's engine (default: 8 on a GPU, 1 on a CPU)"
    add("--kv-cache-gib", type=count, help=cache)
    llm = "JSON: arguments of vllm.LLM for the other side"
    add("--llm-args", type=settings, default={}, help=llm)
    made.set_defaults(sides="ours,theirs", out=None, thinking=0, peer=None)
    if name != "beam":
        peer = "measure it too, in an environment of its own"
        add("--peer", choices=(lm_eval.NAME,), help=peer)
    if name == "pass":
        sides = f"some of {', '.join(_SIDES)} (default: ours,theirs)"
        add("--sides", help=sides)
        out = "write rounds and logs of each side into DIR"
        add("--out", type=Path, metavar="DIR", help=out)
        thinking = "let the model think first, for so many tokens"
        add("--thinking", type=count, help=thinking)
    return made


def chosen(options: argparse.Namespace) -> list[str]:
    """The sides that are measured, ours first. Raises InputError for an unknown one,
    and for settings of its own."""
    sides = set(options.sides.split(","))
    for side in sides:
        if side not in _SIDES:
            raise unknown("side", side, _SIDES)
        if taken := OURS.get(side, {}).keys() & options.engine_args.keys():
            raise InputError(
                f"--engine-args: {min(taken)}: side {side} of --sides sets it"
            )
    return sorted(sides, key=_SIDES.index)


def answered(ours: Document, theirs: Document) -> Agreement:
    """Whether both sides answered the same items. What they answer, the oracle test
    (tests/integration/test_engine_oracle.py) and the control `engine:torch` compare."""
    kinds = [kind for kind in _ANSWERS if kind in ours and kind in theirs]
    same = all(ours[kind].keys() == theirs[kind].keys() for kind in kinds)
    return Agreement(
        holds=same, how=f"answers of {'the same' if same else 'other'} items"
    )


def facts_of(ours: Child) -> Json:
    """What our last round says besides its seconds."""
    stats = ours.results[-1]["stats"]
    # Of a request's tokens all are forwarded but the last one generated.
    tokens = stats["prompt_tokens"] + stats["generated_tokens"]
    return {**stats, "computed_token_forwards": tokens - stats["requests"]}


def compare_sides(
    stack: ExitStack, name: str, options: argparse.Namespace, path: Path
) -> None:
    """`compare` sides, which start together and live until `stack` closes. Each
    begins its warm-up, which is not timed, when it is up: ours is written, whatever
    becomes of the others."""
    benchmark = BENCHMARKS[name]
    peers = {}
    if options.peer is not None:
        peers = lm_eval.beside(stack, path, answered, generate=name == "pass")
    described = workload.facts(options, path)
    children: dict[str, Child] = {}
    for key in chosen(options):
        log = options.out and options.out / f"{name}-{key}.log"
        children[key] = stack.enter_context(start(key, benchmark.work, path, log))
    sides: dict[str, Side] = {}
    for key, child in children.items():
        does = benchmark.ours if key in OURS else benchmark.theirs
        if key not in ("ours", "theirs"):
            does = f"{key}: {does}"
        sides[key] = Side(name=does, run=child.round, agree=answered if sides else None)
    key, ours = next(iter(children.items()))
    if key in OURS:
        facts = lambda: {**described, **facts_of(ours)}  # noqa: E731
        sides[key] = replace(sides[key], facts=facts)
    keep = partial(write_rounds, options.out, described)
    compare(name, sides | peers, rounds=options.rounds, keep=keep)


def write_rounds(
    out: Path | None,
    described: Document,
    side: str,
    results: Results,
    failed: str | None,
) -> None:
    """Write what a side's rounds have said so far, without their answers; the first
    round is the warm-up."""
    if out is None:
        return
    rounds = []
    for result in results:
        kept = {key: value for key, value in result.items() if key not in _ANSWERS}
        rounds.append(kept)
    document = {"side": side, **described, "rounds": rounds, "failed": failed}
    write_atomically(out / f"pass-{side}.json", json_text(document, indent=1).encode())


def main() -> None:
    name = sys.argv.pop(1)
    options = parser(name).parse_args()
    if options.thinking and options.peer:
        raise InputError(
            f"--thinking {options.thinking}: --peer {options.peer} takes no thought out"
            " of an answer"
        )
    chosen(options)
    if options.out is not None:
        try:
            options.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{options.out}: --out: {error.strerror}") from error
    with ExitStack() as stack:
        path = stack.enter_context(workload.written(options))
        compare_sides(stack, name, options, path)


if __name__ == "__main__":
    run_main(main)
