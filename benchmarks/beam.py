"""Beam search, 5 beams and 32 tokens: streamed rollouts without a barrier, against `LLM.beam_search`.

    resurface bench beam [--model DIR] [--task gazetteer] [--items 20] [--rounds 3]

`LLM.beam_search` lets every beam's EOS finish a hypothesis and divides scores by prompt and answer together, so with
EOS the two keep different beams by definition. That both search the same tree is checked with EOS ignored: the best
beam of every item must be identical, and the output says for how many items all five are. (Where they were not, a plain
search over full forward passes in transformers gave ours; the tests hold ours to transformers.) The timed rounds are
what a user runs: EOS ends an answer.
"""

from __future__ import annotations

from typing import Any

import workload
from harness import Agreement, Side, compare
from serving import Child


def agree_without_eos(ours: Any, theirs: Any) -> Agreement:
    pairs = list(zip(ours["beams"], theirs["beams"], strict=True))
    best = sum(_ranked(one)[0] == _ranked(other)[0] for one, other in pairs)
    every = sum(sorted(_ranked(one)) == sorted(_ranked(other)) for one, other in pairs)
    return Agreement(
        holds=best == len(pairs),
        how=f"EOS ignored: best beam identical for {best}, all five for {every} of {len(pairs)} items",
    )


def _ranked(beams: list[Any]) -> list[list[int]]:
    """Token ids by falling log-probability."""
    return [tokens for tokens, _ in sorted(beams, key=lambda beam: -beam[1])]


def main() -> None:
    options = workload.parser(__doc__, task="gazetteer", items=20, rounds=3).parse_args()
    path = workload.write(options)
    checks = Child("ours", "beam_without_eos", path), Child("theirs", "beam_without_eos", path)
    agreement = agree_without_eos(checks[0].round(), checks[1].round())
    for child in checks:
        child.close()
    ours, theirs = Child("ours", "beam", path), Child("theirs", "beam", path)
    last: dict[str, Any] = {}

    def run_ours() -> Any:
        last.update(ours.round())
        return last

    compare(
        "beam",
        ours=Side(name="streamed rollouts", run=run_ours),
        theirs=Side(name="LLM.beam_search", run=theirs.round),
        agree=lambda mine, other: agreement,
        rounds=options.rounds,
        facts=lambda: {"model": options.model, "task": options.task, "items": options.items, **last["stats"]},
    )
    ours.close()
    theirs.close()
    path.unlink()


if __name__ == "__main__":
    main()
