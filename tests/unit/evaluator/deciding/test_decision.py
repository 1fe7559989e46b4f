"""The gate on records whose answer is known: a copy, a loss, a gain, one language,
missing and few items."""

import json
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.special import betaincinv

from evaluator.deciding.criteria import CRITERIA, EXTREMES, Paired, Reported
from evaluator.deciding.decision import Verdict, decide
from evaluator.deciding.policy import Policy
from evaluator.deciding.thresholds import GroupTolerances, Thresholds
from evaluator.deciding.verdict_text import document, of_groups, summary, usable, why
from evaluator.deciding.verdicts import judge
from evaluator.metrics import Inputs, reduce_records
from evaluator.report.gate_formats import table_of
from evaluator.store.run_json import Failure
from tests.support.paired import paired
from tests.support.records import Seen, records
from tests.support.tables import outcomes

RIGHT = Seen(greedy=True, choice=True)
PICKED = replace(RIGHT, greedy=False)
GONE = Seen(greedy=False, choice=False)
SAID = Seen(greedy=True, choice=False)
KLD = "KL divergence from the base, nats a token,"
ONLY_DROP = {"languages": False, "max_mc_only": None, "max_lost": None}
LOOSE = {"max_drop": 20, "max_drop_language": 20, "max_mc_only": None, "max_lost": None}
# language -> items, how many change, into what
Losses = Mapping[str, tuple[int, int, Seen]]


def reduced(
    base: Mapping[str, Seen], own: Mapping[str, Seen], **columns: str
) -> pd.DataFrame:
    changed = outcomes("int4", own, base="dense").assign(**columns)
    return pd.concat([outcomes("dense", base), changed], ignore_index=True)


def sides(losses: Losses) -> tuple[dict[str, Seen], dict[str, Seen]]:
    """What the base and the checkpoint did."""
    base, own = {}, {}
    for language, (items, changed, into) in losses.items():
        for n in range(items):
            base[f"{language}/{n}"] = RIGHT
            own[f"{language}/{n}"] = into if n < changed else RIGHT
    return base, own


def judged(
    base: Mapping[str, Seen],
    own: Mapping[str, Seen],
    thresholds: Thresholds | None = None,
    **run,
) -> Verdict:
    (found,) = judge(
        Inputs(reduced(base, own), run=run), Policy(default=thresholds or Thresholds())
    )
    return found


def verdict(losses: Losses, thresholds: Thresholds | None = None) -> Verdict:
    return judged(*sides(losses), thresholds)


def alike(items: int, *kinds: Seen) -> dict[str, Seen]:
    kinds = kinds or (RIGHT,)
    return {f"english/{n}": kinds[n % len(kinds)] for n in range(items)}


def told(found: Verdict) -> str:
    return f"{found.outcome}: {usable(found)}: {why(found)}"


def test_copy_passes_with_enough_items():
    """Of n items without a discordant pair, the loss is below 1 - 0.05^(1/n): 2 % at
    149 items."""
    found = judged(alike(149), alike(149))
    assert told(found).startswith("PASS: usable: within every tolerance, on 149 items")
    (drop,) = found.of("open_drop")
    assert drop.high == pytest.approx(1 - 0.05 ** (1 / 149), abs=1e-9)
    pooled = verdict({"english": (300, 3, GONE)}, Thresholds(languages=False))
    assert pooled.of("lost")[0].high == pytest.approx(
        betaincinv(4, 297, 0.95), abs=1e-9
    )
    fewer = judged(alike(148), alike(148))
    assert told(fewer).startswith("WARN: undecided")
    assert fewer.of("open_drop")[0].state == "undecided"
    found = judged(alike(50), alike(50), Thresholds(max_mc_only=None, max_lost=None))
    assert [check.enough for check in found.of("open_drop")] == [150]
    assert "; it would take about 150 items" in why(found)
    (check, _) = decide(losing(28, 0), Thresholds(max_drop=10, **ONLY_DROP)).checks
    assert check.enough == 29


@pytest.mark.parametrize(
    ("losses", "use", "reason"),
    [
        ({"english": (1000, 10, PICKED)}, "PASS: usable:", "within every tolerance"),
        ({"english": (1000, 20, PICKED)}, "WARN: undecided:", "at most 2.0); it would take"),
        ({"english": (200, 60, GONE)}, "BLOCK: not usable:", "drop of said answers 30.0 pp ("),
        ({"english": (200, 60, PICKED)}, "BLOCK: picks as before, says less:", " answers 30.0 pp ("),
        ({"english": (99, 0, PICKED), "thai": (99, 99, PICKED)}, "BLOCK: says less in Thai:", ""),
        ({"english": (2000, 2, GONE), "thai": (20, 0, GONE)}, "WARN: undecided:", "; also undecided: picked in Thai"),
        # few items decide nothing, like 2 of 4 known answers
        ({"english": (9, 9, GONE)}, "WARN: undecided:", " in 9 contexts: a verdict needs 10 contexts"),
    ],
)  # fmt: skip
def test_verdicts_on_losses(losses, use, reason):
    found = verdict(losses)
    assert told(found).startswith(use)
    assert reason in why(found)


@pytest.mark.parametrize(
    ("seen", "thresholds", "outcome", "reason"),
    [
        (alike(400, Seen(choice=True)), {}, "WARN", "said answers were not measured"),
        (alike(400, Seen(greedy=True)), {}, "PASS", "within every tolerance, on 400 items; not measured: drop of"),
        (alike(400), {"max_drop": None, "max_mc_only": None}, "WARN", "no tolerance judges said answers: a PA"),
        (alike(150, SAID, PICKED), {}, "WARN", "no known answers of both the base and the"),
        (alike(150, SAID, PICKED), {"max_mc_only": None, "max_lost": None}, "PASS", ""),
        # a base at or below guessing
        (alike(10, PICKED), {}, "ANOMALOUS", "the base says 0.0 % of 10 answers"),
        (alike(150, PICKED), {}, "ANOMALOUS", "the base says 0.0 % of 150 answers: inspect its prompt, chat templa"),
        (
            {f"english/{n}": Seen(greedy=True, choice=n < 37) for n in range(150)}, {}, "ANOMALOUS",
            "the base picks 24.7 % of 150 answers, and guessing picks 25.0 %: inspect the task's options and its",
        ),
        # a table lacks the interval, or the number too
        (
            alike(200, replace(RIGHT, fidelity=(0.3, 0.4))), {"max_kld": 0.1}, "WARN",
            f"{KLD} has no interval in table fidelity, which needs the probe fidelity",
        ),
    ],
)  # fmt: skip
def test_verdicts_on_equal_answers(seen, thresholds, outcome, reason):
    found = judged(seen, seen, Thresholds(**thresholds))
    assert found.outcome == outcome
    assert why(found).startswith(reason)


def test_shared_contexts_count_once():
    """A loss of 1 % in whole contexts of five items shows less than the same loss in
    single ones."""
    frame = reduced(alike(1000), alike(1000) | alike(10, PICKED))
    items = frame[["task", "language", "item_id"]].drop_duplicates()
    shared = items.assign(cluster=(items["item_id"].astype(int) // 5).astype(str))
    (apart,), (together,) = (
        judge(Inputs(frame, clusters), Policy()) for clusters in (None, shared)
    )
    apart, together = apart.of("open_drop")[0], together.of("open_drop")[0]
    assert (apart.contexts, together.contexts) == (1000, 200)
    assert apart.high < 0.02 < together.high
    assert (apart.state, together.state) == ("within", "undecided")


def test_gains():
    base = alike(1000) | alike(200, PICKED)
    better = told(judged(base, base | alike(30)))
    assert better == "PASS: usable, and better: better by 3.0 pp (said)"
    much = told(judged(base, base | alike(100)))
    assert much.startswith(
        "ANOMALOUS: anomalous: said accuracy gained 10.0 pp, at least 8."
    )
    assert "chat template" in much
    # ten contexts show a gain, nine do not
    assert judged(alike(9, PICKED), alike(9)).outcome == "WARN"
    gone = judged(base, alike(1000, SAID))
    assert (gone.outcome, gone.anomaly) == ("BLOCK", None)  # a gain hides no loss


def test_guessing_base_hides_no_loss():
    hard = alike(200, RIGHT, SAID, SAID, SAID, SAID)
    silent = {key: replace(seen, greedy=False) for key, seen in hard.items()}
    assert judged(hard, silent).outcome == "BLOCK"
    assert judged(hard, hard).outcome == "ANOMALOUS"
    # 40 known answers
    few = Thresholds(max_drop=None, max_lost=None)
    assert judged(hard, hard, few).outcome == "WARN"


def test_only_set_criteria_are_judged():
    """40 answers went and 40 others came, so that the accuracy is the same."""
    base = alike(400, PICKED) | alike(200)
    own = base | alike(40, PICKED)
    own |= {f"english/{n}": RIGHT for n in range(200, 240)}
    loose = {"max_drop": 8, "max_drop_language": 8, "max_mc_only": None}
    found = judged(base, own, Thresholds(**loose))
    assert (found.outcome, found.of("open_flips")) == ("PASS", [])
    flips = judged(base, own, Thresholds(**loose, max_flips=5))
    assert told(flips).startswith("BLOCK: right about as often, on other questions")
    left = {"max_drop": None, "max_drop_language": None, "max_mc_only": None}
    left = judged(base, own, Thresholds(**left, min_recovery=70))
    assert left.of("open_recovery")[0].value == 1.0
    assert left.of("open_recovery")[0].low == pytest.approx(0.93, abs=0.02)
    assert left.outcome == "PASS"


def test_worst_is_the_group_that_decides():
    """A loss of picked answers beyond its tolerance, not a larger one within its own."""
    items = np.arange(200)
    legal = items < 100
    right = np.ones(200)
    said, picked = right.copy(), right.copy()
    said[100:160] = 0
    picked[:40] = 0
    due = np.full(200, True)
    names = np.where(legal, "team=legal", "team=billing")
    pairs = Paired.of_answers(
        np.full(200, "english"),
        items,
        {"open": (right, said, due), "choice": (right, picked, due)},
        groups=np.fromiter(((each,) for each in names), object, 200),
    )
    groups = {
        "team=legal": GroupTolerances(max_drop=0),
        "team=billing": GroupTolerances(max_drop=70),
    }
    loose = Thresholds(max_drop=80, max_mc_only=None, max_lost=None)
    decision = decide(pairs, loose, groups=groups)
    found = Verdict(task="t", checkpoint="c", base="b", checks=decision.checks)
    headings, ((*cells,),) = table_of([replace(found, outcome=decision.outcome)])
    assert (
        dict(zip(headings, cells, strict=True))["worst"] == "team=legal 40.0! (picked)"
    )


def test_worst_language_counts():
    """Its level is divided by the number of languages."""

    def losses(others, items):
        return {f"l{n}": (items, 0, PICKED) for n in range(others)}

    gone = losses(11, 180) | {"bengali": (180, 32, GONE)}
    found = verdict(gone, Thresholds(max_lost=4))
    assert not any(check.pooled for check in found.having("beyond"))
    assert told(found).startswith("BLOCK: not usable in Bengali")
    pooled = verdict(gone, Thresholds(max_lost=4, languages=False))
    assert pooled.outcome == "WARN"
    for others, state in ((1, "beyond"), (19, "undecided")):
        found = verdict({"english": (100, 18, PICKED)} | losses(others, 100))
        (check,) = (c for c in found.of("open_drop") if c.language == "english")
        assert check.state == state


def test_incomparable_sides_are_never_decided():
    for kind in (RIGHT, PICKED):  # a base that guesses, too
        frame = reduced(alike(150, kind), alike(150, kind), dtype="bfloat16")
        (found,) = judge(Inputs(frame), Policy())
        reason = "not comparable with the base: dtype float32 against bfloat16"
        assert told(found) == f"BLOCK: not comparable: {reason}"
    alone = Inputs(reduce_records(records("dense", alike(1))))
    assert judge(alone, Policy()) == []
    assert document([], Policy())["verdict"] == "WARN"
    baseless = Inputs(reduce_records(records("int4", alike(1), base="dense")))
    (found,) = judge(baseless, Policy())
    assert found.outcome == "WARN"
    assert why(found) == "no item was measured in both it and its base"


def test_missing_items_may_undo_verdict():
    """Also those whose records somebody removed."""

    def planned(items):
        return {"planned": {"int4": {"t": items}}}

    base, some = alike(1000), alike(800)
    found = judged(base, some, **planned(1000))
    assert (found.outcome, found.unjudged, found.planned) == ("WARN", 200, 1000)
    assert why(found).startswith(
        "200 of 1,000 planned items have no judgement: as losses or as gains, they"
    )
    # one item changes nothing
    assert judged(some, some, **planned(801)).outcome == "PASS"
    failed = alike(210) | alike(20, replace(RIGHT, status="engine_error"))
    found = judged(alike(210), failed)
    assert (found.outcome, found.unjudged) == ("WARN", 20)
    unscored = alike(210) | alike(20, replace(RIGHT, choice_status="engine_error"))
    assert judged(alike(210), unscored).unjudged == 20
    both = alike(250) | alike(50, replace(RIGHT, status="excluded"))
    found = judged(both, both, **planned(250))
    assert (found.outcome, found.checks[0].n) == ("PASS", 200)
    own = alike(290) | alike(12, PICKED)
    strict = Thresholds(max_mc_only=0.5, max_drop=0.2)
    assert judged(alike(290), own, strict).outcome == "BLOCK"
    strict = Thresholds(max_mc_only=None, max_drop=0.2)
    gone = judged(alike(300), own, strict, **planned(300))
    assert (gone.outcome, gone.unjudged) == ("WARN", 10)
    open_only = alike(250, replace(RIGHT, choice=None))
    (choice,) = judged(open_only, open_only, **planned(300)).of("choice_drop")
    assert (choice.state, choice.n, choice.missing) == ("unmeasured", 0, 0)


def test_reported_intervals():
    close = Reported(value=0.05, low=0.03, high=0.06, n=90, contexts=90)
    assert close.upper(0.05) == pytest.approx(0.05 + 0.01 * 1.6449 / 1.96, abs=1e-5)
    assert close.lower(0.05) == pytest.approx(0.05 - 0.02 * 1.6449 / 1.96, abs=1e-5)
    assert close.p_at_least(0.06) == pytest.approx(0.025, abs=1e-6)
    assert close.p_at_most(0.03) == pytest.approx(0.025, abs=1e-6)


def test_divergence_blocks_by_interval():
    values = (0.3, 0.4), (0.2, 0.5), (0.3, 0.5), (0.2, 0.4)
    kinds = [replace(RIGHT, fidelity=each) for each in values]
    seen = alike(200, *kinds)
    found = told(judged(seen, seen, Thresholds(max_kld=0.1)))
    use = "BLOCK: usable by its answers, not by its probabilities"
    assert found.startswith(f"{use}: {KLD} 0.350 (")
    failed = seen | alike(1, replace(RIGHT, status="engine_error"))
    assert judged(seen, failed, Thresholds(max_kld=1, **LOOSE)).outcome == "PASS"
    unseen = judged(*sides({"x": (400, 200, GONE)}), Thresholds(max_kld=0.1))
    assert unseen.outcome == "BLOCK"
    assert f"; {KLD} has no interval in table fidelity, which needs" in why(unseen)
    few = alike(9, *kinds[:3])
    few |= {f"korean/{n}": kinds[n % 3] for n in range(9)}
    found = judged(few, few, Thresholds(max_kld=0.01))
    # a table's number needs ten contexts too
    assert (found.outcome, found.of("kld")[0].contexts) == ("WARN", 9)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("open_drop", (3 / 9, 5 / 11, 1 / 11)),
        ("open_recovery", (6 / 9, 6 / 11, 8 / 11)),
    ],
)
def test_missing_items_as_losses_and_gains(name, values):
    """Of 11 due items 3 are lost; the base lacks one and the checkpoint another. Two
    more items are not due."""
    sides = losing(13, 3).items
    sides["base_produced"][9] = np.nan
    sides["produced"][10:] = np.nan, np.nan, 0
    sides["open"][11:] = False
    (criterion,) = (each for each in CRITERIA if each.name == name)
    found = [criterion.measure(sides, absent) for absent in ("left out", *EXTREMES)]
    assert [each.evidence.value for each in found] == pytest.approx(values)
    assert {(each.due, each.missing) for each in found} == {(11, 2)}


def losing(items: int, lost: int) -> Paired:
    base, own = np.ones(items), (np.arange(items) >= lost).astype(float)
    due = np.ones(items, dtype=bool)
    return paired(base, own, answers={"choice": (base, own, due)})


def test_what_engines_noticed_stands_in_each_verdict():
    """A PASS too: over all engines and calls, of the checkpoint and of its base."""
    row = {"checkpoint": "int4", "device": "url", "repeated": 5}
    calls = [row, row | {"changed": 1}, row | {"changed": 2, "engine": 1}]
    calls += [row | {"checkpoint": "dense", "replaced": 3, "changed": 1}]
    calls += [row | {"checkpoint": "other", "changed": 4}]
    found = judged(alike(400), alike(400), engine_stats=calls)
    assert found.outcome == "PASS"
    said = why(found)
    assert "; int4: 3 of 15 fixed prompts had another answer when repeated" in said
    assert "; dense: 1 of 5 fixed prompts had another answer" in said
    assert "; dense: 3 of its answers have U+FFFD" in said
    assert "other: 4" not in said
    assert why(judged(alike(400), alike(400), engine_stats=[row])) == (
        "within every tolerance, on 400 items; warning: every answer equals the"
        " base's: perhaps the compression was never applied"
    )


@pytest.mark.parametrize(
    ("failed", "planned", "expected"),
    [
        ({"stage": "load"}, {}, "not judged: all but the records that it has: no kernel"),
        ({"stage": "evaluate", "task": "later"}, {}, "not judged: later: no kernel"),
        (None, {"later": 40}, "not judged: later: the run is not finished: it has no record"),
        ({"stage": "item", "task": "t"}, {}, None),
        ({"stage": "load", "checkpoint": "int8"}, {}, None),
    ],
)  # fmt: skip
def test_checkpoint_that_lacks_a_part_never_passes(failed, planned, expected):
    failure = {"checkpoint": "int4", "reason": "no kernel", **(failed or {})}
    found = judged(
        *(alike(400),) * 2, failures=[failure] * bool(failed), planned={"int4": planned}
    )
    assert found.outcome == ("WARN" if expected else "PASS")
    within = "within every tolerance"
    assert why(found).startswith(f"{within} so far; {expected}" if expected else within)
    (row,) = document([found], Policy())["checkpoints"]
    assert row["verdict"] == found.outcome


def test_differences_beside_weights_are_named():
    line = "config.json: rms_norm_eps 1e-06 against 1e-05"
    found = judged(alike(400), alike(400), differences={"int4": [line]})
    assert why(found).endswith(f"; differs from its base beside weights: {line}")
    assert document([found], Policy())["checkpoints"][0]["differences"] == [line]
    both = reduced(alike(9), alike(9)).assign(weights_digest="1" * 64)
    (found,) = judge(Inputs(both), Policy())
    assert why(found).endswith("; same weights as its base")


def test_summary_and_document():
    well = judged(alike(400), alike(400))
    gone = judged(alike(200), alike(200) | alike(60, GONE))
    few = replace(well, outcome="WARN")
    assert summary([well, few, gone, gone]) == "2 of 4 blocked, 1 undecided, 1 passed"
    assert summary([]) == "No checkpoint of this run has a base to compare it with."
    written = json.loads(json.dumps(document([well, gone], Policy())))
    assert written["verdict"] == "BLOCK"
    failure = Failure(checkpoint="w8a8", stage="load", reason="no kernel")
    assert document([well, gone], Policy(), [failure])["verdict"] == "BLOCK"
    written = document([well], Policy(), [failure])
    assert written["verdict"] == "WARN"  # a failure is no pass
    lost = {"checkpoint": "w8a8", "task": "", "why": "no kernel"}
    assert written["not_judged"] == [lost]


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (-0.062, 0.0286, "−6.2 to 2.9"),
        (-0.062, 0.0296, "−6.2 to 2.96"),
        (-0.062, 0.029999, "−6.2 to 2.9999"),
        (-0.062, 0.03, "−6.2 to 3.0"),
        (-0.062, 0.0304, "−6.2 to 3.04"),
        (0.0301, 0.06, "3.01 to 6.0"),
    ],
)
def test_end_is_told_from_the_tolerance(low, high, shown):
    """Rounding never makes them look equal, which decides."""
    found = verdict({"english": (60, 1, PICKED)}, Thresholds(max_drop=3))
    ends = SimpleNamespace(lower=lambda _: low, upper=lambda _: high)
    check = replace(found.checks[0], language="team=a", evidence=ends)
    assert f"({shown}; at most 3.0): " in of_groups(replace(found, checks=(check,)))
