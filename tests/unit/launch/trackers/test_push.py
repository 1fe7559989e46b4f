"""What may be pushed, and what its card says."""

import json
import re

import pandas as pd
import pytest
import yaml

from evaluator.checkpoints.files import digest_of_file
from evaluator.checkpoints.info import inspect_checkpoint
from launch.sweep.models import is_hub_id
from launch.trackers.hub import base_of, check_repository, fates_of, model_card, whole
from pruning.calibration import CalibrationManifest
from pruning.output.manifest import MANIFEST_NAME, RemovedParts, read_manifest, to_json
from tests.support.hub import MANIFEST, write_pruned
from tests.support.sweeps import refused

FATES = {"checkpoint": "wanda-2of4", "task": "xquad", "language": "all"}
COUNTS = {"kept": 5, "mc_only": 3, "produced_only": 1, "lost": 1}


@pytest.fixture
def pruned(tmp_path):
    return write_pruned(tmp_path / "pruned")


@pytest.fixture
def run(tmp_path, pruned):
    """A run that asked it."""
    (tmp_path / "run" / "tables").mkdir(parents=True)
    digest = inspect_checkpoint(pruned).weights_digest
    asked = [{"name": "wanda-2of4", "weights_digest": digest}, {"name": "other", "weights_digest": "0"}]
    (tmp_path / "run" / "run.json").write_text(json.dumps({"checkpoints": asked}))
    rows = [FATES | COUNTS, FATES | COUNTS | {"checkpoint": "other", "lost": 99}]
    pd.DataFrame(rows).to_csv(tmp_path / "run" / "tables" / "fates.csv", index=False)
    return tmp_path / "run"


def test_a_card_says_how_it_was_pruned_and_what_became_of_the_answers(pruned, run):
    card = model_card("org/mine-2of4", read_manifest(pruned), "org/mine@v1", fates_of(pruned, run))
    assert "base_model: org/mine\n" in card
    assert "| dense model | `org/mine@v1` |" in card
    assert "| pattern | `2:4` |" in card
    assert "| `xquad` | `all` | 10 | 5 | 3 | 1 | 1 |" in card
    assert "99" not in card
    assert "/models/mine" not in card


def test_a_card_of_a_smaller_model_says_what_went():
    removed = RemovedParts(unit="layers", of=12, gone=("3-5",))
    manifest = MANIFEST.model_copy(update={"method": "layers", "pattern": "layers", "removed": removed})
    card = model_card("org/mine-layers", manifest, None, [])
    assert "A language model with layers taken out." in card
    assert "of the weights in the layers' matrices" in card


def test_what_a_card_quotes_is_no_markup():
    hostile = "x` | <img src=x>\n---\n# [a](javascript:b) `\x1b]0;x\x07\u202e"
    calibration = CalibrationManifest(
        source=hostile, samples=1, sequence_length=1, tokens=1, cut=0, ids_sha256="0", files={}, passages=()
    )
    fields = dict.fromkeys(("method", "pattern", "allocation", "dtype"), hostile)
    manifest = MANIFEST.model_copy(update={**fields, "calibration": calibration})
    card = model_card("org/na__me__", manifest, None, [FATES | COUNTS | {"task": hostile, "language": hostile}])
    _, front, body = card.split("---\n", 2)
    assert yaml.safe_load(front)["tags"][0] == "pruned"
    outside = re.sub("`[^`\n]*`", "", body)
    assert "`" not in outside
    assert not re.search(r"[<>\[\]]|__|\x1b|\x07|\u202e", outside)
    assert not re.search(r"[\x1b\x07\u202e]", card)
    rows = [line for line in body.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {3, 8}  # no cell more than the columns
    assert "\n---" not in body


def test_a_checkpoint_is_whole_and_its_own(pruned):
    assert whole(pruned).files.keys() == {"config.json", "model.safetensors"}
    weights, elsewhere = pruned / "model.safetensors", pruned.parent / "elsewhere"
    weights.rename(elsewhere)
    assert "is missing" in refused(whole, pruned)
    weights.symlink_to(elsewhere)
    assert "is a link" in refused(whole, pruned)
    weights.unlink()
    weights.write_bytes(elsewhere.read_bytes() + b" ")
    assert "model.safetensors: its sha256 is not the manifest's" in refused(whole, pruned)
    (pruned / MANIFEST_NAME).rename(elsewhere)
    assert "is no pruned checkpoint" in refused(whole, pruned)
    (pruned / MANIFEST_NAME).symlink_to(elsewhere)
    assert "prune_manifest.json: is a link" in refused(whole, pruned)


def test_a_folder_that_leads_elsewhere_is_not_published(pruned):
    secret = pruned.parent / "elsewhere" / "secret"
    secret.parent.mkdir()
    secret.write_text("x")
    (pruned / "templates").symlink_to(secret.parent)
    listed = MANIFEST.model_copy(update={"files": {"templates/secret": digest_of_file(secret)}})
    (pruned / MANIFEST_NAME).write_text(to_json(listed))
    assert "in a folder that is one" in refused(whole, pruned)


@pytest.mark.parametrize(
    ("source", "base"),
    [
        (f"/c/hub/models--org--na.me/snapshots/{'0a' * 20}", f"org/na.me@{'0a' * 20}"),
        ("/models/mine", None),
        ("/models--a/snapshots/x", None),
        (None, None),
    ],
)
def test_the_hubs_cache_tells_the_dense_models_id(source, base):
    assert base_of(MANIFEST.model_copy(update={"config": {"source": source}})) == base


@pytest.mark.parametrize(
    "table",
    [
        "",
        "checkpoint,task\nwanda-2of4,x\n",
        "checkpoint,task,language,kept,mc_only,produced_only,lost\nwanda-2of4,x,all,,,,\n",
        "checkpoint,task,language,kept,mc_only,produced_only,lost\nwanda-2of4,x,all,1,2,3,\n",
        "checkpoint,task,language,kept,mc_only,produced_only,lost\nwanda-2of4,x,all,1,2,3,| x\n",
        "checkpoint,task,language,kept,mc_only,produced_only,lost\nwanda-2of4,x,all,1,2,3,inf\n",
        None,
    ],
)
def test_a_run_without_fates_is_refused(pruned, run, table):
    file = run / "tables" / "fates.csv"
    file.unlink() if table is None else file.write_text(table)
    assert "fates.csv" in refused(fates_of, pruned, run)


def test_counts_beside_empty_cells_are_counts(pruned, run):
    rows = [FATES | COUNTS, FATES | dict.fromkeys(COUNTS)]
    pd.DataFrame(rows).to_csv(run / "tables" / "fates.csv", index=False)
    assert fates_of(pruned, run) == [FATES | COUNTS]


@pytest.mark.parametrize(
    "asked", ["x", [], [1, {}, {"weights_digest": None}], [{"name": ["a"], "weights_digest": "0"}]]
)
def test_a_run_json_of_other_shapes_names_nothing(pruned, run, asked):
    (run / "run.json").write_text(json.dumps({"checkpoints": asked}))
    assert "has no finished checkpoint with the weights" in refused(fates_of, pruned, run)


@pytest.mark.parametrize("name", ["name", "a/b/c", "../x", "a/../b", "a b/c", "", "org/name@main", "\u00e4/b", "a/b\n"])
def test_a_name_that_is_no_repository_is_refused_before_the_hub_is_asked(name):
    assert "ORG/NAME" in refused(check_repository, name)


@pytest.mark.parametrize("value", ["org/name@../../x", "org/name@a..b", "bundled", "./a/b", "a", "/a/b"])
def test_what_is_no_hub_id_never_reaches_the_hub(value):
    assert not is_hub_id(value)
