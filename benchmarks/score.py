"""Candidate log-likelihoods: forced decoding on one shared context, against one prompt-log-probability request per
context and option.

    resurface bench score [--model DIR] [--task random:300,600] [--items 40] [--rounds 5] [--peer lm-eval]
"""

from __future__ import annotations

from typing import Any

import lm_eval_peer
import workload
from harness import Agreement, Side, compare
from serving import Child

TOLERANCE = 1e-3  # nats, of an option's summed log-likelihood in float32


def agree(ours: Any, theirs: Any) -> Agreement:
    pairs = [
        (a, b)
        for one, other in zip(ours["scores"], theirs["scores"], strict=True)
        for a, b in zip(one, other, strict=True)
    ]
    largest = max(abs(a - b) for a, b in pairs)
    return Agreement(
        holds=all(abs(a - b) <= TOLERANCE for a, b in pairs),
        how=f"{len(pairs)} log-likelihoods within {TOLERANCE} nats (largest {largest:.1e})",
    )


def main() -> None:
    options = lm_eval_peer.add_option(workload.parser(__doc__, task="random:300,600", items=40, rounds=5)).parse_args()
    path = workload.write(options)
    peer = None if options.peer is None else lm_eval_peer.Harness(path, generate=False)
    ours, theirs = Child("ours", "score", path), Child("theirs", "score", path)
    last: dict[str, Any] = {}

    def run_ours() -> Any:
        last.update(ours.round())
        return last

    compare(
        "score",
        ours=Side(name="forced decoding, shared context", run=run_ours),
        theirs=Side(name="LLM.generate(prompt_logprobs=0) per option", run=theirs.round),
        agree=agree,
        rounds=options.rounds,
        facts=lambda: {"model": options.model, "task": options.task, "items": options.items, **last["stats"]},
        peer=peer and peer.peer(agree),
    )
    if peer is not None:
        peer.close()
    ours.close()
    theirs.close()
    path.unlink()


if __name__ == "__main__":
    main()
