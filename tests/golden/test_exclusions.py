"""What was not measured is told with its reason, and means over languages carry
intervals: cases worked out by hand."""

import io
import math

import pandas as pd
import pytest
from rich.console import Console
from scipy.stats import binomtest

from evaluator.metrics import Inputs, reduce_records
from evaluator.metrics.exclusions import NO_REASON
from evaluator.metrics.left_out import left_out
from launch.commands.report import _left_out
from tests.support.records import Seen, numbered, records
from tests.support.tables import has, only, pair, select, tables

SAID, SILENT = Seen(greedy=True, choice=True), Seen(greedy=False, choice=True)


def excluded(why: str | None, **probes: object) -> Seen:
    return Seen(**{"greedy": False, **probes}, status="excluded", why=why)


# one_shot: Bengali has no item left for an example; one English prompt is over its cap
# in the pruned model alone.
NO_EXAMPLE = [excluded("no example")] * 3
SHOTS = {
    "dense": numbered(bengali=NO_EXAMPLE, english=[Seen(greedy=True)] * 3),
    "p": numbered(
        bengali=NO_EXAMPLE,
        english=[Seen(greedy=True), Seen(greedy=False), excluded("over its cap")],
    ),
}
ZERO = numbered(bengali=[Seen(greedy=True)] * 3, english=[Seen(greedy=True)] * 3)


@pytest.fixture(scope="module")
def shots():
    parts = [
        records(name, seen, base=base, form=form)
        for name, base in (("dense", None), ("p", "dense"))
        for form, seen in (("open_capped", ZERO), ("one_shot", SHOTS[name]))
    ]
    return pd.concat(parts)


def test_exclusions_are_counted_by_reason(shots):
    """An exclusion is counted by its reason and told once on the terminal."""
    found = tables(shots)
    accuracy = found["accuracy"].query("format == 'one_shot'")
    row = only(accuracy, checkpoint="dense", language="bengali")
    has(row, n=0, excluded=3, reason="no item was measured; 3 excluded (no example)")
    pooled = only(accuracy, checkpoint="p")
    few = "2 contexts are too few for an interval"
    assert (
        pooled["reason"] == f"3 excluded (no example); 1 excluded (over its cap); {few}"
    )
    assert pd.isna(only(accuracy, checkpoint="dense", language="english")["reason"])
    bengali = only(found["one_shot"], language="bengali")
    assert bengali["reason"].endswith(
        "in both formats and both checkpoints; 3 excluded (no example)"
    )
    english = only(found["one_shot"], language="english")
    has(english, n=2, one_shot_gap=0.5, reason=f"1 excluded (over its cap); {few}")
    found = left_out(Inputs(reduce_records(shots)))
    assert set(found["format"]) == {"one_shot"}
    rows = [
        (row["checkpoint"], row["language"], row["reason"], row["n"], row["asked"])
        for _, row in found.iterrows()
    ]
    assert rows == [
        ("dense", "all", "no example", 3, 6),
        ("dense", "bengali", "no example", 3, 3),
        ("p", "all", "no example", 3, 6),
        ("p", "all", "over its cap", 1, 6),
        ("p", "bengali", "no example", 3, 3),
        ("p", "english", "over its cap", 1, 3),
    ]
    console = Console(file=io.StringIO(), width=60)
    _left_out(console, left_out(Inputs(reduce_records(shots))))
    assert console.file.getvalue().splitlines() == [
        "t: excluded, no example: bengali 3 (greedy of one_shot)",
        "t: excluded, over its cap: english 1 (greedy of one_shot)",
    ]


def test_failures_and_silent_exclusions():
    """Failures and silent exclusions are told apart."""
    failed = Seen(
        greedy=False, choice=False, status="engine_error", why="out of memory"
    )
    unscored = Seen(
        greedy=True, choice=False, choice_status="excluded", why="no distractor"
    )
    seen = numbered(english=[SAID, failed, excluded(None, choice=False), unscored])
    outcomes = reduce_records(records("dense", seen))
    found = left_out(Inputs(outcomes))
    told = select(found).set_index(["probe", "status", "reason"])["n"].to_dict()
    assert told == {
        ("greedy", "engine_error", "out of memory"): 1,
        ("greedy", "excluded", NO_REASON): 1,
        ("choice", "engine_error", "out of memory"): 1,
        ("choice", "excluded", NO_REASON): 1,
        ("choice", "excluded", "no distractor"): 1,
    }
    row = only(tables(records("dense", seen))["accuracy"], probe="choice")
    few = "1 context is too few for an interval"
    assert (
        row["reason"]
        == f"1 excluded (no distractor); 1 excluded ({NO_REASON}); 1 failed (out of"
        f" memory); {few}"
    )


def test_means_over_languages_and_texts():
    """English: 8 of 8, then 4 of 8; Swahili: 2 of 2, then 0 of 2; Thai was asked of
    the dense model only."""
    english, swahili = (
        [f"{name}/{name[0]}{i}" for i in range(n)]
        for name, n in (("english", 8), ("swahili", 2))
    )
    dense = dict.fromkeys((*english, *swahili, "thai/t0"), SAID)
    pruned = {
        key: SAID if key in english[:4] else SILENT for key in (*english, *swahili)
    }
    row = only(
        pair(dense, pruned)["accuracy"], checkpoint="p", probe="greedy", language="mean"
    )
    has(
        row,
        accuracy=(0.5 + 0) / 2,
        dense_accuracy=1.0,
        drop=(0.5 + 1) / 2,
        reason="unweighted mean over 2 of 3 languages",
    )
    # Half of English's exact interval of 4 of 8, and as much again that Swahili's two
    # items leave open.
    english = binomtest(4, 8).proportion_ci(method="exact")
    assert (
        0
        < row["accuracy_low"]
        < english.low / 2
        < english.high / 2
        < row["accuracy_high"]
        < 1
    )
    assert row["drop_low"] < row["drop"] < row["drop_high"]
    dense = dict.fromkeys(("english/1", "swahili/1", "thai/1"), SAID)
    pruned = {**dense, "english/1": SILENT}
    parts = [records("dense", dense), records("p", pruned, base="dense")]
    for part in parts:
        choice = part["probe"] == "choice"
        words = ["a b", "c", "d", "e", "f", "g", "h", "i", "กขค", "ก", "ข", "ค"]
        part.loc[choice, "option_text"] = words
        sizes = (4, 2, 2, 2, 1, 1, 1, 1, 3, 1, 1, 4)
        part.loc[choice, "token_ids"] = pd.Series(
            [(1,) * n for n in sizes], part.index[choice]
        )
    found = tables(*parts)["fertility"]
    assert found.loc[found["checkpoint"] == "p", "language"].tolist() == [
        "mean",
        "mean",
        "english",
        "swahili",
        "thai",
    ]
    word = only(found, checkpoint="p", language="mean", unit="word")
    # English 10 tokens in 5 words, Swahili 4 in 4; open falls by 1 in English and by 0
    # in Swahili
    has(
        word,
        fertility=(2 + 1) / 2,
        tokens=14,
        units=9,
        open_drop=0.5,
        open_normalised_drop=0.5,
        choice_drop=0.0,
    )
    assert word["reason"].startswith(
        "unweighted mean over 2 of 2 languages with tokens per word;"
    )
    character = only(found, checkpoint="p", language="mean", unit="character")
    has(character, fertility=9 / 6, open_drop=0.0)
    parts = [
        records(name, {"text/0": Seen(window=(-nats * 10, 10)), "text/1": Seen(window=(-nats * 10, 10))},
                base=base, task=task)
        for name, base, task, nats in (
            ("dense", None, "en", 1.0), ("dense", None, "sw", 2.0),
            ("p", "dense", "en", 1.5), ("p", "dense", "sw", 3.5), ("p", "dense", "th", 4.0),
        )
    ]  # fmt: skip
    found = tables(*parts)["perplexity"]
    row = only(found, checkpoint="p", language="mean")
    has(
        row,
        task="mean of 3 texts",
        n=6,
        tokens=60,
        perplexity=math.exp((1.5 + 3.5 + 4.0) / 3),
    )
    # the base has not read th
    has(
        row,
        perplexity_ratio=math.exp((0.5 + 1.5) / 2),
        perplexity_low=None,
        perplexity_high=None,
    )
    assert "perplexity_ratio of 2 of 3 texts" in row["reason"]
    has(only(found, checkpoint="dense", language="mean"), perplexity=math.exp(1.5))
    assert only(found, checkpoint="p", task="th")["reason"].startswith(
        "base 'dense' was not measured on this text;"
    )
