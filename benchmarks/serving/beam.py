"""Beam search, 5 beams and 32 tokens: streamed rollouts without a barrier, against
`LLM.beam_search`.

    resurface bench beam [--model DIR] [--task gazetteer] [--items 20] [--rounds 3]

`LLM.beam_search` lets every beam's EOS finish a hypothesis and divides scores by
prompt and answer together, so with EOS the two keep different beams by definition.
That both search the same tree is checked with EOS ignored: the best beam of every
item must be identical, and the output gives the number of items where all five are.
(Where they were not, a plain search over full forward passes in transformers gave
ours; the tests compare ours with transformers.) The timed rounds match a user's
runs: EOS ends an answer."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from benchmarks.harness import Agreement, lacking, run_main
from benchmarks.serving import workload
from benchmarks.serving.sides import start


def agree_without_eos(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Agreement:
    """Whether the best beam of every item is the same on both sides."""
    if lacks := lacking(ours["beams"], theirs["beams"]):
        return Agreement(holds=False, how=f"EOS ignored: {lacks}")
    ranked = [  # token ids by falling log-probability
        {
            name: [ids for ids, _ in sorted(beams, key=lambda beam: -beam[1])]
            for name, beams in side["beams"].items()
        }
        for side in (ours, theirs)
    ]
    pairs = [(beams, ranked[1][item]) for item, beams in ranked[0].items()]
    best = sum(one[0] == other[0] for one, other in pairs)
    every = sum(sorted(one) == sorted(other) for one, other in pairs)
    how = (
        f"EOS ignored: best beam identical for {best}, all five for {every} of"
        f" {len(pairs)} items"
    )
    return Agreement(holds=best == len(pairs), how=how)


def main() -> None:
    options = workload.parser(
        __doc__, task="gazetteer", items=20, rounds=3
    ).parse_args()
    with ExitStack() as stack:
        path = stack.enter_context(workload.written(options))
        with (
            start("ours", "beam_without_eos", path) as one,
            start("theirs", "beam_without_eos", path) as other,
        ):
            agreement = agree_without_eos(one.round(), other.round())
        names = "beam", "streamed rollouts", "LLM.beam_search"
        workload.compare_sides(
            stack, options, path, names, "beam", lambda *_: agreement
        )


if __name__ == "__main__":
    run_main(main)
