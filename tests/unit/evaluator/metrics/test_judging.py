"""Fit or unfit, and accuracies without the judge's error: by hand, by simulation,
and against the delta method."""

import math

import numpy as np
import pandas as pd
import pytest

from evaluator.metrics.tables.judges import (
    Fitness,
    corrected,
    judges,
    panel_fitness,
    words,
)


def controls(
    matcher: str, language: str, same: str, other: str, task: str = "t"
) -> pd.DataFrame:
    """y and n are verdicts, - is none; every second matching pair is a paraphrase."""
    rows = []
    verdicts = {"y": True, "n": False, "-": None}
    for kinds, said in ((("same", "paraphrase"), same), (("other",), other)):
        for number, letter in enumerate(said):
            kind = kinds[number % len(kinds)]
            rows.append((f"{language}{number}", kind, verdicts[letter]))
    frame = pd.DataFrame(rows, columns=["item_id", "control", "verdict"])
    named = {"task": task, "matcher": matcher, "language": language}
    return frame.assign(**named, response="x", status="ok")


UNFIT = "unfit as a judge: it accepts"


@pytest.mark.parametrize(
    ("fitness", "why"),
    [
        (Fitness(60, 60, 30, 30), None),
        (Fitness(0, 60, 30, 30), f"{UNFIT} 0 of 60 right answers"),
        (Fitness(60, 60, 0, 30), f"{UNFIT} 30 of 30 wrong answers"),
        (
            Fitness(30, 60, 15, 30),
            f"{UNFIT} 30 of 60 right answers and accepts 15 of 30 wrong answers",
        ),
        (Fitness(45, 60, 30, 30), None),  # 75 %, and 84 % is not excluded
        (Fitness(1, 2, 0, 0), None),  # too few to say
        (Fitness(0, 0, 0, 0), None),
    ],
)
def test_unfit_beyond_chance(fitness, why):
    """Unfit is what chance does not explain."""
    assert fitness.why_unfit == why


def test_correction_by_hand():
    # 100 answers, 40 right: 0.9 * 40 + 0.2 * 60 = 48 accepted
    for accepted, sensitivity, specificity, right in (
        (0.48, 0.9, 0.8, 0.4), (0.1, 0.9, 0.8, 0.0), (0.95, 0.9, 0.8, 1.0),
        (0.5, 0.6, 0.4, math.nan), (0.0, 0.0, 1.0, math.nan),
    ):  # fmt: skip
        found = corrected(
            *(np.asarray(each) for each in (accepted, sensitivity, specificity))
        )
        assert float(found) == pytest.approx(right, nan_ok=True)


def test_correction_draws_match_delta_method():
    """Var = (p (1 - p) / n + (1 - c)^2 sp (1 - sp) / n_sp + c^2 se (1 - se) / n_se)
    / J^2 (Rogan and Gladen)."""
    accepted, answers, judge = (
        0.5,
        2000,
        Fitness(accepted=900, matching=1000, denied=800, different=1000),
    )
    sensitivity, specificity = judge.drawn(20_000)
    drawn = np.random.default_rng(0).binomial(answers, accepted, 20_000) / answers
    found = corrected(drawn, sensitivity, specificity)
    informed = 0.9 + 0.8 - 1
    share = (accepted + 0.8 - 1) / informed
    variance = (
        accepted * (1 - accepted) / answers
        + (1 - share) ** 2 * 0.16 / 1000
        + share**2 * 0.09 / 1000
    )
    assert found.mean() == pytest.approx(share, abs=0.003)
    assert found.std() == pytest.approx(math.sqrt(variance) / informed, rel=0.03)
    assert (judge.drawn(5)[0] == sensitivity[:5]).all()


CONTROLS = pd.concat([
    controls("good", "english", "y" * 40, "n" * 20), controls("good", "korean", "n" * 20, "n" * 10),
    controls("yes", "english", "y" * 40, "y" * 20), controls("yes", "korean", "y" * 20, "y" * 10),
    controls("third", "english", "n" * 20 + "y" * 20, "n" * 20), controls("third", "korean", "y" * 19 + "-", "n" * 10),
], ignore_index=True)  # fmt: skip


def test_judges_by_task_and_language():
    assert judges(None, "t", "all") == judges(CONTROLS, "u", "all") == {}
    assert list(judges(CONTROLS, "t", "all")) == ["good", "third", "yes"]
    assert judges(CONTROLS, "t", "korean")["good"] == Fitness(0, 20, 10, 10)
    three = ["good", "third", "yes"]
    assert panel_fitness(CONTROLS, three, "t", "english") == Fitness(40, 40, 20, 20)
    two = panel_fitness(CONTROLS, ["good", "third"], "t", "english")
    assert two.accepted == 20  # a tie is a no
    # all three judged
    assert panel_fitness(CONTROLS, three, "t", "korean").matching == 19


def test_words_name_the_unfit():
    assert list(words(CONTROLS, ["yes"], fit_only=False)) == [
        "yes: control pairs of t: accepts 60 of 60 right answers, denies 0 of 30 wrong"
        " ones",
        "warning: yes is unfit as a judge: it accepts 30 of 30 wrong answers;"
        " --fit-only keeps it out of the panel (t)",
    ]
    assert "has no vote" in list(words(CONTROLS, ["yes"], fit_only=True))[1]
    english, korean = ("english", "y" * 90, "n" * 45), ("korean", "n" * 10, "n" * 5)
    mostly = pd.concat([controls("m", *english), controls("m", *korean)])
    assert list(words(mostly, ["m"], fit_only=True))[1:] == [
        "warning: m is, in korean, unfit as a judge: it accepts 0 of 10 right answers"
        " (t)"
    ]
