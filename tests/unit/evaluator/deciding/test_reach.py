"""Which verdicts the number of contexts can reach, before anything is asked."""

from itertools import product
from types import SimpleNamespace

import pytest

from evaluator.deciding.reach import unreachable
from evaluator.deciding.thresholds import Thresholds

BOTH = ("greedy", "choice")
THREE = ("bengali", "english", "thai")


def items(count, share=1, languages=("english",)):
    found = []
    for language, number in product(languages, range(count)):
        cluster = f"{language} {number // share}"
        found.append(SimpleNamespace(language=language, cluster=cluster))
    return found


@pytest.mark.parametrize(
    ("asked", "thresholds", "probes", "told"),
    [
        (items(60), {}, BOTH, "60 items: a PASS (drop of said answers: at most 2.0 pp) needs at least 149"),
        (items(148), {}, BOTH, "needs at least 149 contexts, and there are 148"),
        (items(149), {}, BOTH, ""),
        (items(400, share=5), {}, BOTH, "needs at least 149 contexts, and there are 80"),
        (items(60), {"max_drop": 5, "max_lost": 5}, BOTH, ""),
        (items(60), {"max_drop": 5}, BOTH, "(known answers lost: at most 2.0 %)"),
        (items(50, languages=THREE), {}, BOTH, "answers in bengali: at most 5.0 pp) needs at least 59 contexts"),
        (items(50, languages=THREE), {"languages": False}, BOTH, ""),
        (items(60), {}, ("choice",), "(drop of picked answers: at most 2.0 pp"),
        (items(60), {"min_recovery": 99}, BOTH, "needs at least"),
        (items(60), {}, ("fidelity",), ""),
        ([], {}, BOTH, ""),
    ],
)  # fmt: skip
def test_few_contexts_are_told(asked, thresholds, probes, told):
    said = unreachable(asked, Thresholds(**thresholds), probes)
    assert told in said
    assert bool(told) == bool(said)


def test_samples_need_contexts_if_judged():
    """Only the first 100 of a language have samples, however many items there are."""
    asked, drawn = items(300), [number < 100 for number in range(300)]
    assert not unreachable(asked, Thresholds(), BOTH, drawn)
    for tolerance, told in (
        (2, "needs at least 149 contexts, and there are 100"),
        (3, ""),
    ):
        judged = Thresholds(max_sample_drop=tolerance)
        assert unreachable(asked, judged, BOTH, drawn).endswith(told)
        assert bool(unreachable(asked, judged, BOTH, drawn)) == bool(told)
