"""Table `screening`, and how other tables name a checkpoint that the gate decided
early."""

from dataclasses import asdict, replace

import pandas as pd

from evaluator.deciding.policy import Policy
from evaluator.deciding.verdict_text import document
from evaluator.deciding.verdicts import judge
from evaluator.metrics import Inputs, reduce_records
from evaluator.metrics.headline import screened_sentence
from evaluator.report.results import compute
from evaluator.store.run_json import Screened, screened_of
from tests.support.records import Seen, records
from tests.support.tables import Tables, has, only, select

EARLY = "decided early: evaluated on 4 of 8 items"
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


def inputs(*parts: pd.DataFrame, screened: object = (OUT,)) -> Inputs:
    outcomes = pd.concat([reduce_records(part) for part in parts], ignore_index=True)
    return Inputs(outcomes, run={"screening": [asdict(each) for each in screened]})


def of_task(*screened: Screened) -> Inputs:
    right = {f"english/{number}": Seen(greedy=True) for number in range(8)}
    bad = {f"english/{number}": Seen(greedy=number == 0) for number in range(4)}
    dense, good = records("dense", right), records("good", right, base="dense")
    return inputs(dense, good, records("bad", bad, base="dense"), screened=screened)


def test_screening_table_and_notes():
    frame = Tables(of_task(KEPT, OUT))["screening"]
    has(frame, checkpoint=["bad", "good"], decision=["BLOCK", "WARN"], asked=[4, 8])
    has(frame, items=[8, 8], look=[1, 3], looks=[3, 3], reason=[EARLY, None])
    assert frame["pass_level"].between(0.05 / 3, 0.05).all()
    assert frame["block_level"].between(0.01 / 3, 0.01).all()
    broken = {**asdict(OUT), "asked": "many"}
    run = {"screening": [asdict(OUT), {"task": "t"}, broken, 3]}
    assert screened_of(run) == [OUT]
    found = Tables(of_task(OUT))
    bad = only(found["accuracy"], checkpoint="bad", probe="greedy")
    has(bad, n=4, n_paired=4, accuracy=0.25, drop=0.75, reason=EARLY)
    good = only(found["accuracy"], checkpoint="good", probe="greedy")
    has(good, reason=None)
    pairs = found["overlap"].query("other == 'bad'")["reason"]
    assert pairs.str.contains(f"bad: {EARLY}").all()
    assert len(pairs)


def answers(task: str, *, few: bool) -> list[pd.DataFrame]:
    """Of two languages: "good" is better than "fair", but not on the anchors, of
    which "bad" has none right."""
    items = []
    for language in ("english", "korean"):
        items += [f"{language}/{number}" for number in range(8)]
    anchors = [item for item in items if item[-1] in "01"]
    good = [item for item in items if item[-1] != "0"]
    right = {"dense": items, "fair": anchors, "good": good, "bad": []}
    parts = []
    for name, hits in right.items():
        asked = anchors if few and name == "bad" else items
        seen = {item: Seen(greedy=item in hits) for item in asked}
        base = None if name == "dense" else "dense"
        parts.append(records(name, seen, base=base, task=task))
    return parts


def test_election_without_early_decided():
    """What is out takes no items from an election of the others."""
    parts = [*answers("t", few=True), *answers("u", few=False)]
    vote = Tables(inputs(*parts))["vote"]
    for task, n in (("t", 16), ("all", 32)):
        rows = vote[(vote["task"] == task) & (vote["probe"] == "greedy")]
        rows = rows.set_index("checkpoint").loc[["dense", "good", "fair", "bad"]]
        has(rows, n=[n, n, n, 0], borda_place=[1, 2, 3, None])
        assert rows.loc["bad", "reason"].endswith("not ranked: decided early on t")
    has(only(vote, task="u", checkpoint="bad", probe="greedy"), n=16)


def test_gate_and_sentence_name_early_decided():
    told = document(judge(of_task(OUT), Policy()), Policy())
    bad, good = told["checkpoints"]
    assert (bad["decided_early"], good["decided_early"]) == (True, False)
    assert bad["why"].endswith(f"; {EARLY}")
    assert told["words"].count(EARLY) == 1
    said = "Decided early, on some of the items: bad (4 of 8)."
    assert compute(of_task(OUT)).sentence.endswith(said)
    assert "Decided" not in compute(of_task()).sentence
    many = []
    for at, name in enumerate("abcdefgh"):
        many.append({"task": "tu"[at % 2], "checkpoint": name, "asked": 4, "items": 8})
    sentence = screened_sentence(many)
    said = "Decided early, on some of the items: a on t (4 of 8), b on u (4 of 8), "
    assert sentence.startswith(said)
    assert sentence.endswith("e on t (4 of 8) and 3 more.")


def test_prompts_of_early_decided():
    """All prompts use the items of the prompt that was decided early, and say so."""
    parts = [*answers("t", few=False), *answers("t+terse", few=True)]
    found = Tables(inputs(*parts, screened=[replace(OUT, task="t+terse")]))
    told = f"bad, terse: {EARLY}"
    rows = select(found["prompts"], checkpoint="bad")
    has(rows, n=[4, 4, 4])
    assert rows["reason"].str.contains(told).all()
    order = found["prompt_order"]
    of_bad = (order["checkpoint"] == "bad") | (order["other"] == "bad")
    told_of = order["reason"].fillna("").str.contains("decided")
    assert (told_of == of_bad).all()
    assert of_bad.sum() == 9
