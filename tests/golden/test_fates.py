"""What changed between a checkpoint and its base, and whether they may be compared,
with the arithmetic by hand."""

from dataclasses import replace

import pandas as pd
import pytest

from evaluator.metrics import TABLES, Inputs, compute_tables, reduce_records
from tests.support.records import Seen, numbered, records
from tests.support.tables import has, only, pair

RIGHT, WRONG = (
    Seen(greedy=True, choice=True),
    Seen(greedy=False, choice=False, said="Paris"),
)
UNSEEN = Seen(greedy=False, choice=False, status="excluded", why="too long")
DENSE = numbered(
    english=[
        replace(each, certainty=-n / 10)
        for n, each in enumerate([RIGHT, RIGHT, WRONG, WRONG, WRONG], 1)
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
    counts = row[
        ["n", "flips", "right_to_wrong", "wrong_to_right", "wrong_to_other", "excluded"]
    ]
    assert counts.tolist() == [6, 3, 2, 1, 1, 1]
    has(row, flip_rate=3 / 6, right_to_wrong_rate=2 / 6)
    assert row["mcnemar_p"] == pytest.approx(1.0)  # 2 against 1
    assert row["reason"] == "1 excluded (too long)"
    swahili = only(case["flips"], probe="greedy", language="swahili")
    has(swahili, n=1, flips=1, excluded=1)
    # Choices are compared by the option that won: english/3 wrong to right, swahili/1
    # right to wrong; the wrong ones share their option.
    choice = only(case["flips"], probe="choice", margin="all")
    has(choice, flips=2, wrong_to_other=0)


def test_flips_in_thirds_of_certainty(case):
    """The thirds are of the base's certainty and in a choice of golds margin."""
    thirds = case["flips"][
        (case["flips"]["probe"] == "greedy") & (case["flips"]["margin"] != "all")
    ]
    assert thirds["margin"].tolist() == ["lowest", "middle", "highest"]
    assert thirds["n"].tolist() == [2, 2, 2]
    assert thirds["flips"].tolist() == [1, 1, 1]  # swahili/1; english/3; english/2
    assert thirds["margin_from"].tolist() == pytest.approx([-0.6, -0.4, -0.2])
    assert thirds["margin_to"].tolist() == pytest.approx([-0.5, -0.3, -0.1])
    dense = {
        f"english/{n}": Seen(choice=True, gold_score=-2 + n / 10) for n in (1, 2, 3)
    }
    found = pair(dense, dense)["flips"]
    thirds = found[found["margin"] != "all"]
    assert thirds["margin_from"].tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_recovery_percent_by_hand(case):
    """Recovery is in percent of a base that is right at times and above guessing."""
    row = only(case["recovery_percent"], probe="greedy")
    has(row, base_accuracy=3 / 6, accuracy=2 / 6, recovery=2 / 3, above_guessing=None)
    assert row["recovery_low"] < 2 / 3 < row["recovery_high"]
    choice = only(case["recovery_percent"], probe="choice", language="english")
    assert choice["recovery"] == pytest.approx(3 / 2)  # 2 of 5, then 3 of 5
    has(choice, above_guessing=(3 / 5 - 1 / 4) / (2 / 5 - 1 / 4))
    mean = only(case["recovery_percent"], probe="greedy", language="mean")
    # english 2 of 2, swahili 0 of 1
    has(mean, recovery=(1 + 0) / 2)
    found = pair(numbered(english=[WRONG]), numbered(english=[RIGHT]))
    row = only(found["recovery_percent"], probe="greedy")
    assert pd.isna(row["recovery"])
    assert "the base is right for 0.000" in row["reason"]


def test_length_by_hand():
    """Length counts tokens and answers that did not end before the run's limit."""
    dense = [Seen(greedy=True, tokens=count) for count in (4, 4, 6, 10)]
    pruned = [
        Seen(greedy=True, tokens=count, ended=count < 16) for count in (8, 16, 16, 16)
    ]
    row = only(pair(numbered(english=dense), numbered(english=pruned))["length"])
    has(
        row,
        base_tokens=6,
        tokens=14,
        ratio=14 / 6,
        base_at_limit=0,
        at_limit=0.75,
        more_at_limit=0.75,
    )
    assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    for limit, at_limit in ((16, 0.0), (4, 1.0)):
        run = {"identity": {"task_settings": {"p": {"t": {"max_new_tokens": limit}}}}}
        row = only(
            TABLES["length"].fill(compared(run=run, greedy=True, tokens=4)).frame
        )
        assert row["at_limit"] == at_limit


def compared(
    run: dict | None = None, own: dict | None = None, **seen: object
) -> Inputs:
    """Three items of a base and of a checkpoint whose records differ in the columns
    of `own`."""
    items = numbered(
        english=[
            Seen(**(seen or {"greedy": True, "choice": True, "samples": [True] * 2}))
        ]
        * 3
    )
    parts = [
        records("dense", items),
        records("p", items, base="dense").assign(**own or {}),
    ]
    return Inputs(
        pd.concat([reduce_records(part) for part in parts], ignore_index=True),
        run=run or {},
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dtype": "bfloat16"}, "dtype float32 against bfloat16"),
        ({"engine_version": "1"}, "engine version 0 against 1"),
        (
            {"prompt_tokens": 51},
            "prompt tokens (another template or tokenizer) 50 against 51",
        ),
    ],
)
def test_what_records_differ_in_is_said(changed, said):
    assert compared().incomparable == compared().incomparable_drawn == {}
    assert compared(own=changed).incomparable == {
        ("t", "p"): f"not comparable with the base: {said}"
    }


def test_other_settings_are_not_comparable():
    """Changes of seed scoring distractors answers and samples are not comparable."""
    settings = {"dense": {"t": {"seed": 0, "chat": False, "probes": ["greedy"]}}}
    settings["p"] = {"t": {"seed": 1, "chat": False, "probes": ["choice"]}}
    stats = [
        {"checkpoint": "dense", "scoring": "forced"},
        {"checkpoint": "p", "scoring": "prompt_logprobs"},
    ]
    found = compute_tables(
        compared(run={"identity": {"task_settings": settings}, "engine_stats": stats})
    )
    why = (
        "not comparable with the base: seed 0 against 1, scoring forced against"
        " prompt_logprobs"
    )
    for name in (
        "flips",
        "recovery_percent",
        "length",
        "accuracy",
        "fates",
        "pr_gap",
        "recovery",
    ):
        reasons = found[name].frame.set_index("checkpoint")["reason"].astype(str)
        assert reasons.loc[["p"]].str.startswith(why).all(), name
        assert not reasons.drop("p").str.contains("comparable").any(), name
    # run.json names `alike`; a base from before the setting has no `options`, which is
    # `any`.
    settings = {
        "dense": {"t": {"seed": 0}},
        "p": {"t": {"seed": 0, "options": "alike"}},
    }
    why = "not comparable with the base: options any against alike"
    assert compared(run={"identity": {"task_settings": settings}}).incomparable == {
        ("t", "p"): why
    }
    settings["dense"]["t"]["options"] = "alike"
    assert compared(run={"identity": {"task_settings": settings}}).incomparable == {}
    settings = {
        name: {"t": {"temperature": heat}}
        for name, heat in (("dense", 1.0), ("p", 0.7))
    }
    found = compute_tables(compared(run={"identity": {"task_settings": settings}}))
    assert (
        found["recovery"]
        .frame["reason"]
        .str.contains("temperature 1 against 0.7")
        .any()
    )
    assert (
        not found["flips"].frame["reason"].astype(str).str.contains("temperature").any()
    )
    dense = numbered(english=[Seen(greedy=True, samples=[True] * 2)] * 3)
    own = dense | {"english/1": Seen(greedy=True, samples=[True])}
    outcomes = pd.concat(
        [
            reduce_records(records("dense", dense)),
            reduce_records(records("p", own, base="dense")),
        ]
    )
    said = "not comparable with the base: samples 2 against 1 on 1 of 3 items"
    assert Inputs(outcomes).incomparable_drawn == {("t", "p"): said}
