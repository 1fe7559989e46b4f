"""Output heads of files, against transformers."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from evaluator.checkpoints.heads import head_of
from tests.support.architectures import tiny_model
from tests.support.models import save_tiny_model

STATES = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("llama", {}),
        ("phi", {}),  # a bias
        ("gpt2", {}),  # tied
        ("falcon", {}),
        ("gemma2", {"final_logit_softcapping": 2.0}),
        ("cohere", {"logit_scale": 0.3}),
        ("granite", {"logits_scaling": 3.0}),
    ],
)
def test_logits_equal_transformers(tmp_path, kind, extra):
    model = tiny_model(kind)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "head.bias" in name:
                parameter.normal_()
    for name, value in extra.items():
        setattr(model.config, name, value)
        setattr(model, name, value)
    model.save_pretrained(tmp_path)
    model.get_output_embeddings().register_forward_pre_hook(lambda *_: (STATES[None],))
    with torch.inference_mode():
        expected = model(torch.zeros(1, len(STATES), dtype=torch.int64)).logits[0]
    head = head_of(tmp_path)
    assert head.weight.shape[1] == STATES.shape[1]
    assert torch.allclose(head.logits(STATES, torch.float32), expected, atol=1e-5)


def change_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_digest_is_of_the_head(tmp_path):
    """Other layers change nothing, each part of the head does."""
    first, second = (save_tiny_model(tmp_path / str(n), seed=n) for n in (0, 1))
    digest = head_of(first).digest
    assert head_of(second).digest != digest
    weights = load_file(first / "model.safetensors")
    other = {name: each + ("layers" in name) for name, each in weights.items()}
    save_file(other, first / "model.safetensors", metadata={"format": "pt"})
    assert head_of(first).digest == digest
    change_config(first, logit_scale=0.5)
    assert head_of(first).digest != digest


@pytest.mark.parametrize("kind", ["mamba", "llama"])
def test_unknown_heads_are_none(tmp_path, kind):
    """By its name, and by its number of rows."""
    tiny_model(kind).save_pretrained(tmp_path)
    if kind == "llama":
        change_config(tmp_path, vocab_size=383)
    assert head_of(tmp_path) is None
