"""One pass over a checkpoint: every probe of 100 items as one stream, records written, against greedy, then samples,
then `LLM.beam_search`, then prompt log-probabilities, each as one blocking call.

    resurface bench pass [--model DIR] [--task gazetteer] [--items 100] [--rounds 3] [--peer lm-eval]

Prints where our time goes, the idle share, the fewest token forwards that the answers need (workload.py) beside
the computed ones, the share of our wall time that they would take at the machine's measured peak (roofline.py), and
the rest of the wall time."""

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import roofline
from benchmarks.harness import Agreement, lacking, run_main
from benchmarks.serving import lm_eval, score, workload


@dataclass(frozen=True, slots=True, kw_only=True)
class WallTime:
    """Seconds, never negative; the four parts sum to the wall time, the last three to the gap."""

    roofline: float  # the fewest tokens at the measured peak
    unneeded_tokens: float  # engine time of tokens that were computed beyond the fewest
    engine: float  # what the engine took for the fewest tokens beyond the roofline
    driver: float  # outside of engine steps: the engine waits, questions are tokenised, records are written
    wall: float
    above_roofline: bool  # the engine was faster than the roofline, so the measured peak is too low

    def shares(self) -> dict[str, float]:
        """The parts as shares of the wall time."""
        parts = {name: getattr(self, name) for name in ("roofline", "unneeded_tokens", "engine", "driver")}
        return {name: round(seconds / self.wall, 4) for name, seconds in parts.items()}

    def lines(self) -> list[str]:
        """The shares as a block to read."""
        said = {
            "roofline": "the fewest tokens at the machine's measured peak",
            "unneeded_tokens": "tokens that need not have been computed",
            "engine": "the engine, slower than the peak on those that must",
            "driver": "the driver: all that is no engine step (waiting, tokens, writing)",
        }
        shares = self.shares()
        lines = [f"our wall time, one round of {self.wall:.3f} s:"]
        lines += [f"{100 * shares[name]:6.1f} %  {meaning}" for name, meaning in said.items()]
        if self.above_roofline:
            lines.append("the engine beat the roofline: the peak was measured too low, by a busy machine perhaps")
        return lines


def wall_time(*, wall: float, busy: float, roofline: float, fewest: int, computed: int) -> WallTime:
    """Split `wall` seconds, with `busy` seconds of engine time for `computed` token forwards; `fewest` were needed.

    All tokens count alike: each takes the mean engine time of a token. A roofline above what the engine took for the
    fewest tokens, or above the wall time, is cut to the former, and `above_roofline` is true: a measured peak is a
    guide, and what was done in that time could be done in it."""
    busy = min(busy, wall)
    needed = busy * fewest / computed if fewest < computed else busy
    return WallTime(
        roofline=min(roofline, needed),
        unneeded_tokens=busy - needed,
        engine=needed - min(roofline, needed),
        driver=wall - busy,
        wall=wall,
        above_roofline=roofline > needed,
    )


def agree(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Agreement:
    """Whether answers and log-likelihoods are the same; in bfloat16, where a batch decides ties, answers may not be."""
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
        names = "pass", "one stream, records written", "four blocking calls, nothing written"
        more = partial(facts, options, path)
        workload.compare_sides(stack, options, path, names, "everything", more, agree=agree, peer=peer)


if __name__ == "__main__":
    run_main(main)
