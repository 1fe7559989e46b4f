"""The paper's numbers stand beside ours where the setting is the paper's, and
nowhere else."""

import copy

import pytest

from evaluator.metrics.published import paper, published
from tests.support.records import Seen, records
from tests.support.tables import assert_has, only, tables

TASK = {"task": "tydiqa", "languages": None, "items": 200, "chat": False}
RUN = {
    "config": {"models": {"dense": "Qwen/Qwen3-8B"}, "tasks": [TASK]},
    "checkpoints": [{"name": "dense", "path": "Qwen/Qwen3-8B"}],
}


@pytest.fixture(scope="module")
def found():
    broad = {"beams": [True], "samples": [True]}
    known = Seen(greedy=True, choice=True, rank=1, margin=0.0, **broad)
    silent = Seen(greedy=False, choice=True, rank=4, margin=-1.0, **broad)
    dense = {}
    for language in ("english", "swahili"):
        dense |= {f"{language}/{i}": known for i in range(4)}
    parts = [records("dense", dense, task="tydiqa")]
    for name, source in (("wanda-0.5", "c4"), ("mine", "text:x")):
        own = {"base": "dense", "task": "tydiqa", "calibration": source}
        parts.append(records(name, {**dense, "swahili/1": silent}, **own))
    return tables(*parts)


def test_paper_numbers_have_cells(found):
    made = published(found.rows, RUN)
    assert set(made["checkpoint"]) == {"dense", "wanda-0.5"}
    row = only(made, table="fates", checkpoint="wanda-0.5", language="swahili")
    assert_has(
        row, paper=0.39, ours=0.25, n=4, source="arXiv:2606.17609v1, section 3.1"
    )
    assert row["ours_low"] < 0.25 < row["ours_high"]
    assert_has(only(made, table="rank", cell="mc_only, own"), paper=3.5, ours=4.0)
    accuracy = only(made, table="accuracy", checkpoint="dense", cell="open, greedy")
    assert_has(accuracy, paper=0.469)
    assert_has(only(made, table="pr_gap"), paper=0.14)
    for entry in paper()["values"]:
        assert {entry["column"], *entry["where"]} <= set(found[entry["table"]]), entry
        assert entry["setting"] in paper()["settings"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("models", {"dense": "Qwen/Qwen3-8B-Base"}),
        ("tasks", [TASK | {"items": 40}]),
        ("tasks", [TASK | {"chat": True}]),
        ("tasks", [TASK | {"task": "xquad"}]),
    ],
)
def test_another_setting_is_not_compared(found, field, value):
    run = {"config": RUN["config"] | {field: value}}
    assert published(found.rows, run).empty


def test_other_settings_are_not_mixed(found):
    """Other distractors, parts of the languages and included sweeps are not mixed."""
    whole = len(published(found.rows, RUN))
    for options, count in (("alike", 0), ("any", whole)):
        settings = {"dense": {"tydiqa": {"options": options}}}
        run = RUN | {"identity": {"task_settings": settings}}
        assert len(published(found.rows, run)) == count
    run = copy.deepcopy(RUN)
    run["config"]["tasks"][0]["languages"] = ["english", "swahili"]
    assert set(published(found.rows, run)["language"]) == {"english", "swahili"}
    sweep = {"models": {}, "tasks": [], "include": [RUN["config"]]}
    assert len(published(found.rows, {"config": sweep})) == whole


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ({"sparsity": 0.6}, {"dense"}),
        ({"method": "sparsegpt"}, {"dense"}),
        ({"pattern": "2:4"}, {"dense"}),
        ({"calibration": "wikipedia:en"}, {"dense"}),
        ({"sparsity": 0.4977, "requested_sparsity": 0.6}, {"dense"}),
        # what was requested is the paper's
        ({"sparsity": 0.4977, "requested_sparsity": 0.5}, {"dense", "wanda-0.5"}),
    ],
)
def test_only_paper_settings_are_published(found, setting, names):
    other = {}
    for name, rows in found.rows.items():
        other[name] = [row | setting for row in rows]
    assert set(published(other, RUN)["checkpoint"]) == names
