"""Table `matching` on cases worked out by hand: accuracy by grader, the panel's
majority, agreement, Scott's pi."""

from dataclasses import replace

import pandas as pd

from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.metrics.tables.matching import CONTAINMENT, PANEL
from tests.support.records import Seen, judged, numbered, records
from tests.support.tables import has

# greedy: english 1, 2 and korean 5 contain the gold answer
SEEN = {
    **{f"english/{i}": Seen(greedy=i in (1, 2)) for i in (1, 2, 3, 4)},
    **{f"korean/{i}": Seen(greedy=i == 5) for i in (5, 6, 7)},
    "korean/8": Seen(greedy=True, status="excluded"),
    "korean/9": Seen(greedy=True, status="engine_error"),
}


def table(
    *verdicts: pd.DataFrame, seen: dict[str, Seen] | None = None, **more: object
) -> pd.DataFrame:
    outcomes = reduce_records(records("dense", seen or SEEN))
    inputs = Inputs(outcomes, None, pd.concat(verdicts) if verdicts else None, **more)
    return TABLES["matching"].fill(inputs).frame


def fivefold(*verdicts: pd.DataFrame, seen: dict[str, Seen] = SEEN) -> pd.DataFrame:
    """The table with five copies of every item: no share changes, and every outcome
    is there often enough."""
    copies = "abcde"
    told = [
        each.assign(item_id=each["item_id"] + copy)
        for each in verdicts
        for copy in copies
    ]
    return table(
        *told,
        seen={f"{key}{copy}": each for key, each in seen.items() for copy in copies},
    )


def row(
    frame: pd.DataFrame, grader: str, against: str | None = None, language: str = "all"
) -> pd.Series:
    chosen = frame[(frame["grader"] == grader) & (frame["language"] == language)]
    chosen = (
        chosen[chosen["against"].isna()]
        if against is None
        else chosen[chosen["against"] == against]
    )
    assert len(chosen) == 1
    return chosen.iloc[0]


def of_failures(matcher: str, *yes: int) -> pd.DataFrame:
    keys = ("english/3", "english/4", "korean/6", "korean/7")
    return judged(matcher, "dense", {key: int(key[-1]) in yes for key in keys})


def test_contained_answer_is_right_for_all():
    """A contained answer is right for every grader and one matcher is no panel."""
    found = table(of_failures("a", 3, 4, 6), of_failures("b", 3))
    # of 4 and 6 the two matchers disagree: a tie is a no
    wanted = {CONTAINMENT: 3, "a": 6, "b": 4, PANEL: 4}
    for grader, yes in wanted.items():
        line = row(found, grader)
        has(
            line, n=7, yes=yes, accuracy=yes / 7, excluded=1, engine_error=1, unjudged=0
        )
    has(row(found, "a", language="korean"), accuracy=2 / 3)
    three = table(
        of_failures("a", 3, 4), of_failures("b", 3, 6), of_failures("c", 3, 4)
    )
    # 3 and 4 join the three that contain the answer
    assert row(three, PANEL)["yes"] == 5
    elsewhere = judged("b", "other", {"english/3": True})
    found = table(of_failures("a", 3), elsewhere)
    assert set(found["grader"]) == {CONTAINMENT, "a"}


def test_agreement_uses_what_both_judged():
    """Agreement is on what both judged and needs all responses with containment."""
    line = row(fivefold(of_failures("a", 3, 4, 6), of_failures("b", 3)), "a", "b")
    # equal on 3 and 7 of 4; p = (3/4 + 1/4) / 2 = 1/2, p_e = 1/2, pi = 0
    has(line, n=20, unjudged=15, agreement=0.5, scott_pi=0.0, reason=None)
    assert line["agreement_low"] <= 0.5 <= line["agreement_high"]
    line = row(table(of_failures("a", 3)), CONTAINMENT, "a")
    assert line["n"] == 0
    assert "resurface match --all" in line["reason"]
    assert pd.isna(line["scott_pi"])
    no_korean = {
        key: Seen(greedy=key.startswith("english") and seen.greedy)
        for key, seen in SEEN.items()
    }
    # A language without any containment is no exception.
    assert (
        row(
            table(of_failures("a", 3), seen=no_korean),
            CONTAINMENT,
            "a",
            language="korean",
        )["n"]
        == 0
    )
    everything = judged(
        "a",
        "dense",
        {key: int(key[-1]) in (1, 2, 3) for key in SEEN if key[-1] not in "89"},
    )
    line = row(fivefold(everything), CONTAINMENT, "a")
    # containment 1 2 5, matcher 1 2 3: equal on 5 of 7; p = 3/7, p_e = (9 + 16) / 49,
    # pi = (35 - 25) / (49 - 25)
    has(line, agreement=5 / 7, scott_pi=10 / 24)
    assert line["scott_pi_low"] <= 10 / 24 <= line["scott_pi_high"]
    # 5 contains the answer: right, whatever the matcher says
    assert row(table(everything), "a")["yes"] == 4


def test_response_without_verdict():
    """A response without a verdict is counted and told."""
    verdicts = judged(
        "a",
        "dense",
        {"english/3": True, "english/4": None, "korean/6": False, "korean/7": False},
    )
    line = row(table(verdicts), "a")
    has(line, n=6, unjudged=1, yes=4)
    assert "run resurface match" in line["reason"]
    assert table(of_failures("a", 3).assign(weights_digest="other")).empty
    verdicts = judged(
        "a",
        "dense",
        {
            "english/3": "too long",
            "english/4": True,
            "korean/6": None,
            "korean/7": False,
        },
    )
    line = row(table(verdicts), "a")
    has(
        line,
        n=5,
        unjudged=2,
        reason="1 items have a response that is too long for a matcher's prompt; "
        "1 items have no verdict: run resurface match with the same matchers again",
    )


def test_one_yes_has_no_pi():
    """Two matchers who accept the same one of 20 answers would have a pi of 1."""
    verdicts = [
        judged(name, "dense", {f"english/{i}": i == 0 for i in range(20)})
        for name in ("a", "b")
    ]
    line = row(
        table(*verdicts, seen={f"english/{i}": Seen(greedy=False) for i in range(20)}),
        "a",
        "b",
    )
    has(
        line,
        n=20,
        agreement=1.0,
        scott_pi=None,
        scott_pi_low=None,
        scott_pi_high=None,
        reason="no Scott's pi: one of the two says yes fewer than 5 times",
    )


# beams of three items: 1 holds the answer in one beam, 2 and 3 in none
BEAMS = numbered(
    english=[
        Seen(greedy=False, beams=beams)
        for beams in ([False, True], [False] * 2, [False] * 2)
    ]
)


def of_beams(matcher: str, *verdicts: object) -> pd.DataFrame:
    return judged(
        matcher, "dense", dict(zip(BEAMS, verdicts, strict=True)), probe="beam"
    )


def test_accepted_beam_makes_item_right():
    """A beam that a matcher takes makes the item right and else all must be judged."""
    found = table(of_beams("a", [False], [False, True], [False, False]), seen=BEAMS)
    assert set(found["probe"]) == {"beam"}
    contained, matcher = row(found, CONTAINMENT), row(found, "a")
    has(contained, n=3, yes=1, accuracy=1 / 3)
    has(matcher, n=3, yes=2)
    found = table(of_beams("a", [False], [True, None], [False, None]), seen=BEAMS)
    line = row(found, "a")
    has(line, n=2, unjudged=1, yes=2)
    assert line["reason"].startswith(
        "1 items have no verdict: run resurface match with the same matchers again"
    )


def test_matchers_compared_on_single_beams():
    """Matchers are compared on single beams and with containment on items."""
    one = of_beams("a", [False, True], [True, True], [False, False])
    other = of_beams("b", [False, False], [True, False], [False, False])
    found = fivefold(one, other, seen=BEAMS)
    line = row(found, "a", "b")
    # six beams; yes of a 3, of b 1; equal on 4: p = 4/12, p_e = 1/9 + 4/9, pi = (6/9 -
    # 5/9) / (4/9)
    has(line, n=30, unjudged=0, agreement=4 / 6, scott_pi=1 / 4)
    line = row(found, CONTAINMENT, "a")
    # items: containment 1, matcher 1 and 2, of three: p = 3/6, p_e = 1/2, pi = (2/3 -
    # 1/2) / (1/2)
    has(line, n=15, agreement=2 / 3, scott_pi=1 / 3)
    few = table(of_beams("a", [False], [True, True], [False, False]), seen=BEAMS)
    assert "resurface match --all" in row(few, CONTAINMENT, "a")["reason"]


def test_judged_formats_and_seeds_have_rows():
    """Every generated format that was judged has rows and samples are of the run's own seed."""
    parts = [
        records("dense", SEEN, form=form) for form in ("open", "shown", "one_shot")
    ]
    everything = dict.fromkeys(("english/3", "english/4", "korean/6", "korean/7"), True)
    verdicts = [
        judged("a", "dense", everything, form=form) for form in ("open", "one_shot")
    ]
    found = (
        TABLES["matching"]
        .fill(Inputs(reduce_records(pd.concat(parts)), None, pd.concat(verdicts)))
        .frame
    )
    assert found["format"].unique().tolist() == ["open", "one_shot"]
    pooled = found.query("language == 'all' and grader == 'a' and format == 'one_shot'")
    assert pooled["accuracy"].tolist() == [1.0]
    verdicts = [
        judged("a", "dense", {"english/1": [bool(seed)] * 2}, probe="sample", seed=seed)
        for seed in (0, 1)
    ]
    drawn = Seen(samples=[False, False])
    of_run = records("dense", numbered(english=[replace(drawn, greedy=False)]))
    parts = [of_run, records("dense", numbered(english=[drawn]), seed=1)]
    found = (
        TABLES["matching"]
        .fill(Inputs(reduce_records(pd.concat(parts)), None, pd.concat(verdicts)))
        .frame
    )
    assert row(found, "a")["yes"] == 0


def controlled(
    matcher: str, accepted: int, denied: int, language: str = "english"
) -> pd.DataFrame:
    """Ten control pairs that match, of which so many are accepted, and ten that do
    not, of which so many are denied."""
    said = [("same", number < accepted) for number in range(10)] + [
        ("other", number >= denied) for number in range(10)
    ]
    rows = [
        {
            "control": control,
            "verdict": verdict,
            "item_id": f"{control} {number}",
            "response": "x",
            "status": "ok",
        }
        for number, (control, verdict) in enumerate(said)
    ]
    return pd.DataFrame(rows).assign(task="t", matcher=matcher, language=language)


def test_accuracies_without_graders_errors():
    """3 of 7 items contain the answer, 2 of 4 are accepted: (1/2 + 8/10 - 1) / (9/10
    + 8/10 - 1) = 3/7 are right."""
    found = table(of_failures("a", 3, 4), controls=controlled("a", 9, 8))
    line = row(found, "a")
    has(line, accuracy=5 / 7, corrected=3 / 7 + 4 / 7 * 3 / 7)
    assert line["corrected_low"] < line["corrected"] < line["corrected_high"]
    assert pd.isna(row(found, CONTAINMENT)["corrected"])
    # no control pair in that language
    assert pd.isna(row(found, "a", language="korean")["corrected"])
    # 8/7, kept within 1
    has(row(found, "a", language="english"), corrected=2 / 4 + 2 / 4 * 1.0)
    controls = pd.concat(
        [controlled("a", 9, 8), controlled("b", 10, 10), controlled("c", 8, 10)]
    )
    found = table(
        of_failures("a", 3, 4),
        of_failures("b", 3),
        of_failures("c", 3, 4),
        controls=controls,
    )
    # of the ten that match, the majority accepts 9 (a and b); of the others it accepts
    # none
    has(row(found, PANEL), corrected=3 / 7 + 4 / 7 * (2 / 4) / 0.9)
    seen = {f"english/{i}": Seen(samples=[False, False]) for i in range(4)}
    verdicts = judged(
        "a", "dense", {key: [True, False] for key in seen}, probe="sample"
    )
    line = row(table(verdicts, seen=seen, controls=controlled("a", 9, 8)), "a")
    has(line, accuracy=1.0, corrected=None)


def test_unfit_matcher_loses_vote():
    """An unfit matcher is named and loses its vote where that is asked."""
    verdicts = (
        of_failures("a", 3, 4),
        of_failures("b", 3, 4),
        of_failures("c"),
        of_failures("d"),
    )
    controls = pd.concat(
        [
            controlled(name, right, 10)
            for name, right in zip("abcd", (10, 10, 0, 0), strict=True)
        ]
    )
    whole, fit = (
        table(*verdicts, controls=controls, fit_only=fit_only)
        for fit_only in (False, True)
    )
    assert row(whole, PANEL)["yes"] == 3  # two against two is a no
    assert row(whole, "c")["reason"].startswith(
        "unfit as a judge: it accepts 0 of 10 right answers; not corrected"
    )
    assert row(fit, PANEL)["yes"] == 5
    assert "it has no vote in the panel" in row(fit, "c")["reason"]
    assert pd.isna(row(fit, "a")["reason"])
    assert row(fit, "c")["accuracy"] == row(whole, "c")["accuracy"]
