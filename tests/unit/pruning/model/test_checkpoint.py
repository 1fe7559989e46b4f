"""Tensors by name from one file or from shards, and what is wrong with a damaged
one."""

import json
import shutil

import pytest
import torch

from evaluator.checkpoints.tensors import INDEX, SINGLE, read_tensors
from pruning.model.checkpoint import Checkpoint
from tests.support import pruning as tiny
from tests.support.sweeps import refused


@pytest.mark.parametrize("shard", ["5GB", "60KB"])
def test_every_tensor_is_read_as_it_is(shard, checkpoints):
    directory = checkpoints("qwen2", max_shard_size=shard)
    checkpoint = Checkpoint(directory)
    expected = tiny.weights(directory)
    assert checkpoint.entries.keys() == expected.keys()
    assert (checkpoint.index is None) == (shard == "5GB")
    for name, tensor in expected.items():
        assert torch.equal(checkpoint.read(name), tensor)


def test_a_single_file_may_stand_beside_an_index_of_it_and_of_no_other_file(
    checkpoints, tmp_path
):
    single = shutil.copytree(checkpoints("qwen3"), tmp_path / "single")
    expected = tiny.weights(single)
    (single / INDEX).write_text(
        json.dumps({"weight_map": dict.fromkeys(expected, SINGLE)})
    )
    checkpoint = Checkpoint(single)
    assert (checkpoint.index, checkpoint.entries.keys()) == (None, expected.keys())
    directory = shutil.copytree(
        checkpoints("qwen2", max_shard_size="60KB"), tmp_path / "sharded"
    )
    shard = min(directory.glob("*.safetensors"))
    shutil.copy(shard, directory / SINGLE)
    for read in (Checkpoint, read_tensors):
        told = (
            f"{directory}: holds {SINGLE} and an {INDEX} that names other files; remove"
            " one of them"
        )
        assert refused(read, directory) == told
