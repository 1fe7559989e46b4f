"""A checkpoint that can be divided between two workers and computes what the bundled model does, whose heads cannot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file


def write_divisible(source: Path, target: Path) -> Path:
    """A copy of a checkpoint in which every query head has key and value heads of its own, each a copy of those that
    it shared: three pairs for six queries become six.
    """
    shutil.copytree(source, target)
    file = target / "config.json"
    config = json.loads(file.read_bytes())
    queries, keys, size = (config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    file.write_text(json.dumps(config | {"num_key_value_heads": queries}), encoding="utf-8")
    for weights in target.glob("*.safetensors"):
        tensors = load_file(weights)
        for name, tensor in tensors.items():
            if name.endswith(("k_proj.weight", "v_proj.weight")):
                heads = tensor.reshape(keys, size, -1).repeat_interleave(queries // keys, dim=0)
                tensors[name] = heads.reshape(queries * size, -1).contiguous()
        save_file(tensors, weights, metadata={"format": "pt"})
    return target
