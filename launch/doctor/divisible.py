"""A checkpoint that can be divided between two workers and computes what the bundled model does, whose heads cannot."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file

from evaluator.checkpoints.info import read_config
from evaluator.checkpoints.overlay import overlay


def write_divisible(source: Path, target: Path) -> Path:
    """A copy of a checkpoint in which every query head has key and value heads of its own, each a copy of those that
    it shared: three pairs for six queries become six.
    """
    config = read_config(source)
    queries, keys, size = (config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    target.mkdir(parents=True)
    overlay(source, target, {**config, "num_key_value_heads": queries})  # the program's own files may be read-only
    for weights in target.glob("*.safetensors"):
        tensors = load_file(weights)
        weights.unlink()
        for name, tensor in tensors.items():
            if name.endswith(("k_proj.weight", "v_proj.weight")):
                heads = tensor.reshape(keys, size, -1).repeat_interleave(queries // keys, dim=0)
                tensors[name] = heads.reshape(queries * size, -1).contiguous()
        save_file(tensors, weights, metadata={"format": "pt"})
    return target
