"""Tiny checkpoint directories of a few random tensors, for tests of what is read from them."""

import json

import pytest
import torch
from safetensors.torch import save_file

from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.tensors import INDEX, SINGLE
from evaluator.core.errors import InputError

CONFIG = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 4, "dtype": "bfloat16"}


def tensors(seed=0, dtype=torch.bfloat16):
    made = torch.Generator().manual_seed(seed)
    names = ("model.embed.weight", "model.a.weight", "lm_head.weight")
    return {name: torch.randn(4, 3, generator=made).to(dtype) for name in names}


def write(directory, weights=None, config=None):
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    save_file(tensors() if weights is None else weights, directory / SINGLE)
    return directory


def write_sharded(directory, weights, parts, config=None):
    """`parts`: shard name -> tensor names."""
    write(directory, config=config)
    (directory / SINGLE).unlink()
    for shard, names in parts.items():
        save_file({name: weights[name] for name in names}, directory / shard)
    weight_map = {name: shard for shard, names in parts.items() for name in names}
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def only_error(directory, **arguments):
    with pytest.raises(InputError) as caught:
        inspect_checkpoint(directory, **arguments)
    assert "\n" not in str(caught.value)
    assert str(directory) in str(caught.value)
    return str(caught.value)
