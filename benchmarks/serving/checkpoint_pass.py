"""One pass over a checkpoint: every probe of 100 items as one stream, records written, against greedy, then samples,
then `LLM.beam_search`, then prompt log-probabilities, each as one blocking call.

    resurface bench pass [--model DIR] [--task gazetteer] [--items 100] [--rounds 3] [--peer lm-eval]

Prints where our time goes, the engine's idle share, the fewest token forwards that the work needs beside what was
computed, and the share of our wall time that they would take at the machine's measured peak (roofline.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import roofline
from benchmarks.harness import Agreement, Side, compare, lacking
from benchmarks.peers import lm_eval
from benchmarks.processes import run_main
from benchmarks.serving import score, workload
from benchmarks.serving.sides import SAMPLES, TOKENS, start


def agree(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Agreement:
    """Whether both sides gave every item the same greedy answer, and its options the same log-likelihoods."""
    scores = score.agree(ours, theirs)
    one, other = ours["greedy"], theirs["greedy"]
    same = sum(ids == other.get(item) for item, ids in one.items())
    lacks = lacking(one, other)
    how = f"greedy answers identical for {same} of {len(one)} items" + (f" ({lacks})" if lacks else "")
    return Agreement(holds=scores.holds and same == len(one) and not lacks, how=f"{how}; {scores.how}")


def fewest_tokens(items: Sequence[Mapping[str, Any]], greedy: Mapping[str, Sequence[int]]) -> tuple[int, int]:
    """Token forwards that any engine needs, in prompts and after them: each context once, each generated or scored
    token once. Samples are counted at the greedy answer's length and beams not at all, so this is a lower bound."""
    after = sum(
        len(greedy.get(item["id"], ())) * (1 + (SAMPLES if item["deep"] else 0))
        + sum(len(option) for option in item["options"])
        for item in items
    )
    return sum(len(item["prompt"]) for item in items), after


def facts(options: argparse.Namespace, path: Path, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What our rounds say besides their seconds; the first of `results` is the warm-up."""
    last, document = results[-1], json.loads(path.read_text())
    computed = last["stats"]["prompt_tokens"] + last["stats"]["generated_tokens"]
    prompts, after = fewest_tokens(document["items"], last["greedy"])
    needed = roofline.work(Path(document["model"]), prompts + after, after, TOKENS)
    seconds = statistics.median(result["seconds"] for result in results[1:])
    peak = roofline.share_of_wall(needed, last["machine"], seconds)
    return {
        **workload.facts(options, path),
        "split": last["split"],
        "fewest_token_forwards": prompts + after,
        "computed_token_forwards": computed,
        "roofline": {name: float(f"{value:.4g}") for name, value in peak.items()},
        **last["stats"],
    }


def main() -> None:
    options = lm_eval.add_option(workload.parser(__doc__, task="gazetteer", items=100, rounds=3)).parse_args()
    with ExitStack() as stack:
        path = stack.enter_context(workload.written(options))
        peer = lm_eval.beside(stack, options, path, agree, generate=True)
        ours, theirs = (stack.enter_context(start(who, "everything", path)) for who in ("ours", "theirs"))
        compare(
            "pass",
            ours=Side(name="one stream, records written", run=ours.round),
            theirs=Side(name="four blocking calls, nothing written", run=theirs.round),
            agree=agree,
            rounds=options.rounds,
            facts=lambda: facts(options, path, ours.results),
            peer=peer,
        )


if __name__ == "__main__":
    run_main(main)
