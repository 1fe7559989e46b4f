"""Directories, hub ids and the mirror of the environment: which model a user means,
and their plugins."""

import sys
import types

import pytest

from launch.sweep.config import SweepConfig
from launch.sweep.models import (
    BUNDLED,
    BUNDLED_MODEL,
    local_directory,
    model_name,
    names_of,
    no_directory,
    resolve_model,
)
from launch.sweep.plugins import load_plugins
from tests.support.sweeps import refused


@pytest.fixture
def hub(monkeypatch, tmp_path):
    asked = []

    def snapshot_download(repository, **arguments):
        asked.append((repository, arguments))
        if repository == "org/offline":
            raise ConnectionError("Couldn't reach the hub\nmore lines")
        return str(tmp_path / "cache" / repository)

    monkeypatch.setitem(
        sys.modules,
        "huggingface_hub",
        types.SimpleNamespace(snapshot_download=snapshot_download),
    )
    monkeypatch.delenv("RESURFACE_MODELS", raising=False)
    return asked


def test_local_models_need_no_hub(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    assert resolve_model(BUNDLED) == BUNDLED_MODEL
    # looks like a hub id, but is there
    assert str(resolve_model("models/mine")) == "models/mine"
    # for the checks of checkpoints to complain of
    assert resolve_model(str(tmp_path / "gone")) == tmp_path / "gone"
    assert str(resolve_model("../gone/model")) == "../gone/model"
    assert hub == []
    mirror = tmp_path / "mirror"
    monkeypatch.setenv("RESURFACE_MODELS", str(mirror))
    (mirror / "org" / "name").mkdir(parents=True)
    (mirror / "org" / "name@v2").mkdir(parents=True)
    assert resolve_model("org/name") == mirror / "org" / "name"
    assert resolve_model("org/name@v2") == mirror / "org" / "name@v2"
    assert hub == []
    assert local_directory("org/other") is None


def test_a_name_in_a_folder_that_is_here_is_no_hub_id(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    assert str(local_directory("models/mime")) == "models/mime"
    assert local_directory("models/mime@main") is None
    assert local_directory("other/mime") is None
    told = str(no_directory("models/mime"))
    assert told == (
        "checkpoint models/mime: no such directory; did you mean 'models/mine'?"
        " (of the hub: models/mime@main)"
    )
    assert "hub" not in str(no_directory(tmp_path / "mime"))
    mirrored = tmp_path / "mirror" / "models" / "mime"
    mirrored.mkdir(parents=True)
    monkeypatch.setenv("RESURFACE_MODELS", str(tmp_path / "mirror"))
    assert local_directory("models/mime") == mirrored


def test_hub_ids_are_fetched(hub, tmp_path, monkeypatch):
    assert resolve_model("org/name@abc123") == tmp_path / "cache" / "org" / "name"
    ((repository, arguments),) = hub
    assert repository == "org/name"
    assert arguments["revision"] == "abc123"
    assert "*.safetensors" in arguments["allow_patterns"]
    assert not any(
        pattern == "*" or pattern.endswith((".py", ".bin"))
        for pattern in arguments["allow_patterns"]
    )
    assert resolve_model("org/name") == tmp_path / "cache" / "org" / "name"
    assert hub[1][1]["revision"] is None
    message = refused(resolve_model, "org/offline")
    for part in (
        "checkpoint org/offline: no such directory, and",
        "Couldn't reach the hub",
        "RESURFACE_MODELS=DIR",
        "DIR/org/offline",
    ):
        assert part in message
    monkeypatch.setenv("RESURFACE_MODELS", str(tmp_path))
    assert str(tmp_path / "org" / "offline") in refused(resolve_model, "org/offline")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("bundled", "bundled"),
        ("Qwen/Qwen3-8B@main", "Qwen3-8B"),
        ("Qwen3 8B (pruned, 50%)", "Qwen3-8B-pruned-50"),
        ("модель", "checkpoint"),
    ],
)
def test_model_name_is_safe(tmp_path, monkeypatch, value, name):
    monkeypatch.chdir(tmp_path)
    assert model_name(value) == name
    assert SweepConfig(models={name: "x"}, tasks=({"task": "gazetteer"},)).models == {
        name: "x"
    }


def test_equal_model_names_are_refused(tmp_path):
    one, other, odd = (
        tmp_path / "a" / "my-model",
        tmp_path / "b" / "my-model",
        tmp_path / "my model",
    )
    for directory in (one, other, odd):
        directory.mkdir(parents=True)
    assert names_of([str(one), BUNDLED], "CHECKPOINT") == {
        "my-model": str(one),
        BUNDLED: BUNDLED,
    }
    for second in (other, odd):
        told = refused(names_of, [str(one), str(second)], "CHECKPOINT")
        assert all(
            part in told
            for part in ("would have the same name 'my-model'", str(one), str(second))
        )
    assert "is given twice" in refused(names_of, [str(one), f"{one}/"], "--matcher")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "ModuleNotFoundError: No module named 'my_plugin_{}_0'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_broken_plugin_is_one_line(folder, monkeypatch, content, reason):
    name = f"my_plugin_{content is None}_{len(content or '')}"
    if content is not None:
        (folder / f"{name}.py").write_text(content)
    monkeypatch.setenv("RESURFACE_PLUGINS", name)
    assert (
        refused(load_plugins) == f"RESURFACE_PLUGINS: cannot import {name!r}:"
        f" {reason.format(content is None)}"
    )
