"""One pass over a checkpoint: every probe of 100 items as one stream, records
written, against greedy, then samples, then `LLM.beam_search`, then prompt
log-probabilities, each as one blocking call.

    resurface bench pass [--model DIR] [--task gazetteer] [--items 100] [--rounds 3]
    [--peer lm-eval] resurface bench pass --sides
    full,piecewise,eager,theirs,theirs-compiled --kv-cache-gib 4 --out DIR resurface
    bench pass --model DIR --thinking 1000 --engine-args '{"max_num_seqs": 16}'    #
    DIR's model thinks first

All `--sides` start together. Then they work in turn. DIR/pass-SIDE.json has the
rounds of a side, as soon as each ends.

Prints where our time goes, the idle share, the fewest token forwards that the
answers need (workload.py) beside the computed ones, the share of our wall time that
they would take at the machine's measured peak (roofline.py), and the rest of the
wall time. With `--thinking`, whose forwards no record counts, it prints the idle
share alone. The other side's thoughts are one more blocking call."""

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import roofline
from benchmarks.harness import Agreement, Child, count, lacking, run_main
from benchmarks.serving import lm_eval, score, workload
from benchmarks.serving.sides import OURS, THEIRS
from evaluator.core.errors import InputError, unknown

_SIDES = (*OURS, *THEIRS)
_PARTS = {
    "roofline": "the fewest tokens at the machine's measured peak",
    "unneeded_tokens": "tokens that need not have been computed",
    "engine": "the engine, slower than the peak on those that must",
    "driver": "the driver: all that is no engine step (waiting, tokens, writing)",
}


def wall_time(
    *, wall: float, busy: float, roofline: float, fewest: int, computed: int
) -> tuple[dict[str, float], bool]:
    """The seconds of each of `_PARTS`, and whether the engine beat the roofline, so
    that the measured peak is too low.

    `wall` seconds with `busy` ones of engine time for `computed` token forwards, of
    which `fewest` were needed. All tokens count alike: each takes the mean engine time
    of a token. A roofline above what the engine took for the fewest tokens is cut to
    that: what was done in that time could be done in it. No part is negative.
    """
    busy = min(busy, wall)
    needed = busy * fewest / computed if fewest < computed else busy
    at_peak = min(roofline, needed)
    return (
        dict(
            zip(
                _PARTS,
                (at_peak, busy - needed, needed - at_peak, wall - busy),
                strict=True,
            )
        ),
        roofline > needed,
    )


def agree(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Agreement:
    """Whether answers and log-likelihoods are the same; in bfloat16, where a batch
    decides ties, answers may not be."""
    scores = score.agree(ours, theirs)
    one, other = ours["greedy"], theirs["greedy"]
    same = sum(ids == other.get(item) for item, ids in one.items())
    lacks = lacking(one, other)
    how = f"greedy answers identical for {same} of {len(one)} items" + (
        f" ({lacks})" if lacks else ""
    )
    alike = same == len(one) or ours.get("dtype", "float32") != "float32"
    return Agreement(
        holds=scores.holds and alike and not lacks, how=f"{how}; {scores.how}"
    )


def typical(results: Sequence[Mapping[str, Any]]) -> int:
    """The number of the timed round of the median time, of an even number the faster of
    two; round 0 is the warm-up. Counts, seconds and peak are then of one round, so that
    its parts sum to its time.
    """
    timed = sorted(
        range(1, len(results)), key=lambda number: float(results[number]["seconds"])
    )
    return timed[(len(timed) - 1) // 2]


def facts(path: Path, ours: Child) -> dict[str, Any]:
    """What our rounds say besides their seconds, also printed where it is a block to
    read."""
    number = typical(ours.results)
    one = ours.results[number]
    stats, seconds = one["stats"], one["seconds"]
    common = {"split": one["split"], **stats}
    accounts = ours.facts(number)
    if not accounts:
        return common
    fewest, computed = accounts["fewest"], accounts["computed"]
    forwards, distributions = fewest["forwards"], fewest["distributions"]
    needed = roofline.work(
        roofline.read_products(Path(json.loads(path.read_text())["model"])),
        **fewest,
        element_bytes=accounts["machine"]["element_bytes"],
    )
    peak = roofline.share_of_wall(needed, accounts["machine"], seconds)
    bound = max(peak["compute_bound_s"], peak["memory_bound_s"])
    busy = stats["busy_seconds"]  # None where nobody can tell
    shares = above = None
    if busy is not None:
        spent, above = wall_time(
            wall=seconds, busy=busy, roofline=bound, fewest=forwards, computed=computed
        )
        shares = {name: round(part / seconds, 4) for name, part in spent.items()}
        print(f"our wall time, one round of {seconds:.3f} s:")
        for name, meaning in _PARTS.items():
            print(f"{100 * shares[name]:6.1f} %  {meaning}")
        if above:
            print(
                "the engine beat the roofline: the peak was measured too low, by a busy"
                " machine perhaps"
            )
    return {
        **common,
        "fewest_token_forwards": forwards,
        "fewest_distributions": distributions,
        "computed_token_forwards": computed,
        "roofline": {name: float(f"{value:.4g}") for name, value in peak.items()},
        "wall_shares": shares,
        "above_roofline": above,
        "busy_seconds": None if busy is None else round(busy, 4),
    }


def chosen(options: argparse.Namespace) -> list[str]:
    """The sides that are measured, ours first. Raises InputError for an unknown one,
    and for settings of its own."""
    sides = list(dict.fromkeys(options.sides.split(",")))
    for side in sides:
        if side not in _SIDES:
            raise unknown("side", side, _SIDES)
        if taken := OURS.get(side, {}).keys() & options.engine_args.keys():
            raise InputError(
                f"--engine-args: {min(taken)}: side {side} of --sides sets it"
            )
    return sorted(sides, key=_SIDES.index)


def main() -> None:
    parser = lm_eval.add_option(
        workload.parser(__doc__, task="gazetteer", items=100, rounds=3)
    )
    parser.add_argument(
        "--sides",
        default="ours,theirs",
        help=f"some of {', '.join(_SIDES)} (default: ours,theirs)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write rounds and logs of each side into DIR",
    )
    parser.add_argument(
        "--thinking",
        type=count,
        default=0,
        help="let the model think first, for so many tokens",
    )
    options = parser.parse_args()
    if options.thinking and options.peer:
        raise InputError(
            f"--thinking {options.thinking}: --peer {options.peer} takes no thought out"
            " of an answer"
        )
    options.sides = chosen(options)
    if options.out is not None:
        try:
            options.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{options.out}: --out: {error.strerror}") from error
    with ExitStack() as stack:
        path = stack.enter_context(workload.written(options))
        names = (
            "pass",
            "one stream, records written",
            "four blocking calls, nothing written",
        )
        workload.compare_sides(
            stack, options, path, names, "everything", agree, partial(facts, path)
        )


if __name__ == "__main__":
    run_main(main)
