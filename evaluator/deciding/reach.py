"""Whether a run's items can show a PASS, before any is asked. They cannot if even an
equal checkpoint, which makes no mistake, would stay undecided."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from evaluator.core.records import Item
from evaluator.deciding.criteria import Paired, Probe
from evaluator.deciding.decision import FEWEST, Check, decide
from evaluator.deciding.thresholds import Thresholds
from evaluator.metrics.intervals import Floats
from evaluator.metrics.items import Flags

_MOST = 10**6  # contexts


def unreachable(
    items: Iterable[Item],
    thresholds: Thresholds,
    probes: Collection[str],
    drawn: Sequence[bool] = (),
) -> str:
    """Why no verdict on these items can be PASS, in words; empty if one can. `drawn`:
    whether each has samples of several seeds."""
    pairs = [(item.language, item.cluster) for item in items]
    languages, names = np.array(pairs, dtype=object).reshape(-1, 2).T
    _, contexts = np.unique(names, return_inverse=True)
    right = np.ones(len(pairs))
    answers: dict[Probe, tuple[Floats, Floats, Flags]] = {
        "open": (right, right, right == ("greedy" in probes)),
        "choice": (right, right, right == ("choice" in probes)),
        "sample": (right, right, np.array(drawn or right == 0, dtype=bool)),
    }
    equal = Paired.of_answers(languages, contexts, answers)
    checks = decide(equal, thresholds).checks
    undecided = [check for check in checks if check.state == "undecided"]
    if not undecided:
        return ""
    hardest = max(undecided, key=lambda check: (check.pooled, _needed(check)))
    criterion = hardest.criterion
    where = "" if hardest.pooled else f" in {hardest.language}"
    side = ("at most", "at least")[criterion.least]
    return (
        f"{len(pairs):,} items: a PASS ({criterion.text}{where}: {side}"
        f" {criterion.kind.shown(hardest.threshold)}) needs at least"
        f" {_needed(hardest):,}"
        f" contexts, and there are {hardest.contexts:,}"
    )


def _needed(check: Check) -> int:
    """The fewest contexts that would decide a check."""
    evidence = check.evidence
    assert evidence is not None

    def decides(contexts: int) -> bool:
        return check.is_sure(evidence.times(contexts / check.contexts))

    return bisect_left(range(_MOST), True, FEWEST, key=decides)
