"""Table `matching` on cases worked out by hand: accuracy by grader, the majority,
agreement with containment."""

from dataclasses import replace

import pandas as pd
import pytest

from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.metrics.tables.matching import CONTAINMENT, MAJORITY
from tests.support.records import Seen, judged, numbered, records
from tests.support.tables import assert_has, only

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


def row(frame: pd.DataFrame, grader: str, language: str = "all") -> pd.Series:
    return only(frame, grader=grader, language=language)


def of_failures(matcher: str, *yes: int) -> pd.DataFrame:
    return judged(matcher, "dense", {key: int(key[-1]) in yes for key in FAILURES})


def test_contained_answer_is_right_for_all():
    """A contained answer is right for every grader and one matcher is no majority."""
    found = table(of_failures("a", 3, 4, 6), of_failures("b", 3))
    # of 4 and 6 the two matchers disagree: a tie is a no
    for grader, yes in {CONTAINMENT: 3, "a": 6, "b": 4, MAJORITY: 4}.items():
        line = row(found, grader)
        assert_has(line, n=7, yes=yes, accuracy=yes / 7, excluded=1, engine_error=1)
    assert_has(row(found, "a", language="korean"), accuracy=2 / 3, unjudged=0)
    three = [of_failures("a", 3, 4), of_failures("b", 3, 6), of_failures("c", 3, 4)]
    # 3 and 4 join the three that contain the answer
    assert_has(row(table(*three), MAJORITY), yes=5)
    elsewhere = judged("b", "other", {"english/3": True})
    found = table(of_failures("a", 3), elsewhere)
    assert set(found["grader"]) == {CONTAINMENT, "a"}


def test_agreement_with_containment_needs_all():
    line = row(table(of_failures("a", 3)), "a")
    why = "agreement needs all verdicts: resurface match --all"
    assert_has(line, agreement=None, reason=why)
    said = {key: key[-1] in "123" for key in SEEN if key[-1] not in "89"}
    line = row(table(judged("a", "dense", said)), "a")
    # containment 1 2 5, matcher 1 2 3: equal on 5 of 7. 5 contains the answer: right,
    # whatever the matcher says
    assert_has(line, agreement=5 / 7, yes=4)


@pytest.mark.parametrize("said", ["too long", None])
def test_response_without_verdict(said):
    verdicts = judged(
        "a", "dense", dict(zip(FAILURES, (said, True, True, False), strict=True))
    )
    line = row(table(verdicts), "a")
    assert_has(line, n=6, unjudged=1, yes=5)
    assert line["reason"].startswith("1 items lack a verdict")
    assert table(verdicts.assign(weights_digest="other")).empty


def test_accepted_beam_makes_item_right():
    """A beam that a matcher accepts makes the item right; else all must be judged."""
    beams = numbered(
        english=[
            Seen(greedy=False, beams=beams)
            for beams in ([False, True], [False] * 2, [False] * 2)
        ]
    )

    def of_beams(*verdicts: object) -> pd.DataFrame:
        said = dict(zip(beams, verdicts, strict=True))
        return judged("a", "dense", said, probe="beam")

    found = table(of_beams([False], [False, True], [False, False]), seen=beams)
    assert set(found["probe"]) == {"beam"}
    assert_has(row(found, CONTAINMENT), n=3, yes=1, accuracy=1 / 3)
    assert_has(row(found, "a"), n=3, yes=2)
    found = table(of_beams([False], [True, None], [False, None]), seen=beams)
    assert_has(row(found, "a"), n=2, unjudged=1, yes=2)


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
    assert_has(only(found, grader="a", format="one_shot", yes=7), accuracy=1.0)
    drawn = Seen(samples=[False, False])
    of_run = records("dense", numbered(english=[replace(drawn, greedy=False)]))
    verdicts = []
    for seed in (0, 1):
        said = {"english/1": [bool(seed)] * 2}
        verdicts.append(judged("a", "dense", said, probe="sample", seed=seed))
    again = records("dense", numbered(english=[drawn]), seed=1)
    outcomes = reduce_records(pd.concat([of_run, again]))
    inputs = Inputs(outcomes, verdicts=pd.concat(verdicts))
    assert_has(row(TABLES["matching"].fill(inputs).frame, "a"), yes=0)
