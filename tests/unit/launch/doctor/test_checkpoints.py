"""Twins, what two sides pruned, and the questions that every run is asked."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from launch.doctor.checkpoints import differing, masks_of, write_divisible, write_twins
from launch.doctor.runs import PROMPT_TOKENS, cases_for
from launch.sweep.models import BUNDLED_MODEL


def test_twins_have_equal_embeddings(tmp_path):
    before, after = (
        load_file(folder / "model.safetensors")
        for folder in (BUNDLED_MODEL, write_twins(BUNDLED_MODEL, tmp_path / "twins"))
    )
    for name, tensor in before.items():
        expected = tensor
        if name == "model.embed_tokens.weight":
            expected = tensor[::2].repeat_interleave(2, dim=0)
        assert torch.equal(after[name], expected), name


def test_divisible_model_computes_the_same(tmp_path):
    written = write_divisible(BUNDLED_MODEL, tmp_path / "made" / "dense")
    one, other = (
        AutoModelForCausalLM.from_pretrained(path, dtype="float32")
        for path in (BUNDLED_MODEL, written)
    )
    assert (one.config.num_key_value_heads, other.config.num_key_value_heads) == (3, 6)
    ids = torch.arange(2, 34)[None]
    with torch.no_grad():
        assert torch.allclose(one(ids).logits, other(ids).logits, atol=1e-5)


@pytest.mark.parametrize("write", [write_twins, write_divisible])
def test_read_only_model_is_copied(
    write: Callable[[Path, Path], Path], tmp_path: Path
) -> None:
    """The program may stand where nobody can write. Whoever may write everywhere
    shows it by the modes alone."""
    source = tmp_path / "source"
    shutil.copytree(BUNDLED_MODEL, source)
    for path in (*source.iterdir(), source):
        path.chmod(0o555 if path.is_dir() else 0o444)
    made = write(source, tmp_path / "made" / "model")
    owned = [made, *(path for path in made.iterdir() if not path.is_symlink())]
    assert {path.name for path in owned} == {
        "model",
        "config.json",
        "model.safetensors",
    }
    assert all(path.stat().st_mode & 0o200 for path in owned)
    source.chmod(0o755)


def test_share_of_differing_weights(tmp_path):
    weight = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    save_file(
        {"model.layers.0.q.weight": weight, "model.norm.weight": torch.zeros(2)},
        tmp_path / "model.safetensors",
    )
    masks = masks_of(tmp_path)
    assert masks["model.layers.0.q.weight"].tolist() == [[True, False], [False, True]]
    other = {
        "model.layers.0.q.weight": torch.tensor([[True, False], [True, True]]),
        "another": torch.ones(1, 1),
    }
    assert differing(masks, other) == {"another": 1.0, "model.layers.0.q.weight": 0.25}


@pytest.mark.slow
def test_questions_cross_cache_blocks():
    asked = cases_for(BUNDLED_MODEL)
    lengths = {len(score.prompt_ids) for score in asked.scores}
    assert {1, 31, 32, 129, 256} <= lengths
    assert max(lengths) <= PROMPT_TOKENS
    assert {len(score.continuation_ids) for score in asked.scores} >= {2, 33}
    names = [each.request_id for each in (*asked.exact, *asked.samples)]
    assert len(set(names)) == len(names) > 50
    assert len({sample.seed for sample in asked.samples}) == len(asked.samples)
    assert asked.searched
    assert asked.eos_ids
