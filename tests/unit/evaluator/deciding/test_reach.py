"""Which verdicts the number of contexts can reach, before anything is asked."""

from itertools import product
from types import SimpleNamespace

import pytest

from benchmarks.gate import ONLY_DROP, share
from evaluator.deciding.reach import plan, unreachable
from evaluator.deciding.thresholds import GroupTolerances, Thresholds

BOTH = ("greedy", "choice")
THREE = ("bengali", "english", "thai")


def items(count, share=1, languages=("english",)):
    found = []
    for language, number in product(languages, range(count)):
        cluster = f"{language} {number // share}"
        groups = ("team=legal",) if number < 20 else None
        found.append(SimpleNamespace(language=language, cluster=cluster, groups=groups))
    return found


@pytest.mark.parametrize(
    ("asked", "thresholds", "probes", "told"),
    [
        (items(60), {}, BOTH, "60 items: a PASS (drop of said answers: at most 2.0 pp) needs at least 149"),
        (items(148), {}, BOTH, "needs at least 149 contexts, and there are 148"),
        (items(149), {}, BOTH, ""),
        (items(400, share=5), {}, BOTH, "needs at least 149 contexts, and there are 80"),
        (items(60), {"max_drop": 5, "max_lost": 5}, BOTH, ""),
        (items(60), {"max_drop": 0.02}, BOTH, "(drop of said answers: at most 0.02 pp) needs"),
        (items(60), {"max_drop": 5}, BOTH, "(known answers lost: at most 2.0 %)"),
        (items(50, languages=THREE), {}, BOTH, "answers in bengali: at most 5.0 pp) needs at least 59 contexts"),
        (items(50, languages=THREE), {"languages": False}, BOTH, ""),
        (items(60), {}, ("choice",), "(drop of picked answers: at most 2.0 pp"),
        (items(60), {"min_recovery": 99}, BOTH, "needs at least"),
        (items(60), {}, ("fidelity",), ""),
        (items(400), {"max_sample_drop": 3}, BOTH, "(drop of sampled answers) needs samples under several seeds"),
        (items(400), {"max_kld": 1}, BOTH, "nats a token,) needs the probe fidelity"),
        (items(400), {"max_kld": 1, "max_delta_pr": 1}, (*BOTH, "fidelity"), ""),
        (items(400), {"max_delta_pr": 1}, ("greedy",), "a PASS (Delta_PR) needs the probes greedy and choice"),
        ([], {}, BOTH, ""),
    ],
)  # fmt: skip
def test_few_contexts_are_told(asked, thresholds, probes, told):
    said = unreachable(asked, Thresholds(**thresholds), probes)
    assert told in said
    assert bool(told) == bool(said)


def test_groups_need_contexts_if_judged():
    asked, own = items(149), {"team=legal": GroupTolerances(max_drop=3)}
    assert not unreachable(asked, Thresholds(), BOTH)
    told = unreachable(asked, Thresholds(), BOTH, groups=own)
    assert "in team=legal: at most 3.0 pp) needs at least 99 contexts, and" in told
    assert not unreachable(
        asked, Thresholds(), BOTH, groups={"team=it": own.popitem()[1]}
    )
    drawn = {"team=legal": GroupTolerances(max_sample_drop=3)}
    told = unreachable(asked, Thresholds(), BOTH, groups=drawn)
    assert told.endswith("needs samples under several seeds (--seeds)")


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


def test_planned_questions_show_their_tolerance():
    """Nine of ten runs pass with as many questions as the plan says, few with less."""
    (row,) = plan(ONLY_DROP, 150)
    assert (row["tolerance"], row["equal_needs"]) == ("max_drop", 149)
    enough = share((row["changed_needs"], 1, 1), 0.0, "PASS", 200, ONLY_DROP)
    assert 0.85 <= enough <= 0.97
    assert share((150, 1, 1), 0.0, "PASS", 200, ONLY_DROP) < 0.4
    shown = ONLY_DROP.model_copy(update={"max_drop": row["changed_shows"] + 0.01})
    assert share((150, 1, 1), 0.0, "PASS", 200, shown) >= 0.85


def test_plan_has_the_judged_tolerances():
    names = [row["tolerance"] for row in plan(Thresholds(), 150)]
    assert names == ["max_drop", "max_drop_language", "max_mc_only", "max_lost"]
    (row,) = plan(
        Thresholds(max_drop=0, max_mc_only=None, max_lost=None, languages=False), 150
    )
    assert row["changed_needs"] is None
