"""What was not measured is told with its reason, and means over languages carry
intervals: cases worked out by hand."""

import math

import pandas as pd
import pytest
from scipy.stats import binomtest

from evaluator.metrics import Inputs, reduce_records
from evaluator.metrics.items import NO_REASON
from evaluator.metrics.left_out import left_out
from tests.support.records import Seen, numbered, records
from tests.support.tables import assert_has, only, pair, select, tables

SAID, SILENT = Seen(greedy=True, choice=True), Seen(greedy=False, choice=True)
FEW = "2 contexts are too few for an interval"


def excluded(why: str | None, **probes: object) -> Seen:
    return Seen(**{"greedy": False, **probes}, status="excluded", why=why)


@pytest.fixture(scope="module")
def shots():
    """one_shot: Bengali has no item left for an example; one English prompt is over
    its cap in the pruned model alone."""
    bengali = [excluded("no example")] * 3
    right = Seen(greedy=True)
    own = [right, Seen(greedy=False), excluded("over its cap")]
    parts = []
    for name, base, english in (("dense", None, [right] * 3), ("p", "dense", own)):
        zero = numbered(bengali=[right] * 3, english=[right] * 3)
        one = numbered(bengali=bengali, english=english)
        parts.append(records(name, zero, base=base, form="open_capped"))
        parts.append(records(name, one, base=base, form="one_shot"))
    return pd.concat(parts)


def test_exclusions_are_counted_by_reason(shots):
    found = tables(shots)
    accuracy = found["accuracy"].query("format == 'one_shot'")
    row = only(accuracy, checkpoint="dense", language="bengali")
    assert_has(
        row, n=0, excluded=3, reason="no item was measured; 3 excluded (no example)"
    )
    why = f"3 excluded (no example); 1 excluded (over its cap); {FEW}"
    assert_has(only(accuracy, checkpoint="p"), reason=why)
    assert_has(only(accuracy, checkpoint="dense", language="english"), reason=None)
    why = "no item is measured in both formats and both checkpoints"
    bengali = only(found["one_shot"], language="bengali")
    assert_has(bengali, reason=f"{why}; 3 excluded (no example)")
    english = only(found["one_shot"], language="english")
    assert_has(
        english, n=2, one_shot_gap=0.5, reason=f"1 excluded (over its cap); {FEW}"
    )


def test_left_out_names_every_reason(shots):
    found = left_out(Inputs(reduce_records(shots)))
    assert_has(found, checkpoint=["dense"] * 2 + ["p"] * 4, format=["one_shot"] * 6)
    assert_has(found, language=["all", "bengali", "all", "all", "bengali", "english"])
    example, cap = "no example", "over its cap"
    assert_has(found, reason=[example, example, example, cap, example, cap])
    assert_has(found, n=[3, 3, 3, 1, 3, 1], asked=[6, 3, 6, 6, 3, 3])


def test_failures_and_silent_exclusions():
    why = "out of memory"
    failed = Seen(greedy=False, choice=False, status="engine_error", why=why)
    why = "no distractor"
    unscored = Seen(greedy=True, choice=False, choice_status="excluded", why=why)
    seen = numbered(english=[SAID, failed, excluded(None, choice=False), unscored])
    parts = records("dense", seen)
    found = select(left_out(Inputs(reduce_records(parts))))
    assert_has(found, probe=["greedy"] * 2 + ["choice"] * 3, n=[1] * 5)
    told = [NO_REASON, "out of memory", "no distractor", NO_REASON, "out of memory"]
    assert_has(found, reason=told)
    why = f"1 excluded (no distractor); 1 excluded ({NO_REASON}); 1 failed (out of memory)"
    row = only(tables(parts)["accuracy"], probe="choice")
    assert_has(row, reason=f"{why}; 1 context is too few for an interval")


def test_accuracy_means_over_languages():
    """English: 8 of 8, then 4 of 8; Swahili: 2 of 2, then 0 of 2; Thai was asked of
    the dense model only."""
    kept = [f"english/e{number}" for number in range(4)]
    lost = [
        *(f"english/e{number}" for number in range(4, 8)),
        "swahili/s0",
        "swahili/s1",
    ]
    dense = dict.fromkeys((*kept, *lost, "thai/t0"), SAID)
    pruned = dict.fromkeys(kept, SAID) | dict.fromkeys(lost, SILENT)
    found = pair(dense, pruned)["accuracy"]
    row = only(found, checkpoint="p", probe="greedy", language="mean")
    assert_has(row, accuracy=(0.5 + 0) / 2, dense_accuracy=1.0, drop=(0.5 + 1) / 2)
    assert_has(
        row,
        reason="unweighted mean over 2 of 3 languages; floor and normalised_drop are of all languages together",
    )
    # Half of English's exact interval of 4 of 8, and as much again that Swahili's two
    # items leave open.
    english = binomtest(4, 8).proportion_ci(method="exact")
    assert 0 < row["accuracy_low"] < english.low / 2
    assert english.high / 2 < row["accuracy_high"] < 1
    assert row["drop_low"] < row["drop"] < row["drop_high"]


def test_fertility_means_by_unit():
    dense = numbered(english=[SAID], swahili=[SAID], thai=[SAID])
    pruned = {**dense, "english/1": SILENT}
    parts = [records("dense", dense), records("p", pruned, base="dense")]
    for part in parts:
        choice = part["probe"] == "choice"
        words = ["a b", "c", "d", "e", "f", "g", "h", "i", "กขค", "ก", "ข", "ค"]
        part.loc[choice, "option_text"] = words
        sizes = (4, 2, 2, 2, 1, 1, 1, 1, 3, 1, 1, 4)
        ids = [(1,) * size for size in sizes]
        part.loc[choice, "token_ids"] = pd.Series(ids, part.index[choice])
    found = tables(*parts)["fertility"]
    own = found[found["checkpoint"] == "p"]
    assert_has(own, language=["mean", "mean", "english", "swahili", "thai"])
    word = only(own, language="mean", unit="word")
    # English 10 tokens in 5 words, Swahili 4 in 4; open falls by 1 in English and by 0
    # in Swahili
    assert_has(word, fertility=(2 + 1) / 2, tokens=14, units=9, choice_drop=0.0)
    assert_has(word, open_drop=0.5, open_normalised_drop=0.5)
    why = "unweighted mean over 2 of 2 languages with tokens per word;"
    assert word["reason"].startswith(why)
    character = only(own, language="mean", unit="character")
    assert_has(character, fertility=9 / 6, open_drop=0.0)


def test_perplexity_means_over_texts():
    parts = []
    for name, task, nats in (
        ("dense", "en", 1.0),
        ("dense", "sw", 2.0),
        ("p", "en", 1.5),
        ("p", "sw", 3.5),
        ("p", "th", 4.0),
    ):
        windows = numbered(text=[Seen(window=(-nats * 10, 10))] * 2)
        base = "dense" if name == "p" else None
        parts.append(records(name, windows, base=base, task=task))
    found = tables(*parts)["perplexity"]
    row = only(found, checkpoint="p", language="mean")
    assert_has(row, task="mean of 3 texts", n=6, tokens=60)
    assert_has(row, perplexity=math.exp((1.5 + 3.5 + 4.0) / 3), perplexity_low=None)
    # the base has not read th
    assert_has(row, perplexity_ratio=math.exp((0.5 + 1.5) / 2))
    assert "perplexity_ratio of 2 of 3 texts" in row["reason"]
    assert_has(
        only(found, checkpoint="dense", language="mean"), perplexity=math.exp(1.5)
    )
    th = only(found, checkpoint="p", task="th")["reason"]
    assert th.startswith("base 'dense' was not measured on this text;")
