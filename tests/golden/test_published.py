"""The paper's numbers stand beside ours where the setting is the paper's, and
nowhere else."""

import copy

import pytest

from evaluator.metrics import TABLES
from evaluator.metrics.published import model_names, paper, published
from tests.support.records import Seen, records
from tests.support.tables import has, only, tables

TASKS = [{"task": "tydiqa", "languages": None, "items": 200, "chat": False}]
RUN = {
    "config": {"models": {"dense": "Qwen/Qwen3-8B"}, "tasks": TASKS},
    "checkpoints": [{"name": "dense", "path": "Qwen/Qwen3-8B"}],
}


@pytest.fixture(scope="module")
def found():
    known = Seen(
        greedy=True, choice=True, rank=1, margin=0.0, beams=[True], samples=[True]
    )
    silent = Seen(
        greedy=False, choice=True, rank=4, margin=-1.0, beams=[True], samples=[False]
    )
    dense = {
        f"{language}/{i}": known
        for language in ("english", "swahili")
        for i in range(4)
    }
    return tables(
        records("dense", dense, task="tydiqa"),
        records(
            "wanda-0.5",
            {**dense, "swahili/1": silent},
            base="dense",
            task="tydiqa",
            calibration="c4",
        ),
        records(
            "wanda-0.5-mine",
            {**dense, "swahili/1": silent},
            base="dense",
            task="tydiqa",
            calibration="text:x",
        ),
    )


def test_paper_numbers_have_cells(found):
    """The paper's numbers stand beside ours and each has a cell."""
    made = published(found.rows, RUN)
    assert set(made["checkpoint"]) == {"dense", "wanda-0.5"}
    row = only(made, table="fates", checkpoint="wanda-0.5", language="swahili")
    has(row, paper=0.39, ours=0.25, n=4)
    assert row["ours_low"] < 0.25 < row["ours_high"]
    assert row["source"] == "arXiv:2606.17609v1, section 3.1"
    row = only(made, table="rank", cell="mc_only, own")
    has(row, paper=3.5, ours=4.0)
    assert (
        only(made, table="accuracy", checkpoint="dense", cell="open, greedy")["paper"]
        == 0.469
    )
    assert only(made, table="pr_gap")["paper"] == 0.14
    for entry in paper()["values"]:
        frame = found[entry["table"]]
        assert entry["table"] in TABLES
        assert {entry["column"], *entry["where"]} <= set(frame), entry
        assert entry["setting"] in paper()["settings"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("models", {"dense": "Qwen/Qwen3-8B-Base"}),
        ("models", {"dense": "Qwen/Qwen3-4B"}),
        ("tasks", [{"task": "tydiqa", "languages": None, "items": 40, "chat": False}]),
        ("tasks", [{"task": "tydiqa", "languages": None, "items": 200, "chat": True}]),
        ("tasks", [{"task": "xquad", "languages": None, "items": 200, "chat": False}]),
    ],
)
def test_another_setting_is_not_compared(found, field, value):
    run = copy.deepcopy(RUN)
    run["config"][field] = value
    run["checkpoints"] = []
    assert published(found.rows, run).empty
    assert published(found.rows, {}).empty


def test_other_settings_are_not_mixed(found):
    """Other distractors parts of the languages and included sweeps are not mixed."""
    for options, count in (("alike", 0), ("any", len(published(found.rows, RUN)))):
        run = RUN | {
            "identity": {"task_settings": {"dense": {"tydiqa": {"options": options}}}}
        }
        assert len(published(found.rows, run)) == count
    run = copy.deepcopy(RUN)
    run["config"]["tasks"][0]["languages"] = ["english", "swahili"]
    made = published(found.rows, run)
    assert set(made["language"]) == {"english", "swahili"}
    chat = {
        "models": {"phi": "microsoft/Phi-3-mini-4k-instruct"},
        "tasks": [{"task": "tydiqa", "chat": True}],
    }
    run = {
        "config": {
            "models": {},
            "tasks": [],
            "include": [chat, {**RUN["config"], "include": []}],
        }
    }
    assert len(published(found.rows, run)) == len(published(found.rows, RUN)) > 10
    phi = {}
    for name, rows in found.rows.items():
        phi[name] = [row | ({"base": "phi"} if row.get("base") else {}) for row in rows]
    chat["tasks"][0] |= {"items": 200, "languages": None}
    row = only(published(phi, run), table="fates")
    has(row, paper=0.496, checkpoint="wanda-0.5")


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
    """Only the paper's method and sparsity are published."""
    other = {}
    for name, rows in found.rows.items():
        other[name] = [row | setting for row in rows]
    assert set(published(other, RUN)["checkpoint"]) == names


CACHED = "/cache/hub/models--Qwen--Qwen3-8B/snapshots/b968826d9c46"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Qwen/Qwen3-8B", "Qwen3-8B"),
        ("/models/qwen3-8b/", "qwen3-8b"),
        (CACHED, "Qwen3-8B"),
    ],
)
def test_model_names(path, name):
    """A model is named by its hub id directory or cache folder."""
    run = {"config": {"models": {"base": path}}}
    assert name in model_names(run, "base")
    assert "base" in model_names(run, "base")
    assert model_names(run, "other") == set()
