"""Who is screened out, where the truth is known: seldom the best, nearly always what is far behind."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from evaluator.metrics import Inputs, reduce_records
from evaluator.metrics.gate import Verdict
from evaluator.metrics.screening import Answers, decide, draw_anchors, measures_of, nearest, replay
from evaluator.metrics.screening.anchors import pivotal
from evaluator.screen import Screen
from evaluator.thresholds import Thresholds
from tests.support.records import Seen, records

ITEMS = 400
GATE = Thresholds(max_drop=5)


def answers(wrong: dict[str, list[int]], *, planned: int | None = None, items: int = ITEMS) -> Answers:
    """A base that is always right, and checkpoints that are wrong on the items that are named."""
    right = {}
    for name, missed in wrong.items():
        values = np.ones(items)
        values[missed] = 0.0
        right[name] = {"open": values}
    return Answers(task="t", base="dense", of_base={"open": np.ones(items)}, right=right, planned=planned or len(wrong))


def share_out(whole: Answers, name: str, rule: Screen, draws: int = 600) -> float:
    """In what share of the draws a checkpoint is screened out."""
    rng = np.random.default_rng(7)
    dropped = (decide(whole.at(pivotal(ITEMS, rule.items, rng)), rule, GATE) for _ in range(draws))
    return sum(name in out for out in dropped) / draws


def scattered(seed: int, share: float) -> list[int]:
    return np.random.default_rng(seed).permutation(ITEMS)[: round(share * ITEMS)].tolist()


@pytest.mark.parametrize("confidence", [0.7, 0.95])
def test_the_best_of_equals_is_screened_out_in_no_more_draws_than_said(confidence):
    """The hardest case: all are equally good, and wrong on other items."""
    whole = answers({f"c{number}": scattered(number, 0.3) for number in range(4)})
    rule = Screen(items=60, confidence=confidence)
    assert share_out(whole, "c2", rule) <= 1 - confidence


@pytest.mark.parametrize("confidence", [0.7, 0.95])
def test_what_has_lost_just_what_the_gate_allows_is_out_in_no_more_draws_than_said(confidence):
    whole = answers({"int4": scattered(1, 0.05)})
    assert share_out(whole, "int4", Screen(items=80, confidence=confidence, against="gate")) <= 1 - confidence


def test_what_is_far_behind_is_screened_out():
    whole = answers({"good": scattered(1, 0.1), "near": scattered(2, 0.12), "bad": scattered(3, 0.6)})
    rule = Screen(items=60)
    assert share_out(whole, "bad", rule, 100) > 0.95
    assert share_out(whole, "near", rule, 100) == 0
    assert share_out(whole, "bad", Screen(items=60, against="gate"), 100) > 0.95


def test_the_reason_names_what_it_is_worse_than_and_by_how_much():
    whole = answers({"good": [], "bad": list(range(200))}, items=400)
    out = decide(whole, Screen(), GATE)["bad"]
    assert (out.reference, out.n, out.plus, out.minus, out.own) == ("good", 400, 200, 0, 200)
    assert out.difference == 0.5
    low, high = out.interval
    assert 0.4 < low < 0.5 < high < 0.6
    assert out.level == pytest.approx(0.01)
    kept = nearest(whole, "good", Screen(), GATE)
    assert kept is not None
    assert (kept.reference, kept.difference) == ("bad", -0.5)
    gated = decide(whole, Screen(against="gate"), GATE)["bad"]
    assert (gated.reference, gated.margin, gated.level) == ("dense", 0.05, pytest.approx(0.005))


def test_more_that_are_planned_make_it_harder_to_be_sure():
    few = {"good": [], "bad": list(range(9))}
    assert "bad" in decide(answers(few, items=40), Screen(), GATE)
    assert not decide(answers(few, planned=50, items=40), Screen(), GATE)


def test_items_that_failed_are_not_compared():
    whole = answers({"good": [], "bad": list(range(30))}, items=60)
    whole.right["bad"]["open"][30:] = np.nan
    assert decide(whole, Screen(), GATE)["bad"].n == 30


def test_one_alone_is_the_best():
    assert decide(answers({"only": list(range(300))}), Screen(), GATE) == {}
    assert nearest(answers({"only": []}), "only", Screen(), GATE) is None


def test_measures():
    both = pd.DataFrame({"produced": [1.0, np.nan], "recognised": [0.0, 1.0]})
    choice = both.assign(produced=np.nan)
    assert measures_of(Screen(), both) == ("open",)
    assert measures_of(Screen(), choice) == ("choice",)
    assert measures_of(Screen(against="gate"), both) == ("open", "choice")
    assert measures_of(Screen(against="gate", measure="choice"), both) == ("choice",)
    assert measures_of(Screen(measure="open"), choice) == ()


def recorded() -> Inputs:
    """A run of 3 compressed checkpoints, of which two lose half or nothing, and one was not asked everything."""
    items = [f"{language}/{number:03d}" for language in ("english", "swahili") for number in range(80)]
    seen = {
        "dense": {key: Seen(greedy=True) for key in items},
        "good": {key: Seen(greedy=True) for key in items},
        "bad": {key: Seen(greedy=number % 2 == 0) for number, key in enumerate(items)},
        "short": {key: Seen(greedy=True) for key in items[:9]},
    }
    parts = [records(name, each, base=None if name == "dense" else "dense") for name, each in seen.items()]
    return Inputs(pd.concat(map(reduce_records, parts), ignore_index=True))


@pytest.mark.parametrize("against", ["best", "gate"])
def test_a_run_that_asked_everything_is_replayed(against):
    inputs = recorded()
    verdicts = [Verdict(task="t", checkpoint="bad", base="dense", checks=(), incomparable="as it is")]  # which is BLOCK
    (found,) = replay(inputs, Screen(items=40, against=against), Thresholds(), verdicts, 20)
    assert (found.items, found.anchors, found.whole, found.left_out) == (160, 40, 320, ("short",))
    bad, good = found.fates
    assert (good.out, good.loss, good.within, good.outcome) == (0, 0.0, True, "")
    assert (bad.out, bad.loss, bad.within, bad.outcome) == (20, 0.5, False, "BLOCK")
    assert (found.saved, found.same, found.mistakes, found.out, found.blocked) == (120, 20, 0, 20, 20)


def test_a_mistake_is_counted_as_one(monkeypatch):
    inputs = recorded()
    monkeypatch.setitem(replay.__globals__, "decide", lambda *_: {"good": None})
    (found,) = replay(inputs, Screen(items=40), Thresholds(), (), 5)
    assert (found.same, found.mistakes, found.out, found.saved) == (0, 5, 5, 120)


def test_anchors_of_outcomes_are_the_same_whatever_else_the_run_has():
    inputs = recorded()
    base = inputs.outcomes_of("dense", "t")
    alone = Inputs(inputs.outcomes[inputs.outcomes["checkpoint"] == "dense"])
    assert draw_anchors(base, 20, 0, "t").tolist() == draw_anchors(alone.outcomes_of("dense", "t"), 20, 0, "t").tolist()
