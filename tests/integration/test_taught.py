"""A run on the taught models finds what was planted in them: rates of thoughts,
inflation and fates."""

import json
import signal

import pandas as pd
import pytest

from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.tasks import load_task
from tests.support.engines import needs_vllm
from tests.support.kills import ENGINE, family, parts, when
from tests.support.runs import assert_alike, finish, records, resurface_apart, start
from tests.taught.__main__ import check, make
from tests.taught.plan import planted, response

pytestmark = [pytest.mark.long, *needs_vllm]

BUDGET, ITEMS = 160, 200
POOL = {
    item.item_id: item
    for item in load_task("gazetteer", ("english",), "gazetteer").pools["english"]
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("taught")
    for variant in ("base", "loops"):
        make(folder / variant, variant)
    finish(*evaluation(folder), "--out", folder / "run")
    return folder / "run"


def evaluation(folder):
    return (
        "eval", folder / "base", folder / "loops", "--base", folder / "base", "--task", "gazetteer", "--languages",
        "english", "--items", ITEMS, "--chat", "--thinking", BUDGET,
        "--probes", "greedy,choice,rank",
    )  # fmt: skip


def test_a_made_model_follows_the_plan(run):
    assert (
        check(run.parent / "loops", "loops", list(POOL.values())[:100])["agreement"]
        >= 0.95
    )


def test_tables_show_planted_thoughts(run):
    """Rates, inflation and fates are the planted ones."""
    found = records(run)
    asked = found[found["probe"] == "greedy"]
    plan = pd.Series({name: planted(POOL[name]) for name in asked["item_id"].unique()})
    tokenizer = load_tokenizer(run.parent / "base")

    def thought(item_id, fate):
        text = response(POOL[item_id], fate).partition("</think>")[0]
        return BUDGET if fate == "loops" else len(tokenizer.encode(text))

    inflation = sum(thought(*each) for each in plan.items()) / sum(
        thought(name, "usual") for name in plan.index
    )
    table = pd.read_csv(run / "tables" / "thinking.csv")
    [row] = table[
        (table["checkpoint"] == "loops") & (table["language"] == "all")
    ].to_dict("records")
    said = asked.pivot(index="item_id", columns="checkpoint", values="contains").astype(
        bool
    )
    for name, planned in (
        ("cut", (plan == "loops").mean()),
        ("loops", (plan == "loops").mean()),
        ("ratio", inflation),
    ):
        assert row[f"{name}_low"] <= planned <= row[f"{name}_high"], (
            name,
            planned,
            row,
        )
    faulty = plan.isin(["loops", "wrong"])
    assert not said["loops"][faulty].any()
    assert row["mc_only_rate"] + row["lost_rate"] >= faulty[said["base"]].mean()


def test_kills_amid_thoughts_lose_nothing(run):
    killed, log = run.with_name("killed"), run.with_name("killed.log")
    driver = start(*evaluation(run.parent), "--out", killed, log=log)
    when(driver, lambda: parts(killed), log)
    for engine in family(driver, ENGINE):
        engine.kill()
    seen = len(parts(killed))
    when(driver, lambda: len(parts(killed)) > seen, log)
    driver.kill()
    assert driver.wait() == -signal.SIGKILL
    kept = {part: part.read_bytes() for part in parts(killed)}
    assert len(records(killed)) < len(records(run))
    finish(*evaluation(run.parent), "--out", killed)
    assert {part: part.read_bytes() for part in kept} == kept
    assert_alike(records(killed), records(run))


def test_thinking_pass_answers_all_items(run):
    asked = (
        "--thinking",
        20,
        "--items",
        14,
        "--rounds",
        1,
        "--engine-args",
        '{"max_num_seqs": 4}',
    )
    told = json.loads(
        resurface_apart(
            "bench", "pass", "--model", run.parent / "loops", *asked
        ).stdout.splitlines()[-1]
    )
    assert told["agreement"] == "answers of the same items"
