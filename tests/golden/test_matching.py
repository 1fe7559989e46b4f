"""Table `matching` on cases worked out by hand: accuracy by grader, the panel's
majority, agreement, Scott's pi."""

from dataclasses import replace

import pandas as pd

from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.metrics.tables.matching import CONTAINMENT, PANEL
from tests.support.records import Seen, judged, numbered, records
from tests.support.tables import has, only

# greedy: english 1, 2 and korean 5 contain the gold answer
SEEN = {
    **{f"english/{i}": Seen(greedy=i in (1, 2)) for i in (1, 2, 3, 4)},
    **{f"korean/{i}": Seen(greedy=i == 5) for i in (5, 6, 7)},
    "korean/8": Seen(greedy=True, status="excluded"),
    "korean/9": Seen(greedy=True, status="engine_error"),
}
FAILURES = ("english/3", "english/4", "korean/6", "korean/7")


def table(
    *verdicts: pd.DataFrame, seen: dict[str, Seen] = SEEN, **more: object
) -> pd.DataFrame:
    outcomes = reduce_records(records("dense", seen))
    inputs = Inputs(outcomes, verdicts=pd.concat(verdicts), **more)
    return TABLES["matching"].fill(inputs).frame


def fivefold(*verdicts: pd.DataFrame, seen: dict[str, Seen] = SEEN) -> pd.DataFrame:
    """The table with five copies of every item: no share changes, and every outcome
    is there often enough."""
    told, copies = [], {}
    for copy in "abcde":
        told += [each.assign(item_id=each["item_id"] + copy) for each in verdicts]
        copies |= {f"{key}{copy}": item for key, item in seen.items()}
    return table(*told, seen=copies)


def row(
    frame: pd.DataFrame, grader: str, against: str = "", language: str = "all"
) -> pd.Series:
    frame = frame.assign(against=frame["against"].fillna(""))
    return only(frame, grader=grader, against=against, language=language)


def of_failures(matcher: str, *yes: int) -> pd.DataFrame:
    return judged(matcher, "dense", {key: int(key[-1]) in yes for key in FAILURES})


def test_contained_answer_is_right_for_all():
    """A contained answer is right for every grader and one matcher is no panel."""
    found = table(of_failures("a", 3, 4, 6), of_failures("b", 3))
    # of 4 and 6 the two matchers disagree: a tie is a no
    for grader, yes in {CONTAINMENT: 3, "a": 6, "b": 4, PANEL: 4}.items():
        line = row(found, grader)
        has(line, n=7, yes=yes, accuracy=yes / 7, excluded=1, engine_error=1)
    has(row(found, "a", language="korean"), accuracy=2 / 3, unjudged=0)
    three = [of_failures("a", 3, 4), of_failures("b", 3, 6), of_failures("c", 3, 4)]
    # 3 and 4 join the three that contain the answer
    has(row(table(*three), PANEL), yes=5)
    elsewhere = judged("b", "other", {"english/3": True})
    found = table(of_failures("a", 3), elsewhere)
    assert set(found["grader"]) == {CONTAINMENT, "a"}


def test_agreement_of_two_matchers():
    line = row(fivefold(of_failures("a", 3, 4, 6), of_failures("b", 3)), "a", "b")
    # equal on 3 and 7 of 4; p = (3/4 + 1/4) / 2 = 1/2, p_e = 1/2, pi = 0
    has(line, n=20, unjudged=15, agreement=0.5, scott_pi=0.0, reason=None)
    assert line["agreement_low"] <= 0.5 <= line["agreement_high"]


def test_agreement_with_containment_needs_all():
    line = row(table(of_failures("a", 3)), CONTAINMENT, "a")
    why = "needs verdicts on all responses: resurface match --all"
    has(line, n=0, scott_pi=None, reason=why)
    said = {key: key[-1] in "123" for key in SEEN if key[-1] not in "89"}
    everything = judged("a", "dense", said)
    line = row(fivefold(everything), CONTAINMENT, "a")
    # containment 1 2 5, matcher 1 2 3: equal on 5 of 7; p = 3/7, p_e = (9 + 16) / 49,
    # pi = (35 - 25) / (49 - 25)
    has(line, agreement=5 / 7, scott_pi=10 / 24)
    assert line["scott_pi_low"] <= 10 / 24 <= line["scott_pi_high"]
    # 5 contains the answer: right, whatever the matcher says
    has(row(table(everything), "a"), yes=4)


def test_response_without_verdict():
    said = dict(zip(FAILURES, ("too long", True, None, False), strict=True))
    verdicts = judged("a", "dense", said)
    why = (
        "1 items have a response that is too long for a matcher's prompt; 1 items have"
        " no verdict: run resurface match with the same matchers again"
    )
    has(row(table(verdicts), "a"), n=5, unjudged=2, yes=4, reason=why)
    assert table(verdicts.assign(weights_digest="other")).empty


def test_one_yes_has_no_pi():
    """Two matchers who accept the same one of 20 answers would have a pi of 1."""
    seen = {f"english/{i}": Seen(greedy=False) for i in range(20)}
    said = {key: key == "english/0" for key in seen}
    verdicts = [judged(name, "dense", said) for name in ("a", "b")]
    why = "no Scott's pi: one of the two says yes fewer than 5 times"
    line = row(table(*verdicts, seen=seen), "a", "b")
    has(line, n=20, agreement=1.0, scott_pi=None, scott_pi_low=None, reason=why)


# beams of three items: 1 holds the answer in one beam, 2 and 3 in none
BEAMS = numbered(
    english=[
        Seen(greedy=False, beams=beams)
        for beams in ([False, True], [False] * 2, [False] * 2)
    ]
)


def of_beams(matcher: str, *verdicts: object) -> pd.DataFrame:
    said = dict(zip(BEAMS, verdicts, strict=True))
    return judged(matcher, "dense", said, probe="beam")


def test_accepted_beam_makes_item_right():
    """A beam that a matcher accepts makes the item right; else all must be judged."""
    found = table(of_beams("a", [False], [False, True], [False, False]), seen=BEAMS)
    assert set(found["probe"]) == {"beam"}
    has(row(found, CONTAINMENT), n=3, yes=1, accuracy=1 / 3)
    has(row(found, "a"), n=3, yes=2)
    found = table(of_beams("a", [False], [True, None], [False, None]), seen=BEAMS)
    has(row(found, "a"), n=2, unjudged=1, yes=2)


def test_matchers_compared_on_single_beams():
    """Matchers are compared on single beams and with containment on items."""
    one = of_beams("a", [False, True], [True, True], [False, False])
    other = of_beams("b", [False, False], [True, False], [False, False])
    found = fivefold(one, other, seen=BEAMS)
    # six beams; yes of a 3, of b 1; equal on 4: p = 4/12, p_e = 1/9 + 4/9, pi = (6/9 -
    # 5/9) / (4/9)
    line = row(found, "a", "b")
    has(line, n=30, unjudged=0, agreement=4 / 6, scott_pi=1 / 4)
    # items: containment 1, matcher 1 and 2, of three: p = 3/6, p_e = 1/2, pi = (2/3 -
    # 1/2) / (1/2)
    has(row(found, CONTAINMENT, "a"), n=15, agreement=2 / 3, scott_pi=1 / 3)


def test_judged_formats_and_seeds_have_rows():
    """Every judged format has rows; samples are of the run's own seed."""
    shown = [
        records("dense", SEEN, form=form) for form in ("open", "shown", "one_shot")
    ]
    verdicts = []
    for form in ("open", "one_shot"):
        said = dict.fromkeys(FAILURES, True)
        verdicts.append(judged("a", "dense", said, form=form))
    outcomes = reduce_records(pd.concat(shown))
    inputs = Inputs(outcomes, verdicts=pd.concat(verdicts))
    found = TABLES["matching"].fill(inputs).frame
    assert found["format"].unique().tolist() == ["open", "one_shot"]
    has(only(found, grader="a", format="one_shot", yes=7), accuracy=1.0)
    drawn = Seen(samples=[False, False])
    of_run = records("dense", numbered(english=[replace(drawn, greedy=False)]))
    verdicts = []
    for seed in (0, 1):
        said = {"english/1": [bool(seed)] * 2}
        verdicts.append(judged("a", "dense", said, probe="sample", seed=seed))
    again = records("dense", numbered(english=[drawn]), seed=1)
    outcomes = reduce_records(pd.concat([of_run, again]))
    inputs = Inputs(outcomes, verdicts=pd.concat(verdicts))
    has(row(TABLES["matching"].fill(inputs).frame, "a"), yes=0)


def controlled(matcher: str, accepted: int, denied: int) -> pd.DataFrame:
    """Ten control pairs that match, of which so many are accepted, and ten that do
    not, of which so many are denied."""
    rows = []
    for number in range(10):
        rows.append({"control": "same", "verdict": number < accepted})
        rows.append({"control": "other", "verdict": number >= denied})
    named = {"task": "t", "matcher": matcher, "language": "english", "response": "x"}
    numbers = [str(number) for number in range(len(rows))]
    return pd.DataFrame(rows).assign(**named, item_id=numbers, status="ok")


def test_accuracies_without_graders_errors():
    """3 of 7 items contain the answer, 2 of 4 are accepted: (1/2 + 8/10 - 1) / (9/10
    + 8/10 - 1) = 3/7 are right."""
    found = table(of_failures("a", 3, 4), controls=controlled("a", 9, 8))
    line = row(found, "a")
    has(line, accuracy=5 / 7, corrected=3 / 7 + 4 / 7 * 3 / 7)
    assert line["corrected_low"] < line["corrected"] < line["corrected_high"]
    has(row(found, CONTAINMENT), corrected=None)
    # no control pair in that language
    has(row(found, "a", language="korean"), corrected=None)
    # 8/7, kept within 1
    has(row(found, "a", language="english"), corrected=2 / 4 + 2 / 4 * 1.0)
    controls = [controlled("a", 9, 8), controlled("b", 10, 10), controlled("c", 8, 10)]
    verdicts = [of_failures("a", 3, 4), of_failures("b", 3), of_failures("c", 3, 4)]
    found = table(*verdicts, controls=pd.concat(controls))
    # of the ten that match, the majority accepts 9 (a and b); of the others it accepts
    # none
    has(row(found, PANEL), corrected=3 / 7 + 4 / 7 * (2 / 4) / 0.9)
    said = {f"english/{i}": [True, False] for i in range(4)}
    verdicts = judged("a", "dense", said, probe="sample")
    seen = dict.fromkeys(said, Seen(samples=[False, False]))
    line = row(table(verdicts, seen=seen, controls=controlled("a", 9, 8)), "a")
    has(line, accuracy=1.0, corrected=None)


def test_unfit_matcher_loses_vote():
    """An unfit matcher is named and loses its vote where that is asked."""
    verdicts = [of_failures("a", 3, 4), of_failures("b", 3, 4)]
    verdicts += [of_failures("c"), of_failures("d")]
    accepted = {"a": 10, "b": 10, "c": 0, "d": 0}
    controls = pd.concat([controlled(name, k, 10) for name, k in accepted.items()])
    whole = table(*verdicts, controls=controls)
    fit = table(*verdicts, controls=controls, fit_only=True)
    has(row(whole, PANEL), yes=3)  # two against two is a no
    has(row(fit, PANEL), yes=5)
    why = "unfit as a judge: it accepts 0 of 10 right answers; not corrected"
    assert row(whole, "c")["reason"].startswith(why)
    assert "it has no vote in the panel" in row(fit, "c")["reason"]
    has(row(fit, "a"), reason=None)
