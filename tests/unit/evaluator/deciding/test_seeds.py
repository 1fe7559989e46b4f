"""Samples of several seeds: a question is one observation, whatever its seeds say."""

import itertools

import numpy as np
import pandas as pd
import pytest

from evaluator.deciding.decision import decide
from evaluator.deciding.policy import Policy
from evaluator.deciding.thresholds import Thresholds
from evaluator.deciding.verdict_text import why
from evaluator.deciding.verdicts import judge
from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.metrics.measures import mean_of, of_mean
from tests.support.paired import paired
from tests.support.records import Seen, records
from tests.support.tables import assert_has, only

QUESTIONS, SEEDS, RUNS = 400, 5, 250
OFF = {"max_drop": None, "max_mc_only": None, "max_lost": None}
DROP = Thresholds(max_sample_drop=2, languages=False, **OFF)
JUDGED = Policy(default=Thresholds(max_sample_drop=2))
TOLERANCE = 0.02


def lost_whole(rng):
    """The drop is at the tolerance: 2 % of the questions, under every seed."""
    return (rng.random(QUESTIONS) < TOLERANCE).astype(float)[:, None].repeat(SEEDS, 1)


def of_seeds(losses, contexts):
    """A base that is always right, and a checkpoint that loses so much of each item."""
    nothing, due = np.full(len(losses), np.nan), np.ones(len(losses), bool)
    answers = {
        "open": (nothing, nothing, ~due),
        "sample": (np.ones(len(losses)), 1 - losses, due),
    }
    return paired(nothing, nothing, contexts=contexts, answers=answers)


def test_correlated_seeds_seldom_pass():
    """At the tolerance a PASS is a mistake. Seeds as items would make it in more than
    10 % of the runs, and their interval would miss the drop as often."""
    rng, passed, missed = np.random.default_rng(1), [0, 0], [0, 0]
    for _ in range(RUNS):
        losses = lost_whole(rng)
        ways = (
            (losses.mean(axis=1), np.arange(QUESTIONS)),
            (losses.ravel(), np.arange(losses.size)),
        )
        for way, (values, contexts) in enumerate(ways):
            passed[way] += decide(of_seeds(values, contexts), DROP).outcome == "PASS"
            row = of_mean("drop", mean_of(values, contexts, low=-1))
            missed[way] += not row["drop_low"] <= TOLERANCE <= row["drop_high"]
    assert passed[0] <= 0.05 * RUNS < 0.1 * RUNS < passed[1]
    assert missed[0] <= 0.05 * RUNS < 0.1 * RUNS < missed[1]


@pytest.fixture(scope="module")
def drawn():
    """Right samples of 30 questions, 3 seeds and 4 samples, of base and checkpoint.
    The last question has no samples in the checkpoint, under one seed."""
    rng = np.random.default_rng(2)
    chance = rng.random((30, 1, 1))
    return {
        name: rng.random((30, 3, 4)) < chance * left
        for name, left in (("dense", 1), ("p", 0.7))
    }


def inputs_of(drawn, *, failed=29, grown=30, run=None):
    """`grown`: how many questions of the checkpoint have more than the first seed."""
    parts = []
    for name, right in drawn.items():
        for seed in range(right.shape[1]):
            seen = {}
            for item, samples in enumerate(right[:, seed]):
                if seed and name == "p" and item >= grown:
                    continue
                lacks = (item, name, seed) == (failed, "p", 1)
                status = "engine_error" if lacks else "ok"
                greedy = True if seed == 0 else None
                answers = [*map(bool, samples)]
                seen[f"en/{item:02}"] = Seen(
                    samples=answers, greedy=greedy, status=status
                )
            base = None if name == "dense" else "dense"
            if not seen:
                continue
            parts.append(records(name, seen, seed=seed, base=base))
    return Inputs(reduce_records(pd.concat(parts)), run=run)


def chance_of(right, k):
    """Pass@k by all choices of k samples."""
    hits = [any(chosen) for chosen in itertools.combinations(right, k)]
    return np.mean(hits)


def test_tables_equal_a_recount(drawn):
    inputs = inputs_of(drawn)
    frame = TABLES["recovery"].fill(inputs).frame
    own, base = drawn["p"][:29], drawn["dense"][:29]
    of_item = {
        "sample": lambda right: right.any(axis=1).mean(),
        "pass@1": np.mean,
        "pass@2": lambda right: chance_of(right.ravel(), 2),
        "pass@10": lambda right: chance_of(right.ravel(), 10),
        # under each seed the more frequent of two answers, or either
        "majority": lambda right: (np.sign(2 * right.mean(axis=1) - 1).mean() + 1) / 2,
    }
    for probe, measure in of_item.items():
        row = only(frame, checkpoint="p", probe=probe, population="all_items")
        values, others = ([*map(measure, side)] for side in (own, base))
        expected = float(np.mean(values)), float(np.mean(others) - np.mean(values))
        assert_has(row, n=29, engine_error=1, n_paired=29)
        assert (row["rate"], row["drop"]) == pytest.approx(expected, rel=1e-9)
        mean = of_mean("rate", mean_of(np.array(values), np.arange(29)))
        ends = mean["rate_low"], mean["rate_high"]
        assert (row["rate_low"], row["rate_high"]) == pytest.approx(ends, rel=1e-6)
    assert_has(only(frame, checkpoint="p", probe="pass@10"), tries=10)
    row = only(frame, checkpoint="p", probe="sample", population="all_items")
    assert_has(row, tries=4, hits=None)


def test_spread_is_between_seeds(drawn):
    frame = TABLES["seeds"].fill(inputs_of(drawn)).frame
    row = only(frame, checkpoint="p", probe="pass@1")
    own, base = (drawn[name][:29].mean(axis=2) for name in ("p", "dense"))
    rates, drops = own.mean(axis=0), (base - own).mean(axis=0)
    assert_has(row, seeds=3, n=29, n_paired=29, engine_error=1)
    assert_has(row, rate=float(own.mean()), drop=float((base - own).mean()))
    assert_has(row, lowest=float(rates.min()), highest=float(rates.max()))
    assert_has(row, drop_lowest=float(drops.min()), drop_highest=float(drops.max()))
    assert_has(row, seed_sd=float(rates.std(ddof=1)))


def test_gate_judges_samples_of_seeds(drawn):
    inputs = inputs_of(drawn)
    (verdict,) = judge(inputs, JUDGED)
    (check,) = (each for each in verdict.of("sample_drop") if each.pooled)
    row = only(TABLES["seeds"].fill(inputs).frame, checkpoint="p", probe="pass@1")
    assert (check.n, check.contexts, check.missing) == (29, 29, 1)
    assert check.value == pytest.approx(row["drop"], rel=1e-12)
    assert check.of_seeds == pytest.approx((row["drop_lowest"], row["drop_highest"]))
    low, high = (f"{100 * each:.1f}" for each in check.of_seeds)
    assert f"drop of sampled answers {100 * check.value:.1f} pp" in why(verdict)
    assert f"; by seed {low} to {high})" in why(verdict)
    (verdict,) = judge(inputs, Policy())
    assert not verdict.of("sample_drop")
    lost = f"not judged: samples lost {100 * check.value:.1f} pp (by seed {low} to"
    assert lost in why(verdict)


def test_other_sampling_is_no_loss(drawn):
    settings = {"seed": 0, "seeds": [0, 1, 2], "temperature": 1.0}
    changed = settings | {"temperature": 0.5, "seeds": None}
    of_task = {"dense": {"t": settings}, "p": {"t": changed}}
    run = {"identity": {"task_settings": of_task}}
    (verdict,) = judge(inputs_of(drawn, run=run), Policy())
    assert not verdict.incomparable
    assert not verdict.sampled
    (verdict,) = judge(inputs_of(drawn, run=run), JUDGED)
    told = "seeds [0, 1, 2] against [0], temperature 1 against 0.5"
    assert why(verdict) == f"not comparable with the base: {told}"


@pytest.mark.parametrize("grown", [12, 0])
def test_lacking_seeds_are_missing(drawn, grown):
    """The run was killed while it added seeds: no other sampling, and no verdict."""
    settings = {"seed": 0, "seeds": [0, 1, 2], "temperature": 1.0}
    run = {"identity": {"task_settings": {n: {"t": settings} for n in drawn}}}
    inputs = inputs_of(drawn, failed=None, grown=grown, run=run)
    (verdict,) = judge(inputs, JUDGED)
    (check,) = (each for each in verdict.of("sample_drop") if each.pooled)
    assert (check.n, check.missing) == (grown, 30 - grown)
    assert (verdict.outcome, verdict.incomparable) == ("WARN", None)
    frame = TABLES["recovery"].fill(inputs).frame
    row = only(frame, checkpoint="p", probe="pass@1", population="all_items")
    lost = (drawn["dense"] - 1.0 * drawn["p"])[:grown]
    assert_has(row, n=30, n_paired=grown, drop=float(lost.mean()) if grown else None)


def test_one_seed_does_not_pass(drawn):
    """Who asks for a tolerance of samples gets no PASS without it."""
    one = {name: right[:, :1] for name, right in drawn.items()}
    (verdict,) = judge(inputs_of(one), JUDGED)
    assert [each.state for each in verdict.of("sample_drop")] == ["undecided"]
    assert verdict.outcome == "WARN"
    told = "drop of sampled answers was not measured, which needs samples under several"
    assert told in why(verdict)
    assert not verdict.sampled
    assert not TABLES["seeds"].rows(inputs_of(one))
