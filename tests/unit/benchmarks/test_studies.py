"""The numbers of the studies, on made-up checkpoints."""

import re
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from benchmarks.studies import graders
from benchmarks.studies.calibration_text import TEXTS, code, sequences
from benchmarks.studies.calibration_text import figure as calibration_figure
from benchmarks.studies.calibration_text import study as calibration_study
from benchmarks.studies.silent_zone import (
    ANSWERED,
    OUTCOMES,
    UNANSWERED,
    Half,
    Quantity,
    _quantities,
    halves,
    index,
    rho,
    study,
)

CONTEXTS, CHECKPOINTS = 40, 12


def half(seed: int, losses: np.ndarray) -> Half:
    """Every checkpoint loses its share of open answers; `kld` rises with it, and all
    else is noise."""
    draws = np.random.default_rng(seed)
    ones = np.ones((CHECKPOINTS, CONTEXTS))
    names = {*UNANSWERED, *ANSWERED, *OUTCOMES}
    quantities = {
        name: Quantity(draws.random((CHECKPOINTS, CONTEXTS)) * 0.01, ones)
        for name in sorted(names)
    }
    lost = losses[:, None] + draws.normal(0, 0.01, (CHECKPOINTS, CONTEXTS))
    for name in ("open", "known", "open_paper", "kld"):
        quantities[name] = Quantity(lost, ones)
    return Half(CONTEXTS, quantities)


def test_study_finds_what_predicts():
    losses = np.linspace(0, 0.3, CHECKPOINTS)
    both = {"A": half(0, losses), "B": half(1, losses)}
    frame = study(both, 200).set_index(["predictor", "outcome"])
    known, noise = frame.loc["kld", "open"], frame.loc["margin", "open"]
    assert known["rho"] == 1.0
    assert known["low"] > 0.9
    assert noise["low"] < 0 < noise["high"]
    floor = frame.loc["kld", "shuffled"]
    assert floor["low"] < -0.3
    assert floor["high"] > 0.3
    assert set(frame["checkpoints"]) == {CHECKPOINTS}
    chosen = index(both)
    assert chosen["kld"] == 1.0
    assert len(chosen) == 2


def test_zone_is_what_choice_keeps():
    losses = np.linspace(0, 0.3, CHECKPOINTS)
    both = {"A": half(0, losses), "B": half(1, losses)}
    both["A"].quantities["choice"] = both["A"].quantities["open"]
    assert set(study(both, 200)["checkpoints"]) == {(losses < 0.05).sum() + 1}


def test_halves_are_alike_in_all_languages():
    contexts = pd.Series([f"passage {number % 21}" for number in range(63)])
    found = halves(contexts)
    assert found.groupby(contexts).nunique().eq(1).all()
    assert found[:21].value_counts().to_dict() == {"A": 11, "B": 10}


def test_quantities_are_quotients_of_sums():
    here = pd.DataFrame({"checkpoint": ["p"] * 4, "context": ["a", "a", "b", "b"]})
    for name, own, base in (
        ("open", [1, 0, 0, 1], [1, 1, 1, 0]),
        ("open_paper", [1, 0, 0, 1], [1, 1, 1, 0]),
        ("choice", [1, 1, 0, 1], [1, 1, 1, 1]),
        ("margin", [1, 1, -1, 1], [2, 2, 2, 2]),
        ("kld", [0.1, 0.3, 0.2, 0.0], [0, 0, 0, 0]),
        ("same_top", [2, 1, 2, 2], [2, 2, 2, 2]),
        ("positions", [2, 2, 2, 2], [2, 2, 2, 2]),
    ):
        here[name] = [float(each) for each in own]
        here[f"{name}_base"] = [float(each) for each in base]
    found = dict(_quantities(here, ["p"]))
    values = {name: each.value(np.ones(2))[0] for name, each in found.items()}
    assert values == pytest.approx(
        {
            "kld": 0.6 / 8,
            "top_1": 1 / 8,
            "choice": 1 / 4,
            "choice_flips": 1 / 4,
            "margin": 6 / 4,
            "open": 1 / 4,
            "open_flips": 3 / 4,
            "mc_only": 1 / 3,  # of three known answers, one is only picked
            "known": 2 / 3,
            "open_paper": 1 / 4,
        }
    )


def test_correlation_of_equal_values_is_none():
    assert rho(np.ones(3), np.arange(3.0)) == 0.0


class TestCalibrationText:
    """The study "calibration text"."""

    def rows(self, lift: float) -> pd.DataFrame:
        """Of two methods, and 30 passages: `web` picks `lift` more answers."""
        draws, rows = np.random.default_rng(0), []
        for text in TEXTS:
            for draw in "01":
                for number in range(60):
                    choice = float(draws.random() < 0.5 + lift * (text == "web"))
                    rows.append((text, draw, str(number % 30), choice))
        frame = pd.DataFrame(rows, columns=["text", "draw", "passage", "choice"])
        return frame.assign(open=0.0, gap=frame["choice"], gap_paper=frame["choice"])

    def test_a_difference_is_found_beside_its_noise(self):
        frame = calibration_study(self.rows(0.5), 200)
        frame = frame.set_index(["number", "text", "minus"])
        lifted = frame.loc["gap", "web", "code"]
        assert 0.3 < lifted["low_of_six"] < lifted["low"] < lifted["value"]
        assert lifted["value"] > lifted["noise"] > 0
        alike = frame.loc["gap", "code", "languages"]
        assert alike["low"] < 0 < alike["high"]
        assert frame.loc["open", "web", ""]["value"] == 0
        means = self.rows(0.5).groupby("text")["choice"].mean()
        assert frame.loc["choice", "web", ""]["value"] == pytest.approx(means["web"])

    def test_sequences_are_whole(self):
        class Letters:
            encode = staticmethod(lambda text, add_special_tokens: [*text])
            decode = staticmethod("".join)

        found = [*sequences(["abc", "de", "fghi"], Letters(), 4)]
        assert found == ["abc\n", "\nde\n", "\nfgh"]

    def test_code_is_of_many_files(self):
        stretches = [*code()]
        assert len({*stretches}) == len(stretches) > 50
        assert all(each.startswith(("\ndef ", "\nclass ")) for each in stretches)
        assert max(map(len, stretches)) <= 1500


class TestGraders:
    """The grader's share."""

    ROWS = (  # checkpoint, item, sparsity, picked, right by the strict rule, the paper's
        ("dense", 1, None, True, True, True),
        ("dense", 2, None, True, False, True),
        ("a", 1, 0.5, True, False, False),
        ("a", 2, 0.5, True, False, True),
        ("a", 3, 0.5, False, False, True),  # the base has none
    )

    def outcomes(self) -> pd.DataFrame:
        names = ["checkpoint", "item_id", "requested_sparsity", "recognised"]
        frame = pd.DataFrame(self.ROWS, columns=[*names, "produced", "greedy_paper"])
        base = frame["checkpoint"].map({"a": "dense"})
        return frame.assign(base=base, kv_cache="auto", task="t", language="english")

    def items(self) -> pd.DataFrame:
        frame = self.outcomes()[["task", "language", "item_id"]].drop_duplicates()
        return frame.assign(cluster=frame["item_id"].map("passage {}".format))

    def test_effects_by_both_rules(self):
        found = graders.shares(graders.read(self)).set_index("effect")
        gap, lost = found.loc["choice - open"], found.loc["open lost - choice lost"]
        assert (gap["strict"], gap["paper"]) == (1, 0.5)
        assert (gap["difference"], gap["share"]) == (-0.5, -1)
        assert (gap["difference_low"], gap["difference_high"]) == (-1, 0)
        assert (lost["strict"], lost["paper"]) == (0.5, 0.5)
        assert (lost["difference_low"], lost["difference_high"]) == (0, 0)


def test_a_figure_has_a_row_for_each_pair():
    found = calibration_study(TestCalibrationText().rows(0.5), 20)
    svg = calibration_figure(found)
    assert svg.startswith("<svg")
    assert re.findall(r">(\w+) - (\w+)<", svg) == [*combinations(TEXTS, 2)]
