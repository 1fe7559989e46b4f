"""The gate with controls: simulated noise, and what a verdict says of it."""

import numpy as np
import pandas as pd
import pytest

from evaluator.deciding.criteria import CRITERIA, Reported
from evaluator.deciding.decision import decide
from evaluator.deciding.policy import Policy
from evaluator.deciding.thresholds import Thresholds
from evaluator.deciding.verdict_text import document, why
from evaluator.deciding.verdicts import judge, not_judged
from evaluator.metrics import Inputs
from evaluator.metrics.intervals import Mean
from evaluator.report.gate_formats import table_of
from tests.support.paired import paired
from tests.support.records import Seen
from tests.support.tables import outcomes

OFF = {"languages": False, "max_mc_only": None, "max_lost": None}
FLIPS = Thresholds(max_drop=20, max_flips=5, **OFF)
DROP = Thresholds(max_drop=2, **OFF)
RUNS, ITEMS, RIGHT, WRONG = 80, 1500, Seen(greedy=True), Seen(greedy=False)


def flipped(answers, share, rng):
    """As many answers become wrong as right."""
    odds = np.where(answers, 0.5 / answers.mean(), 0.5 / (1 - answers.mean()))
    return np.abs(answers - (rng.random(len(answers)) < share * odds))


def share_of(verdict, thresholds, noise, *, control, flips=0.0, loss=0.0):
    """How often the gate comes to a verdict, with a control of so many items."""
    rng, count = np.random.default_rng(5), 0
    for _ in range(RUNS):
        answers = (rng.random(ITEMS) < 0.7).astype(float)
        base, again = (flipped(answers, noise / 2, rng) for _ in range(2))
        own = flipped(flipped(answers, noise / 2, rng), flips, rng)
        own = np.where(rng.random(ITEMS) < loss / 0.7, 0.0, own)
        some = paired(base, again).items.take(slice(control))
        floors = {}
        for criterion in CRITERIA:
            if control and criterion.measure is not None:
                evidence = criterion.measure(some, "left out").evidence
                floors[criterion.name] = [evidence] if evidence else []
        decision = decide(paired(base, own), thresholds, floors=floors)
        count += decision.outcome == verdict
    return count / RUNS


@pytest.mark.parametrize(("noise", "control"), [(0.0, 50), (0.06, 300), (0.12, ITEMS)])
def test_noise_alone_never_blocks(noise, control):
    # at most 1 %: of 80 runs 4 have a probability below 1 %
    assert share_of("BLOCK", FLIPS, noise, control=control) <= 3 / RUNS
    assert share_of("BLOCK", DROP, noise, control=control) <= 3 / RUNS


@pytest.mark.parametrize(("noise", "control"), [(0.0, 0), (0.03, ITEMS)])
def test_loss_at_tolerance_seldom_passes(noise, control):
    # at most 5 %: of 80 runs 10 have a probability below 1 %
    assert share_of("PASS", FLIPS, noise, control=control, flips=0.05) <= 9 / RUNS
    assert share_of("PASS", DROP, noise, control=control, loss=0.02) <= 9 / RUNS


def test_gate_still_decides():
    """Without a control, noise blocks. With one, small noise prevents no verdict."""
    assert share_of("BLOCK", FLIPS, 0.12, control=0) > 0.95
    assert share_of("PASS", FLIPS, 0.01, control=50) > 0.95
    assert share_of("BLOCK", FLIPS, 0.01, control=ITEMS, flips=0.4) > 0.95
    assert share_of("BLOCK", DROP, 0.08, control=50, loss=0.15) > 0.95


def test_sure_loss_of_control_counts():
    """A number format that surely costs more than the tolerance hides a drop."""
    base = (np.arange(ITEMS) % 4 > 0).astype(float)
    own = np.where(np.arange(ITEMS) % 10 == 1, 0.0, base)
    plain = decide(paired(base, own), DROP)
    (check,) = (each for each in plain.checks if each.criterion.name == "open_drop")
    floors = {"open_drop": [check.evidence]}
    assert plain.outcome == "BLOCK"
    assert decide(paired(base, own), DROP, floors=floors).outcome == "WARN"


@pytest.mark.parametrize(("lost", "outcome"), [(0.3, "WARN"), (0.95, "BLOCK")])
def test_loss_above_the_floor_is_judged(lost, outcome):
    """A control of 9 answers shows a noise of up to a third or so, and no more."""
    base = np.ones(200)
    own = (np.arange(200) >= 200 * lost).astype(float)
    asked = Thresholds(max_drop=100, max_flips=5, **OFF)
    again = paired(base[:9], base[:9]).items
    (floor,) = [
        criterion.measure(again, "left out").evidence
        for criterion in CRITERIA
        if criterion.name == "open_flips"
    ]
    decision = decide(paired(base, own), asked, floors={"open_flips": [floor]})
    assert decision.outcome == outcome


@pytest.mark.parametrize(
    ("name", "value", "hidden"),
    [
        ("kld", 0.3, True),
        ("kld", 0.02, False),
        ("ear", 0.7, True),
        ("ear", 0.99, False),
    ],
)
def test_divergence_has_a_floor(name, value, hidden):
    asked = Thresholds(max_drop=20, max_kld=0.1, min_ear=0.9, **OFF)

    def report(value):
        return Reported(
            value=value, low=value - 0.01, high=value + 0.01, n=99, contexts=99
        )

    reports = {("kld", "all"): report(0.02), ("ear", "all"): report(0.99)}
    base = np.tile([1.0, 1.0, 0.0], 200)
    decision = decide(
        paired(base, base), asked, reports=reports, floors={name: [report(value)]}
    )
    assert decision.outcome == ("WARN" if hidden else "PASS")
    (check,) = (each for each in decision.checks if each.criterion.name == name)
    assert check.noisy == hidden
    assert check.excess == pytest.approx(reports[name, "all"].value - value)


def test_verdict_names_the_floor():
    """In words, in the table and in gate.json; failed controls are no result."""
    keys = [f"english/{n}" for n in range(100)]
    lost = {key: WRONG if n < 12 else RIGHT for n, key in enumerate(keys)}
    noise = {key: WRONG if n < 8 else RIGHT for n, key in enumerate(keys)}
    every = dict.fromkeys(keys, RIGHT)
    parts = [outcomes("dense", every), outcomes("int4", lost, base="dense")]
    parts.append(outcomes("dense~order", noise, base="dense", digest="dense"))
    planned = {name: {"t": 100} for name in ("dense", "dense~order", "dense~batch")}
    run = {"planned": planned}
    inputs = Inputs(pd.concat(parts), run=run)
    policy = Policy(default=Thresholds(max_drop=50, max_flips=5, **OFF))
    (verdict,) = judge(inputs, policy)
    assert (verdict.checkpoint, verdict.outcome) == ("int4", "WARN")
    told = (
        "flips of said answers 12.0 % ({}; at most 5.0), 4.0 % above the noise of 8.0 %"
    )
    found = why(verdict)
    assert found.startswith(told.partition("{")[0])
    assert told.partition("}")[2] + " (3.5 to 15.2, from 100 items)" in found
    # its control has asked all of them already
    assert ", which more questions narrow (--control order asks" in found
    headings, ((*cells,),) = table_of([verdict])
    assert cells[headings.index("said flips")] == "+4.0~"
    rows = document([verdict], policy)["checkpoints"][0]["checks"]
    (row,) = (each for each in rows if each["criterion"] == "open_flips")
    floor = Mean(np.repeat([1.0, 0.0], [8, 92]), np.arange(100))
    ends = {"low": floor.lower(0.025), "high": floor.upper(0.025)}
    assert row["floor"] == {"value": 0.08, **ends}
    assert (row["noisy"], row["excess"]) == (True, pytest.approx(0.04))
    assert not_judged(inputs) == []
