"""Whether two sides computed the same, answer by answer; an answer that one side lacks
is named."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.harness import Agreement

# Nats, of an option's summed log-likelihood; or a share of it. In float32, the
# log_softmax of torch, which the other sides use, errs by 1.7e-5 nats a token, always
# to one side (49,152 columns, against float64, from which ours differs by a tenth of
# that). In bfloat16, logits have 8 bits, and other batches are rounded otherwise.
TOLERANCES = {"float32": (1e-3, 5e-5), "half": (1.0, 0.03)}
Result = Mapping[str, Any]


def lacking(ours: Result, theirs: Result) -> str:
    """Which keys one side has and the other lacks, in words; empty where both have
    the same."""
    parts = []
    for side, own, other in (("ours", ours, theirs), ("theirs", theirs, ours)):
        missing = [key for key in other if key not in own]
        if missing:
            count = f"{len(missing)} of {len(other)} answers"
            parts.append(f"{side} lacks {count}, the first of {missing[0]}")
    return "; ".join(parts)


def _in_float32(result: Result) -> bool:
    return bool(result.get("dtype", "float32") == "float32")


def scores(ours: Result, theirs: Result) -> Agreement:
    """Whether both sides gave the same options of the same items the same
    log-likelihoods."""
    one, other = _by_option(ours), _by_option(theirs)
    lacks = lacking(one, other)
    if lacks or not one:
        return Agreement(holds=False, how=lacks or "no log-likelihood to compare")
    nats, share = TOLERANCES["float32" if _in_float32(ours) else "half"]
    largest, apart = 0.0, 0
    for option, value in one.items():
        largest = max(largest, abs(value - other[option]))
        apart += not math.isclose(value, other[option], rel_tol=share, abs_tol=nats)
    within = (
        f"within {nats:g} nats or {share:.0e} of them (largest difference"
        f" {largest:.1e} nats)"
    )
    wrong = f"{apart} of {len(one)} log-likelihoods not {within}"
    how = wrong if apart else f"{len(one)} log-likelihoods {within}"
    return Agreement(holds=not apart, how=how)


def _by_option(side: Result) -> dict[str, float]:
    return {
        f"{item}, option {number}": value
        for item, options in side["scores"].items()
        for number, value in options.items()
    }


def answers(ours: Result, theirs: Result) -> Agreement:
    """Whether greedy answers and log-likelihoods are the same; in bfloat16, where a
    batch decides ties, answers may not be."""
    scored = scores(ours, theirs)
    one, other = ours["greedy"], theirs["greedy"]
    same = sum(ids == other.get(item) for item, ids in one.items())
    lacks = lacking(one, other)
    how = f"greedy answers identical for {same} of {len(one)} items"
    if lacks:
        how += f" ({lacks})"
    alike = same == len(one) or not _in_float32(ours)
    holds = scored.holds and alike and not lacks
    return Agreement(holds=holds, how=f"{how}; {scored.how}")


def beams_without_eos(ours: Result, theirs: Result) -> Agreement:
    """Whether the best beam of every item is the same on both sides."""
    if lacks := lacking(ours["beams"], theirs["beams"]):
        return Agreement(holds=False, how=f"EOS ignored: {lacks}")
    best = every = 0
    for item, beams in ours["beams"].items():
        one, other = _ranked(beams), _ranked(theirs["beams"][item])
        best += one[0] == other[0]
        every += sorted(one) == sorted(other)
    items = len(ours["beams"])
    how = (
        f"EOS ignored: best beam identical for {best}, all five for {every} of"
        f" {items} items"
    )
    return Agreement(holds=best == items, how=how)


def _ranked(beams: list[Any]) -> list[list[int]]:
    """Token ids by falling log-probability."""
    return [ids for ids, _ in sorted(beams, key=lambda beam: -beam[1])]


AGREE: Mapping[str, Callable[[Result, Result], Agreement]] = {
    "score": scores,
    "beam_without_eos": beams_without_eos,
    "everything": answers,
}
