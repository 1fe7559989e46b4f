"""Table `screening`, and how other tables name a checkpoint that the gate decided
early."""

from dataclasses import asdict, replace

import pandas as pd

from evaluator.deciding.thresholds import Thresholds
from evaluator.deciding.verdict_text import document
from evaluator.deciding.verdicts import judge
from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.metrics.headline import screened_sentence
from evaluator.report.results import compute
from evaluator.store.run_json import Screened, screened_of
from tests.support.records import Seen, records
from tests.support.tables import has, only, select

OUT = Screened(
    task="t",
    checkpoint="bad",
    base="dense",
    decision="BLOCK",
    asked=4,
    items=8,
    looks=(4, 5, 8),
    passed=(),
)
KEPT = replace(OUT, checkpoint="good", decision="WARN", asked=8)


def inputs(*rows: object) -> Inputs:
    right = {f"english/{number}": Seen(greedy=True) for number in range(8)}
    bad = {f"english/{number}": Seen(greedy=number == 0) for number in range(4)}
    parts = [
        records("dense", right),
        records("good", right, base="dense"),
        records("bad", bad, base="dense"),
    ]
    outcomes = pd.concat([reduce_records(part) for part in parts], ignore_index=True)
    return Inputs(outcomes, run={"screening": list(rows)})


def test_screening_table_and_notes():
    """The table and every row of what is out say so with their levels and anchors."""
    frame = TABLES["screening"].fill(inputs(asdict(KEPT), asdict(OUT))).frame
    assert frame["checkpoint"].tolist() == ["bad", "good"]
    bad = only(frame, checkpoint="bad")
    has(bad, decision="BLOCK", asked=4, items=8, look=1, looks=3)
    assert 0.05 / 3 < bad["pass_level"] < 0.05
    assert 0.01 / 3 < bad["block_level"] < 0.01
    assert bad["reason"] == "decided early: evaluated on 4 of 8 items"
    good = only(frame, checkpoint="good")
    has(good, decision="WARN", asked=8, look=3, reason=None)
    run = {
        "screening": [asdict(OUT), {"task": "t"}, {**asdict(OUT), "asked": "many"}, 3]
    }
    assert screened_of(run) == [OUT]
    assert screened_of({"screening": "no"}) == []
    accuracy = TABLES["accuracy"].fill(inputs(asdict(OUT))).frame
    bad = only(accuracy, checkpoint="bad", probe="greedy")
    has(
        bad,
        n=4,
        n_paired=4,
        accuracy=0.25,
        drop=0.75,
        reason="decided early: evaluated on 4 of 8 items",
    )
    assert pd.isna(only(accuracy, checkpoint="good", probe="greedy")["reason"])
    overlap = TABLES["overlap"].fill(inputs(asdict(OUT))).frame
    rows = overlap[overlap["other"] == "bad"]
    assert (
        rows["reason"]
        .str.contains("bad: decided early: evaluated on 4 of 8 items")
        .all()
    )
    assert len(rows)


def outcomes_of(task: str, *, few: bool) -> list[pd.DataFrame]:
    """Of two languages: "good" is better than "fair", but not on the anchors, of
    which "bad" has none right."""
    items = [
        f"{language}/{number}"
        for language in ("english", "korean")
        for number in range(8)
    ]
    anchors = [item for item in items if item[-1] in "01"]
    right = {
        "dense": items,
        "fair": anchors,
        "good": [item for item in items if item[-1] != "0"],
        "bad": [],
    }
    seen = {
        name: {item: Seen(greedy=item in hits) for item in items}
        for name, hits in right.items()
    }
    if few:
        seen["bad"] = {item: seen["bad"][item] for item in anchors}
    parts = [
        records(name, each, base="dense" if name != "dense" else None, task=task)
        for name, each in seen.items()
    ]
    return [reduce_records(part) for part in parts]


def test_election_without_early_decided():
    """What is out takes no items from an election of the others."""
    of_two = [*outcomes_of("t", few=True), *outcomes_of("u", few=False)]
    found = Inputs(
        pd.concat(of_two, ignore_index=True), run={"screening": [asdict(OUT)]}
    )
    vote = TABLES["vote"].fill(found).frame
    for task, n in (("t", 16), ("all", 32)):
        rows = vote[(vote["task"] == task) & (vote["probe"] == "greedy")].set_index(
            "checkpoint"
        )
        assert rows["n"].to_dict() == {"dense": n, "fair": n, "good": n, "bad": 0}
        assert rows.loc["good", "borda_place"] < rows.loc["fair", "borda_place"]
        assert rows.loc["bad", "reason"].endswith("not ranked: decided early on t")
    assert only(vote, task="u", checkpoint="bad", probe="greedy")["n"] == 16


def test_gate_and_sentence_name_early_decided():
    """The gate and the sentence under the first table name what is out."""
    said = document(judge(inputs(asdict(OUT)), Thresholds()), Thresholds())
    bad, good = said["checkpoints"]
    assert (good["checkpoint"], good["decided_early"], bad["decided_early"]) == (
        "good",
        False,
        True,
    )
    assert bad["why"].endswith("; decided early: evaluated on 4 of 8 items")
    assert "bad: " in said["words"]
    assert said["words"].count("decided early: evaluated on 4 of 8 items") == 1
    said = "Decided early, on some of the items: bad (4 of 8)."
    assert compute(inputs(asdict(OUT)), {}).sentence.endswith(said)
    assert "Decided" not in compute(inputs(), {}).sentence
    many = [
        {"task": "tu"[at % 2], "checkpoint": name, "asked": 4, "items": 8}
        for at, name in enumerate("abcdefgh")
    ]
    told = screened_sentence(many)
    assert told.startswith(
        "Decided early, on some of the items: a on t (4 of 8), b on u (4 of 8), "
    )
    assert told.endswith("e on t (4 of 8) and 3 more.")


def test_prompts_on_anchors_say_so():
    """Prompts are compared on the anchors where it is out under one of them and say so."""
    of_two = [*outcomes_of("t", few=False), *outcomes_of("t+terse", few=True)]
    out = replace(OUT, task="t+terse")
    found = Inputs(
        pd.concat(of_two, ignore_index=True), run={"screening": [asdict(out)]}
    )
    told = "bad, terse: decided early: evaluated on 4 of 8 items"
    prompts = TABLES["prompts"].fill(found).frame
    rows = select(prompts, checkpoint="bad")
    assert rows["n"].tolist() == [4, 4, 4]
    assert rows["reason"].str.contains(told).all()
    assert (
        not prompts[prompts["checkpoint"] == "good"]["reason"]
        .fillna("")
        .str.contains("decided")
        .any()
    )
    order = TABLES["prompt_order"].fill(found).frame
    with_it = (order["checkpoint"] == "bad") | (order["other"] == "bad")
    assert order[with_it]["reason"].str.contains(told).all()
    assert not order[~with_it]["reason"].fillna("").str.contains("decided").any()
    assert with_it.sum() == 9
