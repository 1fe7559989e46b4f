"""A model whose heads are divided otherwise computes the same."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM

from launch.doctor.divisible import write_divisible
from launch.sweep.models import BUNDLED_MODEL


def test_more_key_heads_than_before_and_the_same_logits(tmp_path):
    written = write_divisible(BUNDLED_MODEL, tmp_path / "made" / "dense")
    one, other = (AutoModelForCausalLM.from_pretrained(path, dtype="float32") for path in (BUNDLED_MODEL, written))
    assert (one.config.num_key_value_heads, other.config.num_key_value_heads) == (3, 6)
    ids = torch.arange(2, 34)[None]
    with torch.no_grad():
        assert torch.allclose(one(ids).logits, other(ids).logits, atol=1e-5)
