"""Candidate log-likelihoods: forced decoding on one shared context, against one
prompt-log-probability request per context and option.

    resurface bench score [--model DIR] [--task random:300,600] [--items 40] [--rounds
    5] [--peer lm-eval]
"""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from benchmarks.harness import Agreement, lacking, run_main
from benchmarks.serving import lm_eval, workload

# Nats, of an option's summed log-likelihood; or a share of it. In float32, the
# log_softmax of torch, which the other sides use, errs by 1.7e-5 nats a token, always
# to one side (49,152 columns, against float64, from which ours differs by a tenth of
# that). In bfloat16, logits have 8 bits, and other batches are rounded otherwise.
TOLERANCES = {"float32": (1e-3, 5e-5), "half": (1.0, 0.03)}


def agree(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Agreement:
    """Whether both sides gave the same options of the same items the same
    log-likelihoods."""
    one, other = (
        {
            f"{item}, option {number}": value
            for item, each in side["scores"].items()
            for number, value in each.items()
        }
        for side in (ours, theirs)
    )
    lacks = lacking(one, other)
    pairs = [(one[option], other[option]) for option in one.keys() & other.keys()]
    if lacks or not pairs:
        return Agreement(holds=False, how=lacks or "no log-likelihood to compare")
    nats, share = TOLERANCES[
        "float32" if ours.get("dtype", "float32") == "float32" else "half"
    ]
    largest = max(abs(our - their) for our, their in pairs)
    apart = sum(not math.isclose(*pair, rel_tol=share, abs_tol=nats) for pair in pairs)
    within = (
        f"within {nats:g} nats or {share:.0e} of them (largest difference"
        f" {largest:.1e} nats)"
    )
    how = (
        f"{apart} of {len(pairs)} log-likelihoods not {within}"
        if apart
        else f"{len(pairs)} log-likelihoods {within}"
    )
    return Agreement(holds=not apart, how=how)


def main() -> None:
    options = lm_eval.add_option(
        workload.parser(__doc__, task="random:300,600", items=40, rounds=5)
    ).parse_args()
    with ExitStack() as stack:
        path = stack.enter_context(workload.written(options))
        names = (
            "score",
            "forced decoding, shared context",
            "LLM.generate(prompt_logprobs=0) per option",
        )
        workload.compare_sides(stack, options, path, names, "score", agree)


if __name__ == "__main__":
    run_main(main)
