"""A checkpoint to a hub on the loopback and back, through the real client library, in this process."""

import re

import huggingface_hub
import pytest
from huggingface_hub import constants

from launch.commands.prune import prune
from launch.sweep.models import resolve_model
from pruning.output.manifest import MANIFEST_NAME
from tests.support.hub import TOKEN, hub_on_loopback, write_pruned
from tests.support.models import save_tiny_model
from tests.support.sweeps import refused

# The hub's library sends files through a parameter that its HTTP library is about to rename.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
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


@pytest.fixture
def pruned(tmp_path):
    return write_pruned(tmp_path / "pruned")


def content(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def test_what_is_pushed_is_the_checkpoint_and_a_card(hub, pruned, capsys):
    made = content(pruned)
    (pruned / "notes.txt").write_text("not of the checkpoint")
    prune(push="org/name", out=pruned)
    assert {name: each for name, each in hub.files.items() if name != README} == made
    assert "| pattern | `2:4` |" in hub.files[README].decode()
    assert f"pushed: {hub.address}/org/name\n" in capsys.readouterr().out
    assert [each["visibility"] for each in hub.created] == ["private"]
    assert hub.messages == ["wanda, 2:4, sparsity 0.5000"]
    assert TOKEN.encode() not in b"".join(hub.files.values())


def test_what_was_pushed_is_a_model_at_its_revision_and_public_if_that_is_said(hub, pruned):
    prune(push="org/name", out=pruned, public=True)
    assert [each["visibility"] for each in hub.created] == ["public"]
    for revision in ("", "@v1", f"@{hub.sha}"):
        directory = resolve_model(f"org/name{revision}")
        assert content(directory) == content(pruned)  # no README.md: only what an engine reads is fetched
    told = refused(resolve_model, "org/name@v2")
    assert "checkpoint org/name@v2: no such directory" in told
    assert TOKEN not in told


def test_a_second_upload_leaves_nothing_of_the_first_that_a_server_reads(hub, pruned):
    prune(push="org/name", out=pruned)
    hub.files |= {"model-00001-of-00002.safetensors": b"old", "chat_template.jinja": b"old", "figure.png": b"mine"}
    prune(push="org/name", out=pruned)
    assert {*hub.files} == {*content(pruned), README, "figure.png"}


def test_somebodys_model_is_not_replaced(hub, pruned):
    hub.files["model.safetensors"] = b"dense"
    told = refused(prune, push="org/name", out=pruned)
    assert "has model.safetensors and no prune_manifest.json: a model that would be" in told
    assert hub.files == {"model.safetensors": b"dense"}


def test_a_hub_that_refuses_is_told_in_one_line_without_the_token(hub, pruned):
    hub.refuses = True
    told = refused(prune, push="org/name", out=pruned)
    assert "--push: 'org/name': the hub refuses: " in told
    assert "403 Forbidden" in told
    assert TOKEN not in told
    assert not hub.files


def test_an_upload_that_breaks_off_is_told_in_one_line_and_can_be_tried_again(hub, pruned):
    hub.breaks = True
    before = content(pruned.parent)
    told = refused(prune, push="org/name", out=pruned)
    assert re.search(r"--push: 'org/name': the upload failed: .*413 .*no space left", told)
    assert hub.stored  # the weights were there already
    assert f"`resurface prune --push org/name --out {pruned}` tries again" in told
    assert TOKEN not in told
    assert not hub.files
    assert content(pruned.parent) == before
    hub.breaks = False
    prune(push="org/name", out=pruned)
    assert MANIFEST_NAME in hub.files


def test_no_repository_is_made_for_what_cannot_be_pruned_or_pushed(hub, pruned, tmp_path):
    wrong = {
        "unknown": {"model": "bundled", "method": "typo", "sparsity": 0.5, "out": tmp_path / "out"},
        "push it later": {"model": "bundled", "method": "magnitude", "out": tmp_path / "out", "run": tmp_path},
        "--out": {},
        "is no pruned checkpoint": {"out": tmp_path / "none"},
        "has no finished checkpoint": {"out": pruned, "run": tmp_path},
        "Missing argument 'MODEL'": {"out": pruned, "method": "wanda"},
    }
    for reason, options in wrong.items():
        assert reason in refused(prune, push="org/name", **options)
    assert "go with --push" in refused(prune, out=pruned, public=True)
    assert not hub.created


def test_a_model_is_pruned_and_uploaded_if_it_holds_no_link_elsewhere(hub, tmp_path):
    save_tiny_model(tmp_path / "dense")
    (tmp_path / "secret").write_text("x")
    (tmp_path / "dense" / "LICENSE").symlink_to(tmp_path / "secret")
    asked = {"model": str(tmp_path / "dense"), "method": "magnitude", "sparsity": 0.5, "out": tmp_path / "out"}
    assert "LICENSE: is a link" in refused(prune, push="org/name", **asked)
    assert not hub.created
    assert not (tmp_path / "out").exists()
    (tmp_path / "dense" / "LICENSE").unlink()
    prune(push="org/name", **asked)
    assert {name: each for name, each in hub.files.items() if name != README} == content(tmp_path / "out")
    assert str(tmp_path) not in hub.files[README].decode()
