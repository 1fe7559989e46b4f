"""Folders of `save_to_disk`: the same items and passages as other local forms, and
one line for what is wrong."""

import json
import os

import pytest
from datasets import Dataset, DatasetDict

from evaluator.core.saved_data import saved_texts
from evaluator.tasks import Source, load_task
from pruning.calibration import load, take_passages
from pruning.config import CalibrationConfig
from tests.support import pruning as tiny
from tests.support.sweeps import refused

MINE = Source.model_validate(
    {"language": "english", "fields": {"id": "n", "question": "q", "answers": "a"}}
)
SQUAD = {
    "context": "c",
    "question": "q",
    "answers": {"text": ["x"], "answer_start": [0]},
}


def rows(*ids, **more):
    return Dataset.from_list(
        [{"n": each, "q": f"q{each}", "a": "x", **more} for each in ids]
    )


@pytest.fixture
def saved(tmp_path):
    rows(1, 2).save_to_disk(tmp_path / "one")
    splits = {
        name: rows(name, text=f"w1 {name}") for name in ("train", "validation", "mine")
    }
    DatasetDict(splits).save_to_disk(tmp_path / "splits")
    return tmp_path


def test_saved_data_sets_and_splits(saved):
    """Any data set its splits and running text for calibration."""
    (saved / "same.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows(1, 2))
    )
    pools = [
        load_task(f"hf:{saved / name}", None, said=MINE).pools["english"]
        for name in ("one", "same.jsonl")
    ]
    one, other = ([(item.question, item.answers) for item in pool] for pool in pools)
    assert one == other == [("q1", ("x",)), ("q2", ("x",))]
    for split, found in ((None, "validation"), ("mine", "mine")):
        data = load_task(
            f"hf:{saved / 'splits'}",
            None,
            said=MINE.model_copy(update={"split": split}),
        )
        assert [item.item_id for item in data.pools["english"]] == [found]
    told = refused(
        load_task,
        f"hf:{saved / 'splits'}",
        None,
        said=MINE.model_copy(update={"split": "dev"}),
    )
    assert "there is no split 'dev' (known: train, validation, mine)" in told
    assert load_task(f"text:{saved / 'splits'}", None).text == "w1 validation"
    config = CalibrationConfig(
        source=f"text:{saved / 'splits'}", samples=1, sequence_length=8
    )
    found = load(config, tiny.tokenizer(), 0, {}).manifest
    assert [(passage.origin, passage.row) for passage in found.passages] == [
        (str(saved / "splits"), 0)
    ]
    # so that a change is seen
    assert str(saved / "splits" / "train" / "state.json") in found.files
    part = CalibrationConfig(source=f"jsonl:{saved / 'splits' / 'mine'}", samples=1)
    assert take_passages(part, 0, {})[0].text == "w1 mine"


def test_saved_squad_folders(tmp_path):
    """Squads folders name the language and rows have the fields of jsonl."""
    for name in ("en", "xquad.de"):
        DatasetDict(validation=Dataset.from_list([{"id": "1", **SQUAD}])).save_to_disk(
            tmp_path / "xquad" / name
        )
    assert list(load_task(f"xquad:{tmp_path / 'xquad'}", None).pools) == ["de", "en"]
    Dataset.from_list([{"id": "thai-1", **SQUAD}]).save_to_disk(tmp_path / "tydiqa")
    assert [
        item.answers
        for item in load_task(f"tydiqa:{tmp_path / 'tydiqa'}", None).pools["thai"]
    ] == [("x",)]
    row = {"id": "1", "language": "thai", "context": "", "question": "q"}
    mine = Dataset.from_list([row | {"answers": ["x"], "options": None}])
    mine.save_to_disk(tmp_path / "mine")
    (item,) = load_task(f"jsonl:{tmp_path / 'mine'}", None).pools["thai"]
    assert item.item_id == "1"
    assert "no folder of save_to_disk" in refused(load_task, f"jsonl:{tmp_path}", None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda folder: next(folder.glob("*.arrow")).write_bytes(b"x"),
            "cannot be read as a folder of save_to_disk",
        ),
        (lambda folder: os.mkfifo(folder / "more.arrow"), "more.arrow: is a pipe"),
        (
            lambda folder: _renamed(folder / "state.json"),
            "field 'filename' is '../x.arrow', which is not in",
        ),
        (
            lambda folder: rows(1, text=None).save_to_disk(folder),
            "row 0 (the first is 0): field 'text' is None, not a text",
        ),
    ],
)
def test_what_is_wrong_is_one_line(change, said, tmp_path):
    rows(1, text="x").save_to_disk(tmp_path / "one")
    change(tmp_path / "one")
    assert said in refused(saved_texts, tmp_path / "one")
    parted = DatasetDict(a=rows(1, text="x"), b=rows(2, text="x"))
    parted.save_to_disk(tmp_path / "two")
    assert f"name one of its splits: {tmp_path / 'two' / 'a'}" in refused(
        saved_texts, tmp_path / "two", "train"
    )


def _renamed(state):
    document = json.loads(state.read_text())
    document["_data_files"][0]["filename"] = "../x.arrow"
    state.write_text(json.dumps(document))
