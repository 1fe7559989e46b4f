"""One pass over a checkpoint: every probe of 100 items as one stream, records written, against greedy, then samples,
then `LLM.beam_search`, then prompt log-probabilities, each as one blocking call.

    resurface bench pass [--model DIR] [--task gazetteer] [--items 100] [--rounds 3] [--peer lm-eval]

Prints where our time goes, the engine's idle share, the fewest token forwards that the answers need (fewest.py) beside
what was computed, the share of our wall time that they would take at the machine's measured peak (roofline.py), and
what the rest of the wall time is (gap.py).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import roofline
from benchmarks.harness import Agreement, Side, compare, lacking
from benchmarks.peers import lm_eval
from benchmarks.processes import run_main
from benchmarks.serving import score, workload
from benchmarks.serving.gap import wall_time
from benchmarks.serving.sides import start


def agree(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Agreement:
    """Whether both sides gave every item the same greedy answer, and its options the same log-likelihoods.

    In bfloat16 two tokens are often as likely as each other, and a batch decides: there, answers need not be the same.
    """
    scores = score.agree(ours, theirs)
    one, other = ours["greedy"], theirs["greedy"]
    same = sum(ids == other.get(item) for item, ids in one.items())
    lacks = lacking(one, other)
    how = f"greedy answers identical for {same} of {len(one)} items" + (f" ({lacks})" if lacks else "")
    alike = same == len(one) or ours.get("dtype", "float32") != "float32"
    return Agreement(holds=scores.holds and alike and not lacks, how=f"{how}; {scores.how}")


def typical(results: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The timed round of the median time, of an even number the faster of two; the first of `results` is the warm-up.
    Counts, seconds and peak are then of one round, so that its parts sum to its time."""
    timed = sorted(results[1:], key=lambda result: result["seconds"])
    return timed[(len(timed) - 1) // 2]


def facts(options: argparse.Namespace, path: Path, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What our rounds say besides their seconds, also printed where it is a block to read."""
    one = typical(results)
    accounts, stats, seconds = one["accounts"], one["stats"], one["seconds"]
    fewest, computed = accounts["fewest"], accounts["computed"]
    forwards, distributions = fewest["forwards"], fewest["distributions"]
    needed = roofline.work(
        roofline.read_products(Path(json.loads(path.read_text())["model"])),
        **fewest,
        element_bytes=accounts["machine"]["element_bytes"],
    )
    peak = roofline.share_of_wall(needed, accounts["machine"], seconds)
    at_batch = roofline.share_at_batch(
        accounts["batch"], forwards=forwards, distributions=distributions, seconds=seconds
    )
    bound = max(peak["compute_bound_s"], peak["memory_bound_s"])
    busy = stats["busy_seconds"]  # None where nobody can tell
    spent = None
    if busy is not None:
        spent = wall_time(wall=seconds, busy=busy, roofline=bound, fewest=forwards, computed=computed)
        Console().print(*spent.lines(), sep="\n", highlight=False)
    return {
        **workload.facts(options, path),
        "split": one["split"],
        "fewest_token_forwards": forwards,
        "fewest_distributions": distributions,
        "computed_token_forwards": computed,
        "roofline": {name: float(f"{value:.4g}") for name, value in (peak | at_batch).items()},
        "wall_shares": None if spent is None else spent.shares(),
        "above_roofline": None if spent is None else spent.above_roofline,
        **stats,
        "busy_seconds": None if busy is None else round(busy, 4),
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
