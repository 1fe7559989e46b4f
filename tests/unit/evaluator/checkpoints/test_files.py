"""A hostile checkpoint directory: pipes, links that lead elsewhere, code. And files
that are read ahead."""

import hashlib
import json
import os
from types import SimpleNamespace

import pytest

from evaluator.checkpoints import files as readahead
from evaluator.checkpoints.files import digest_of_file, digest_once, is_inside
from evaluator.checkpoints.info import MANIFEST
from evaluator.checkpoints.tensors import INDEX
from pruning.model.checkpoint import Checkpoint
from pruning.output.manifest import read_manifest
from tests.support.checkpoint_files import (
    CONFIG,
    only_error,
    tensors,
    write,
    write_sharded,
)
from tests.support.sweeps import refused


@pytest.mark.parametrize(
    ("name", "replace", "part"),
    [
        ("tokenizer.json", os.mkfifo, "is a pipe"),
        (
            "adapter_config.json",
            lambda file: file.write_text("{}"),
            "an adapter is not applied",
        ),
        (
            "config.json",
            lambda file: file.symlink_to("/dev/zero"),
            "is a pipe, a socket or a device",
        ),
        ("config.json", lambda file: file.symlink_to("config.json"), ""),
        ("config.json", lambda file: file.write_text("[" * 100_000), "not JSON"),
        (
            "tokenizer_config.json",
            lambda file: file.touch() or os.truncate(file, 10**12),
            "1,000,000,000,000 bytes",
        ),
    ],
)
def test_files_that_would_not_end_are_not_read(tmp_path, name, replace, part):
    checkpoint = write(tmp_path / "c")
    (checkpoint / name).unlink(missing_ok=True)
    replace(checkpoint / name)
    for message in (only_error(checkpoint), refused(Checkpoint, checkpoint)):
        assert name in message
        assert part in message


@pytest.mark.parametrize(
    "name",
    ["../c.safetensors", "/etc/passwd", "..", ".", "", "a\0b", "sub/c", "x" * 300],
)
def test_an_index_names_files_of_its_own_directory(tmp_path, name):
    write(tmp_path, tensors())  # a file that can be read, one directory above
    (tmp_path / "model.safetensors").rename(tmp_path / "c.safetensors")
    checkpoint = write_sharded(
        tmp_path / "c", tensors(), {"a.safetensors": list(tensors())}
    )
    index = json.loads((checkpoint / INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = name
    (checkpoint / INDEX).write_text(json.dumps(index))
    assert "weight_map" in only_error(checkpoint)
    told = refused(Checkpoint, checkpoint)
    assert any(part in told for part in (INDEX, "Is a directory", "not a regular file"))


@pytest.mark.parametrize("name", ["/etc/passwd", "a/../../b", ""])
def test_a_manifest_lists_files_of_its_own_directory(tmp_path, name):
    checkpoint = write(tmp_path / "c")
    (checkpoint / MANIFEST).write_text(json.dumps({"files": {name: "0"}}))
    assert f"field 'files' names {name!r}, which is not in its directory" in only_error(
        checkpoint
    )
    assert MANIFEST in refused(read_manifest, checkpoint)


def test_names_inside_and_outside():
    assert all(map(is_inside, ("a", "a/b.json", "..a", "a..b")))
    assert not any(
        map(is_inside, ("", ".", "/", "/a", "..", "a/..", "../a", "a/../../b", "a\0b"))
    )


@pytest.mark.parametrize(
    "more",
    [
        {"attn_implementation": "somebody/kernel"},
        {"_attn_implementation_internal": "somebody/kernel@main:forward"},
        {
            "text_config": {
                "attn_implementation": {"": "sdpa", "vision": "somebody/kernel"}
            }
        },
        {"experts_implementation": "somebody/kernel"},
    ],
)
def test_code_of_the_hub_for_a_layer_is_refused(tmp_path, more):
    checkpoint = write(tmp_path / "c", config=CONFIG | more)
    assert "'somebody/kernel" in only_error(checkpoint)
    assert "code from the hub is not run" in refused(Checkpoint, checkpoint)
    # of transformers itself
    own = CONFIG | {"attn_implementation": "sdpa", "text_config": {"hidden_size": 8}}
    assert Checkpoint(write(checkpoint, config=own)).config == own


def test_every_weight_file_is_read_ahead_where_memory_has_twice_the_room(
    tmp_path, monkeypatch
):
    sizes: list[int] = []

    def fadvise(descriptor, offset, length, advice):
        assert (offset, length, advice) == (0, 0, readahead.os.POSIX_FADV_WILLNEED)
        sizes.append(readahead.os.fstat(descriptor).st_size)

    monkeypatch.setattr(readahead.os, "posix_fadvise", fadvise)
    assert readahead.read_ahead(tmp_path) is None
    for name, size in (
        ("model-1.safetensors", 10),
        ("model-2.safetensors", 20),
        ("config.json", 30),
    ):
        (tmp_path / name).write_bytes(b"x" * size)
    memory = SimpleNamespace(available=59)
    monkeypatch.setattr(readahead.psutil, "virtual_memory", lambda: memory)
    assert readahead.read_ahead(tmp_path) is None
    memory.available = 60
    thread = readahead.read_ahead(tmp_path)
    assert thread is not None
    thread.join()
    assert sizes == [10, 20]


def test_a_file_is_read_once_until_it_changes(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(
        readahead,
        "digest_of_file",
        lambda file: read.append(file.name) or digest_of_file(file),
    )
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_bytes(b"one")
    other.write_bytes(b"one")
    for _ in range(2):
        assert (
            digest_once(file)
            == digest_once(other)
            == hashlib.sha256(b"one").hexdigest()
        )
    assert read == ["a", "b"]
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))  # whatever the file system's clock says
    assert digest_once(file) == hashlib.sha256(b"two").hexdigest()
    other.unlink()
    other.write_bytes(b"three")
    assert digest_once(other) == hashlib.sha256(b"three").hexdigest()
    assert read == ["a", "b", "a", "b"]
