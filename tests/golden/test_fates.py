"""What changed between a checkpoint and its base, and whether they may be compared,
with the arithmetic by hand."""

from dataclasses import replace

import pandas as pd
import pytest

from evaluator.deciding.policy import Policy
from evaluator.deciding.verdict_text import why
from evaluator.deciding.verdicts import judge
from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.metrics.tables.length import filled_limits
from evaluator.report.results import compute
from tests.support.records import Seen, numbered, records
from tests.support.tables import Tables, assert_has, only, pair

RIGHT = Seen(greedy=True, choice=True)
WRONG = Seen(greedy=False, choice=False, said="Paris")
UNSEEN = Seen(greedy=False, choice=False, status="excluded", why="too long")
DENSE = numbered(
    english=[
        replace(RIGHT, certainty=-0.1),
        replace(RIGHT, certainty=-0.2),
        replace(WRONG, certainty=-0.3),
        replace(WRONG, certainty=-0.4),
        replace(WRONG, certainty=-0.5),
    ],
    swahili=[replace(RIGHT, certainty=-0.6), UNSEEN],
)
PRUNED = numbered(
    english=[
        RIGHT,
        replace(WRONG, choice=True),  # right to wrong
        RIGHT,  # wrong to right
        replace(WRONG, said="paris!"),  # the same wrong answer
        replace(WRONG, said="Rome"),  # another wrong answer
    ],
    swahili=[WRONG, UNSEEN],  # right to wrong
)


@pytest.fixture(scope="module")
def case():
    return pair(DENSE, PRUNED)


def test_flips_by_hand(case):
    """Flips count both ways and another wrong answer apart."""
    row = only(case["flips"], probe="greedy", margin="all")
    assert_has(row, n=6, flips=3, right_to_wrong=2, wrong_to_right=1, wrong_to_other=1)
    assert_has(
        row, excluded=1, flip_rate=3 / 6, right_to_wrong_rate=2 / 6, mcnemar_p=1.0
    )
    assert_has(row, reason="1 excluded (too long)")
    swahili = only(case["flips"], probe="greedy", language="swahili")
    assert_has(swahili, n=1, flips=1, excluded=1)
    # Choices are compared by the option that won: english/3 wrong to right, swahili/1
    # right to wrong; the wrong ones share their option.
    choice = only(case["flips"], probe="choice", margin="all")
    assert_has(choice, flips=2, wrong_to_other=0)


def test_flips_in_thirds_of_certainty(case):
    """The thirds are of the base's certainty and in a choice of gold's margin."""
    found = case["flips"]
    thirds = found[(found["probe"] == "greedy") & (found["margin"] != "all")]
    # swahili/1; english/3; english/2
    assert_has(
        thirds, margin=["lowest", "middle", "highest"], n=[2, 2, 2], flips=[1, 1, 1]
    )
    assert_has(thirds, margin_from=[-0.6, -0.4, -0.2], margin_to=[-0.5, -0.3, -0.1])
    scored = [Seen(choice=True, gold_score=-2 + n / 10) for n in (1, 2, 3)]
    found = pair(numbered(english=scored), numbered(english=scored))["flips"]
    assert_has(found[found["margin"] != "all"], margin_from=[0.1, 0.2, 0.3])


def test_recovery_percent_by_hand(case):
    row = only(case["recovery_percent"], probe="greedy")
    assert_has(
        row, base_accuracy=3 / 6, accuracy=2 / 6, recovery=2 / 3, above_guessing=None
    )
    assert row["recovery_low"] < 2 / 3 < row["recovery_high"]
    choice = only(case["recovery_percent"], probe="choice", language="english")
    # 2 of 5, then 3 of 5
    assert_has(choice, recovery=3 / 2, above_guessing=(3 / 5 - 1 / 4) / (2 / 5 - 1 / 4))
    mean = only(case["recovery_percent"], probe="greedy", language="mean")
    # english 2 of 2, swahili 0 of 1
    assert_has(mean, recovery=(1 + 0) / 2)
    found = pair(numbered(english=[WRONG]), numbered(english=[RIGHT]))
    row = only(found["recovery_percent"], probe="greedy")
    assert_has(row, recovery=None)
    assert "the base is right for 0.000" in row["reason"]


def compared(
    run: dict | None = None, own: dict | None = None, **seen: object
) -> Inputs:
    """Three items of a base and of a checkpoint whose records differ in the columns
    of `own`."""
    usual = {"greedy": True, "choice": True, "samples": [True] * 2}
    items = numbered(english=[Seen(**(seen or usual))] * 3)
    pruned = records("p", items, base="dense").assign(**own or {})
    parts = [reduce_records(records("dense", items)), reduce_records(pruned)]
    return Inputs(pd.concat(parts, ignore_index=True), run=run or {})


def run_of(**settings: dict) -> dict:
    """run.json with the settings of each checkpoint on task `t`."""
    by_task = {name: {"t": each} for name, each in settings.items()}
    return {"identity": {"task_settings": by_task}}


def test_length_by_hand():
    """Length counts tokens and answers that did not end before the run's limit."""
    dense = [Seen(greedy=True, tokens=count) for count in (4, 4, 6, 10)]
    pruned = [Seen(greedy=True, tokens=8)]
    pruned += [Seen(greedy=True, tokens=16, ended=False)] * 3
    row = only(pair(numbered(english=dense), numbered(english=pruned))["length"])
    assert_has(row, base_tokens=6, tokens=14, ratio=14 / 6)
    assert_has(row, base_at_limit=0, at_limit=0.75, more_at_limit=0.75)
    assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    for limit, at_limit in ((16, 0.0), (4, None)):
        inputs = compared(run_of(p={"max_new_tokens": limit}), greedy=True, tokens=4)
        row = only(TABLES["length"].fill(inputs).frame)
        assert_has(row, at_limit=at_limit, cut=at_limit, loop=0.0, tokens=4)
        # whether the last token ends the answer
        assert ("ends in the same token" in str(row["reason"])) == (limit == 4)


def test_answers_that_all_fill_the_limit_are_cut():
    """They end in different tokens, so nearly none is the end; the gate says so."""
    full = [
        Seen(greedy=True, choice=True, tokens=16, ended=n % 2 > 0) for n in range(4)
    ]
    parts = [records("dense", numbered(english=full))]
    parts.append(records("p", numbered(english=full), base="dense"))
    run = run_of(p={"max_new_tokens": 16})
    inputs = Inputs(reduce_records(pd.concat(parts, ignore_index=True)), run=run)
    row = only(TABLES["length"].fill(inputs).frame)
    assert_has(row, base_at_limit=1.0, at_limit=1.0)
    (verdict,) = judge(inputs, Policy())
    told = (
        "4 of 4 answers of the base are cut at a limit (max_new_tokens, --recheck-cut)"
    )
    assert verdict.remarks == (told,)
    full[0] = replace(full[0], greedy=False, said=LOOPING)
    parts[1] = records("p", numbered(english=full), base="dense")
    inputs = Inputs(reduce_records(pd.concat(parts, ignore_index=True)), run=run)
    (verdict,) = judge(inputs, Policy())
    lost = "of 1 answers that only the base says, 0 are cut at a limit and 1 loop"
    assert verdict.remarks == (f"{told}; {lost}, unlike the base's",)


# 8 words, 3 times: 17 runs of 8 words, 8 of them different.
LOOPING = "and so we add the two to it " * 3
LONGER = "first we add the two, then we take one of them away, and the rest is right"


def test_answers_that_were_posed_again():
    """They are longer than the limit, and end before their own one or not."""
    again = {"max_new_tokens": 16, "recheck_cut": True, "recheck_limit": 64}
    pruned = [
        Seen(greedy=True, tokens=8),
        Seen(greedy=True, tokens=30),
        Seen(greedy=False, tokens=40),
        Seen(greedy=False, tokens=64, ended=False, said=LONGER),
        Seen(greedy=False, tokens=64, ended=False, said=LOOPING),
    ]
    dense = [Seen(greedy=True, tokens=20), *[Seen(greedy=True, tokens=4)] * 4]
    parts = [records("dense", numbered(english=dense))]
    parts.append(records("p", numbered(english=pruned), base="dense"))
    run = run_of(p=again, dense=again)
    inputs = Inputs(reduce_records(pd.concat(parts, ignore_index=True)), run=run)
    row = only(TABLES["length"].fill(inputs).frame)
    assert_has(row, base_rechecked=1, rechecked=4, rechecked_right=1)
    assert_has(
        row, rechecked_cut=1, rechecked_loop=1, at_limit=2 / 5, cut=1 / 5, loop=1 / 5
    )
    told = "p on t: 2 of 5 answers fill the rechecked limit of 64 tokens"
    assert [*filled_limits(inputs)] == [told]
    alone = Inputs(
        reduce_records(parts[0]), run=run_of(dense=again | {"recheck_limit": 20})
    )
    assert [*filled_limits(alone)] == [
        "dense on t: 1 of 5 answers fill the rechecked limit of 20 tokens"
    ]
    assert compute(alone).remarks == [*filled_limits(alone)]


@pytest.mark.parametrize("limit", [0, 64])
def test_beams_beside_answers_that_were_posed_again_say_so(limit):
    run = run_of(p={"max_new_tokens": 16, "recheck_limit": limit})
    drawn = {"beams": [True] * 2, "samples": [True] * 2}
    rows = TABLES["recovery"].fill(compared(run, greedy=True, **drawn)).rows
    told = "cut greedy answers had up to 64 tokens (recheck_cut), beams did not"
    for row in rows:
        says = limit and (row["checkpoint"], row["probe"]) == ("p", "beam")
        assert (told in str(row["reason"])) == bool(says)


def test_cut_looping_and_long_answers_are_three_outcomes():
    """And the gate names what of a loss is the first two."""
    ends = Seen(greedy=True, choice=True, tokens=4)
    cut = Seen(greedy=False, choice=True, tokens=16, ended=False, said=LONGER)
    dense = [ends] * 39 + [cut]
    pruned = [
        *[cut] * 8,
        *[replace(cut, said=LOOPING)] * 4,  # a loop that the limit cut is a loop
        *[replace(ends, greedy=False, tokens=9, said=LONGER)] * 5,
        replace(ends, greedy=False, tokens=8),  # not over twice as long
        replace(ends, tokens=16, said=LOOPING),
        *[ends] * 20,
        replace(cut, said=LOOPING),  # the base's is cut, and does not loop
    ]
    row = only(pair(numbered(english=dense), numbered(english=pruned))["length"])
    assert_has(row, n=40, at_limit=13 / 40, base_at_limit=1 / 40, base_loop=0)
    assert_has(row, cut=8 / 40, loop=6 / 40, long=5 / 40)
    parts = [records("dense", numbered(english=dense))]
    parts.append(records("p", numbered(english=pruned), base="dense"))
    (verdict,) = judge(Inputs(reduce_records(pd.concat(parts))), Policy())
    words = (
        "of 18 answers that only the base says, 8 are cut at a limit and 4 loop, unlike"
        " the base's"
    )
    assert verdict.remarks == (words,)
    assert words in why(verdict)
    parts[1] = records("p", numbered(english=dense), base="dense")
    (verdict,) = judge(Inputs(reduce_records(pd.concat(parts))), Policy())
    assert verdict.remarks == ()


@pytest.mark.parametrize(
    ("own", "settings", "said"),
    [
        ({}, {}, None),
        ({"dtype": "bfloat16"}, {}, "dtype float32 against bfloat16"),
        ({"engine_version": "1"}, {}, "engine version 0 against 1"),
        (
            {"prompt_tokens": 51},
            {},
            "prompt tokens (another template or tokenizer) 50 against 51",
        ),
        ({}, {"seed": 1, "probes": ["choice"]}, "seed 0 against 1"),
        ({}, {"seed": 0, "options": "alike"}, "options any against alike"),
        ({}, {"seed": 0, "options": "any"}, None),
    ],
)
def test_other_evaluations_are_not_comparable(own, settings, said):
    run = run_of(dense={"seed": 0, "options": "any", "probes": ["greedy"]}, p=settings)
    reasons = {("t", "p"): f"not comparable with the base: {said}"} if said else {}
    assert compared(run, own).incomparable == reasons


def test_rows_say_they_are_not_comparable():
    ways = {"dense": "forced", "p": "prompt_logprobs"}
    stats = [{"checkpoint": name, "scoring": way} for name, way in ways.items()]
    run = run_of(dense={"temperature": 1.0}, p={"temperature": 0.7})
    found = Tables(compared(run | {"engine_stats": stats}))
    why = "not comparable with the base: "
    scoring = "scoring forced against prompt_logprobs"
    for name, reason in (
        ("accuracy", f"{why}{scoring}"),
        ("fates", f"{why}{scoring}"),
        # only of drawn answers
        ("recovery", f"{why}temperature 1 against 0.7, {scoring}"),
    ):
        reasons = found[name].set_index("checkpoint")["reason"].astype(str)
        assert reasons.loc[["p"]].str.startswith(reason).all(), name
        assert not reasons.drop("p", errors="ignore").str.contains(why).any(), name
    dense = numbered(english=[Seen(greedy=True, samples=[True] * 2)] * 3)
    own = dense | {"english/1": Seen(greedy=True, samples=[True])}
    parts = [records("dense", dense), records("p", own, base="dense")]
    inputs = Inputs(pd.concat([reduce_records(part) for part in parts]))
    said = f"{why}samples 2 against 1 on 1 of 3 items"
    assert inputs.incomparable_drawn == {("t", "p"): said}
    assert inputs.incomparable == {}
