"""A hostile checkpoint directory: pipes, links that lead elsewhere, code. And files
that are read ahead."""

import json
import os

import pytest

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.manifests import PruneManifest
from evaluator.checkpoints.tensors import INDEX
from tests.support.checkpoint_files import (
    CONFIG,
    only_error,
    tensors,
    write,
    write_manifest,
    write_sharded,
)


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
def test_endless_files_are_not_read(tmp_path, name, replace, part):
    checkpoint = write(tmp_path / "c")
    (checkpoint / name).unlink(missing_ok=True)
    replace(checkpoint / name)
    message = only_error(checkpoint)
    assert name in message
    assert part in message


@pytest.mark.parametrize(
    "name", ["../c.safetensors", "/etc/passwd", "..", "", "a\0b", "sub/c", "x" * 300]
)
def test_index_names_own_files(tmp_path, name):
    write(tmp_path, tensors())  # a file that can be read, one directory above
    (tmp_path / "model.safetensors").rename(tmp_path / "c.safetensors")
    checkpoint = write_sharded(
        tmp_path / "c", tensors(), {"a.safetensors": list(tensors())}
    )
    index = json.loads((checkpoint / INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = name
    (checkpoint / INDEX).write_text(json.dumps(index))
    assert "weight_map" in only_error(checkpoint)


@pytest.mark.parametrize("name", ["/etc/passwd", "a/../../b", "", "..", "a/.."])
def test_manifest_lists_own_files(tmp_path, name):
    checkpoint = write(tmp_path / "c")
    write_manifest(checkpoint, files={name: "0"})
    place = f"{checkpoint / PruneManifest.FILE}: files: {name!r}"
    assert only_error(checkpoint) == f"{place} is not in its directory"


@pytest.mark.parametrize(
    "more",
    [
        {"attn_implementation": "somebody/kernel"},
        {
            "text_config": {
                "attn_implementation": {"": "sdpa", "vision": "somebody/kernel"}
            }
        },
        {"experts_implementation": "somebody/kernel"},
    ],
)
def test_hub_code_is_refused(tmp_path, more):
    checkpoint = write(tmp_path / "c", config=CONFIG | more)
    message = only_error(checkpoint)
    assert "'somebody/kernel" in message
    assert "code from the hub is not run" in message
    # of transformers itself
    own = CONFIG | {"attn_implementation": "sdpa", "text_config": {"hidden_size": 8}}
    Checkpoint(write(checkpoint, config=own)).check_directory()
