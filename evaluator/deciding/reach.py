"""Whether a run's items can show a PASS, before any is asked. They cannot if even an
equal checkpoint, which makes no mistake, would stay undecided. And how many questions
a tolerance needs."""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from evaluator.core.records import Item
from evaluator.deciding.criteria import Paired, Probe
from evaluator.deciding.decision import PASS_LEVEL, Check, decide
from evaluator.deciding.thresholds import FEWEST, Thresholds, Tolerances
from evaluator.metrics.columns import Row
from evaluator.metrics.intervals import Floats, Mean
from evaluator.metrics.items import Flags

_MOST = 10**6  # contexts
PLANNED = 10**5  # questions of a plan
CHANGED = 0.01  # the share of answers that turns wrong, and as many right
_SPREAD = 1.28  # standard deviations: 9 of 10 runs are luckier
# the lowest value of an answer: a drop counts what is gained
_LOWEST = {"max_drop": -1, "max_drop_language": -1, "max_mc_only": 0, "max_lost": 0}


def unreachable(
    items: Iterable[Item],
    thresholds: Thresholds,
    probes: Collection[str],
    drawn: Sequence[bool] = (),
    groups: Mapping[str, Tolerances] | None = None,
) -> str:
    """Why no verdict on these items can be PASS, in words; empty if one can. `drawn`:
    whether each has samples of several seeds. `groups`: their own tolerances."""
    if not (items := list(items)):
        return ""
    pairs = [(item.language, item.cluster) for item in items]
    languages, names = np.array(pairs, dtype=object).reshape(-1, 2).T
    _, contexts = np.unique(names, return_inverse=True)
    right = np.ones(len(pairs))
    answers: dict[Probe, tuple[Floats, Floats, Flags]] = {
        "open": (right, right, right == ("greedy" in probes)),
        "choice": (right, right, right == ("choice" in probes)),
        "sample": (right, right, np.array(drawn or right == 0, dtype=bool)),
    }
    own = np.fromiter((item.groups for item in items), object, len(items))
    equal = Paired.of_answers(languages, contexts, answers, own)
    checks = decide(equal, thresholds, groups=groups).checks
    undecided = [check for check in checks if check.state == "undecided"]
    measured = [check for check in undecided if check.evidence is not None]
    for check in undecided:
        given = {*check.criterion.probes}
        if check.evidence is None and not (given and given <= {*probes}):
            return f"a PASS ({check.criterion.text}) needs {check.criterion.needs}"
    if not measured:
        return ""
    hardest = max(measured, key=lambda check: (check.pooled, _needed(check)))
    criterion = hardest.criterion
    where = "" if hardest.pooled else f" in {hardest.language}"
    side = ("at most", "at least")[criterion.least]
    return (
        f"{len(pairs):,} items: a PASS ({criterion.text}{where}: {side}"
        f" {criterion.shown(hardest.threshold)} {criterion.kind.unit}".rstrip()
        + f") needs at least"
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


def plan(thresholds: Tolerances, questions: int) -> list[Row]:
    """For each judged tolerance for answers, in percent: how many questions show it in 9
    of 10 runs (None: more than PLANNED), and the least that so many show; if no answer
    changes, and if CHANGED do. Each question has a context of its own."""
    stated = {**dict(thresholds), "max_drop_language": thresholds.drop_language}
    if not thresholds.languages:
        del stated["max_drop_language"]
    rows = []
    for name, low in _LOWEST.items():
        if (bound := stated.get(name)) is not None:
            rows.append({"tolerance": name, "percent": bound})
            for case, share in (("equal", 0.0), ("changed", CHANGED)):
                seen = partial(_seen, share=share, low=low)
                rows[-1][f"{case}_needs"] = _fewest(seen, bound / 100)
                rows[-1][f"{case}_shows"] = 100 * seen(questions).upper(PASS_LEVEL)
    return rows


def _fewest(seen: Callable[[int], Mean], bound: float) -> int | None:
    """The fewest questions that show less than `bound`."""

    def shows(count: int) -> bool:
        return seen(count).p_at_least(bound) <= PASS_LEVEL

    fewest = bisect_left(range(PLANNED), True, FEWEST, key=shows)
    return fewest if fewest < PLANNED else None


def _seen(questions: int, share: float, low: int) -> Mean:
    """What the questions of an unlucky run show."""
    mean = questions * share
    more = _SPREAD * math.sqrt(mean * (1 - low))
    lost, gained = mean + more / (1 - low), (mean - more / 2) * -low
    values = np.zeros(questions)
    values[: math.ceil(lost)] = 1
    values[math.ceil(lost) :][: max(0, math.floor(gained))] = -1
    return Mean(values, np.arange(questions), low=low)
