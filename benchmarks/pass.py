"""One pass over a checkpoint: every probe of 100 items as one stream, records written, against greedy, then samples,
then `LLM.beam_search`, then prompt log-probabilities, each as one blocking call.

    resurface bench pass [--model DIR] [--task gazetteer] [--items 100] [--rounds 3] [--peer lm-eval]

Prints where our time goes, the engine's idle share, the fewest token forwards that the work needs beside what was
computed, and the share of our wall time that they would take at the machine's measured peak (roofline.py).
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import lm_eval_peer
import roofline
import score
import workload
from harness import Agreement, Side, compare
from serving import SAMPLES, TOKENS, Child


def agree(ours: Any, theirs: Any) -> Agreement:
    scores = score.agree(ours, theirs)
    same = sum(a == b for a, b in zip(ours["greedy"], theirs["greedy"], strict=True))
    total = len(ours["greedy"])
    return Agreement(
        holds=scores.holds and same == total, how=f"greedy answers identical for {same} of {total} items; {scores.how}"
    )


def fewest_tokens(path: Path, greedy: list[list[int]]) -> tuple[int, int]:
    """Token forwards that any engine needs, in prompts and after them: each context once, each generated or scored
    token once. Samples are counted at the greedy answer's length and beams not at all, so this is a lower bound."""
    items = json.loads(path.read_text())["items"]
    after = sum(
        len(answer) * (1 + (SAMPLES if item["deep"] else 0)) + sum(len(option) for option in item["options"])
        for item, answer in zip(items, greedy, strict=True)
    )
    return sum(len(item["prompt"]) for item in items), after


def main() -> None:
    options = lm_eval_peer.add_option(workload.parser(__doc__, task="gazetteer", items=100, rounds=3)).parse_args()
    path = workload.write(options)
    peer = None if options.peer is None else lm_eval_peer.Harness(path, generate=True)
    ours, theirs = Child("ours", "everything", path), Child("theirs", "everything", path)
    last: dict[str, Any] = {}
    seconds: list[float] = []

    def run_ours() -> Any:
        last.update(ours.round())
        seconds.append(last["seconds"])
        return last

    def facts() -> dict[str, Any]:
        computed = last["stats"]["prompt_tokens"] + last["stats"]["generated_tokens"]
        prompts, after = fewest_tokens(path, last["greedy"])
        model = Path(json.loads(path.read_text())["model"])
        needed = roofline.work(model, prompts + after, after, TOKENS)
        peak = roofline.share_of_wall(needed, last["machine"], statistics.median(seconds[1:]))
        return {
            "model": options.model,
            "task": options.task,
            "items": options.items,
            "split": last["split"],
            "fewest_token_forwards": prompts + after,
            "computed_token_forwards": computed,
            "roofline": {name: float(f"{value:.4g}") for name, value in peak.items()},
            **last["stats"],
        }

    compare(
        "pass",
        ours=Side(name="one stream, records written", run=run_ours),
        theirs=Side(name="four blocking calls, nothing written", run=theirs.round),
        agree=agree,
        rounds=options.rounds,
        facts=facts,
        peer=peer and peer.peer(agree),
    )
    if peer is not None:
        peer.close()
    ours.close()
    theirs.close()
    path.unlink()


if __name__ == "__main__":
    main()
