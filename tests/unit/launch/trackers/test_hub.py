"""What may be pushed, what its card says, and a checkpoint that goes to a hub on the
loopback and back."""

import json
import re

import huggingface_hub
import pandas as pd
import pytest
import yaml
from huggingface_hub import constants

from evaluator.checkpoints.files import digest_of_file
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.manifests import (
    CalibrationManifest,
    PruneManifest,
    RemovedParts,
    read_manifest,
    to_json,
)
from launch.commands.prune import prune
from launch.sweep.models import is_hub_id, resolve_model
from launch.trackers.hub import base_of, check_repository, fates_of, model_card, whole
from tests.support.checkpoint_files import MANIFEST
from tests.support.hub import TOKEN, hub_on_loopback, write_pruned
from tests.support.models import save_tiny_model
from tests.support.sweeps import refused

FATES = {"checkpoint": "wanda-2of4", "task": "xquad", "language": "all"}
COUNTS = {"kept": 5, "mc_only": 3, "produced_only": 1, "lost": 1}


@pytest.fixture
def pruned(tmp_path):
    return write_pruned(tmp_path / "pruned")


@pytest.fixture
def run(tmp_path, pruned):
    (tmp_path / "run" / "tables").mkdir(parents=True)
    digest = inspect_checkpoint(pruned).weights_digest
    asked = [
        {"name": "wanda-2of4", "weights_digest": digest},
        {"name": "other", "weights_digest": "0"},
        {"name": "other", "weights_digest": digest, "architecture": "another"},
    ]
    (tmp_path / "run" / "run.json").write_text(json.dumps({"checkpoints": asked}))
    rows = [FATES | COUNTS, FATES | COUNTS | {"checkpoint": "other", "lost": 99}]
    pd.DataFrame(rows).to_csv(tmp_path / "run" / "tables" / "fates.csv", index=False)
    return tmp_path / "run"


def test_card_tells_settings_and_fates(pruned, run):
    card = model_card(
        "org/mine-2of4",
        read_manifest(pruned, PruneManifest),
        "org/mine@v1",
        fates_of(pruned, run),
    )
    assert "base_model: org/mine\n" in card
    assert "| dense model | `org/mine@v1` |" in card
    assert "| pattern | `2:4` |" in card
    assert "| `xquad` | `all` | 10 | 5 | 3 | 1 | 1 |" in card
    assert "99" not in card
    assert "/models/mine" not in card
    removed = RemovedParts(unit="layers", of=12, gone=("3-5",))
    manifest = MANIFEST.model_copy(
        update={"method": "layers", "pattern": "layers", "removed": removed}
    )
    card = model_card("org/mine-layers", manifest, None, [])
    assert "A language model with layers taken out." in card
    assert "of the weights in the layers' matrices" in card
    rows = [FATES | COUNTS, FATES | dict.fromkeys(COUNTS)]
    pd.DataFrame(rows).to_csv(run / "tables" / "fates.csv", index=False)
    assert fates_of(pruned, run) == [FATES | COUNTS]


def test_card_quotes_no_markup():
    hostile = "x` | <img src=x>\n---\n# [a](javascript:b) `\x1b]0;x\x07\u202e"
    calibration = CalibrationManifest(
        source=hostile,
        samples=1,
        sequence_length=1,
        tokens=1,
        cut=0,
        ids_sha256="0",
        files={},
        passages=(),
    )
    fields = dict.fromkeys(("method", "pattern", "allocation", "dtype"), hostile)
    manifest = MANIFEST.model_copy(update={**fields, "calibration": calibration})
    card = model_card(
        "org/na__me__",
        manifest,
        None,
        [FATES | COUNTS | {"task": hostile, "language": hostile}],
    )
    _, front, body = card.split("---\n", 2)
    assert yaml.safe_load(front)["tags"][0] == "pruned"
    outside = re.sub("`[^`\n]*`", "", body)
    assert "`" not in outside
    assert not re.search(r"[<>\[\]]|__|\x1b|\x07|\u202e", outside)
    assert not re.search(r"[\x1b\x07\u202e]", card)
    rows = [line for line in body.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {3, 8}  # no cell more than the columns
    assert "\n---" not in body


def test_whole_checkpoint_has_no_links(pruned):
    assert whole(pruned).files.keys() == {"config.json", "model.safetensors"}
    weights, elsewhere = pruned / "model.safetensors", pruned.parent / "elsewhere"
    weights.rename(elsewhere)
    assert "is missing" in refused(whole, pruned)
    weights.symlink_to(elsewhere)
    assert "is a link" in refused(whole, pruned)
    weights.unlink()
    weights.write_bytes(elsewhere.read_bytes() + b" ")
    assert "its sha256 is not the manifest's" in refused(whole, pruned)
    (pruned / PruneManifest.FILE).unlink()
    assert "is no pruned checkpoint" in refused(whole, pruned)


def test_whole_checkpoint_has_no_linked_folder(pruned):
    secret = pruned.parent / "folder" / "secret"
    secret.parent.mkdir()
    secret.write_text("x")
    (pruned / "templates").symlink_to(secret.parent)
    files = {"templates/secret": digest_of_file(secret)}
    listed = MANIFEST.model_copy(update={"files": files})
    (pruned / PruneManifest.FILE).write_text(to_json(listed))
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
def test_cache_tells_the_hub_id(source, base):
    assert base_of(MANIFEST.model_copy(update={"config": {"source": source}})) == base


HEAD = "checkpoint,task,language,kept,mc_only,produced_only,lost\nwanda-2of4,x,all"


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (None, "cannot be read"),
        ("", "cannot be read"),
        ("checkpoint,task\nwanda-2of4,x\n", "has no column 'kept'"),
        (f"{HEAD},,,,\n", "says nothing of 'wanda-2of4'"),
        (f"{HEAD},1,2,3,| x\n", "column 'lost': '| x' is no count"),
    ],
)
def test_a_run_without_fates_is_refused(pruned, run, table, why):
    file = run / "tables" / "fates.csv"
    file.unlink() if table is None else file.write_text(table)
    assert f"{file}: {why}" in refused(fates_of, pruned, run)


@pytest.mark.parametrize("name", ["name", "a/b/c", "a/../b", "org/name@main", "a/b\n"])
def test_invalid_repository_is_refused(name):
    assert "ORG/NAME" in refused(check_repository, name)


@pytest.mark.parametrize("value", ["org/name@../../x", "bundled", "./a/b", "/a/b"])
def test_no_hub_id(value):
    assert not is_hub_id(value)


# ---- through the real client library, in this process


# The hub's library sends files through a parameter that its HTTP library is about to
# rename.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning"),
    pytest.mark.usefixtures("any_tensors"),
]
README = "README.md"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "*")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with hub_on_loopback() as started:
        monkeypatch.setattr(constants, "ENDPOINT", started.address)
        template = started.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        huggingface_hub.close_session()
        yield started
        huggingface_hub.close_session()


def content(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_push_sends_checkpoint_and_card(hub, pruned, capsys):
    made = content(pruned)
    (pruned / "notes.txt").write_text("not of the checkpoint")
    prune(push="org/name", out=pruned)
    assert {name: each for name, each in hub.files.items() if name != README} == made
    assert "| pattern | `2:4` |" in hub.files[README].decode()
    assert f"pushed: {hub.address}/org/name\n" in capsys.readouterr().out
    assert [each["visibility"] for each in hub.created] == ["private"]
    assert hub.messages == ["wanda, 2:4, sparsity 0.5000"]
    assert TOKEN.encode() not in b"".join(hub.files.values())


def test_pushed_model_at_its_revision(hub, pruned):
    prune(push="org/name", out=pruned, public=True)
    assert [each["visibility"] for each in hub.created] == ["public"]
    for revision in ("", "@v1", f"@{hub.sha}"):
        directory = resolve_model(f"org/name{revision}")
        # no README.md: only what an engine reads is fetched
        assert content(directory) == content(pruned)
    told = refused(resolve_model, "org/name@v2")
    assert "checkpoint org/name@v2: no such directory" in told
    assert TOKEN not in told
    prune(push="org/name", out=pruned)
    hub.files |= {
        "model-00001-of-00002.safetensors": b"old",
        "chat_template.jinja": b"old",
        "figure.png": b"mine",
    }
    prune(push="org/name", out=pruned)
    assert {*hub.files} == {*content(pruned), README, "figure.png"}
    hub.files = {"model.safetensors": b"dense"}
    told = refused(prune, push="org/name", out=pruned)
    assert (
        "has model.safetensors and no prune_manifest.json: a model that would be"
        in told
    )
    assert hub.files == {"model.safetensors": b"dense"}


def test_hub_errors_hide_the_token(hub, pruned):
    hub.refuses = True
    told = refused(prune, push="org/name", out=pruned)
    assert "--push: 'org/name': the hub refuses: " in told
    assert "403 Forbidden" in told
    assert TOKEN not in told
    assert not hub.files
    hub.refuses, hub.breaks = False, True
    before = content(pruned.parent)
    told = refused(prune, push="org/name", out=pruned)
    assert re.search(
        r"--push: 'org/name': the upload failed: .*413 .*no space left", told
    )
    assert hub.stored  # the weights were there already
    assert f"`resurface prune --push org/name --out {pruned}` tries again" in told
    assert TOKEN not in told
    assert not hub.files
    assert content(pruned.parent) == before
    hub.breaks = False
    prune(push="org/name", out=pruned)
    assert PruneManifest.FILE in hub.files


@pytest.mark.parametrize(
    ("reason", "options"),
    [
        ("unknown", {"model": "bundled", "method": "typo", "sparsity": 0.5, "out": "out"}),
        ("push it later", {"model": "bundled", "method": "magnitude", "out": "out", "run": "."}),
        ("--out", {}),
        ("is no pruned checkpoint", {"out": "none"}),
        ("has no finished checkpoint", {"out": "pruned", "run": "."}),
    ],
)  # fmt: skip
def test_bad_input_makes_no_repository(hub, pruned, tmp_path, reason, options):
    paths = {name: tmp_path / options[name] for name in {"out", "run"} & {*options}}
    assert reason in refused(prune, push="org/name", **options | paths)
    assert not hub.created


def test_linked_model_is_not_pushed(hub, tmp_path):
    save_tiny_model(tmp_path / "dense")
    (tmp_path / "secret").write_text("x")
    (tmp_path / "dense" / "LICENSE").symlink_to(tmp_path / "secret")
    asked = {
        "model": str(tmp_path / "dense"),
        "method": "magnitude",
        "sparsity": 0.5,
        "out": tmp_path / "out",
    }
    assert "LICENSE: is a link" in refused(prune, push="org/name", **asked)
    assert not hub.created
    assert not (tmp_path / "out").exists()
    (tmp_path / "dense" / "LICENSE").unlink()
    prune(push="org/name", **asked)
    assert {
        name: each for name, each in hub.files.items() if name != README
    } == content(tmp_path / "out")
    assert str(tmp_path) not in hub.files[README].decode()
