import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from evaluator.checkpoints.blueprint import read_blueprint
from tests.support.models import VOCABULARY, save_tiny_model
from tests.support.sweeps import refused


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "one", "qwen3", eos_ids=(5, 9))


@pytest.fixture
def edited(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "edited"))


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_another_set_of_weights_does_not_differ(saved, tmp_path):
    blueprint = read_blueprint(saved)
    assert blueprint.difference(read_blueprint(save_tiny_model(tmp_path / "two", "qwen3", 1))) is None
    assert (blueprint.vocabulary, blueprint.longest) == (VOCABULARY, 2048)
    assert blueprint.files == (saved / "model.safetensors",)


def test_a_default_that_is_spelled_out_is_no_difference(saved, edited):
    edit(edited / "config.json", attention_dropout=0.0, transformers_version="0", use_cache=False)
    config = json.loads((edited / "config.json").read_text())
    config.pop("attention_bias", None)
    (edited / "config.json").write_text(json.dumps(config))
    assert read_blueprint(saved).difference(read_blueprint(edited)) is None
    edit(edited / "config.json", rms_norm_eps=0.5, num_local_experts=4)
    assert [read_blueprint(each).mixture for each in (saved, edited)] == [False, True]
    edit(edited / "config.json", num_local_experts=None)
    assert read_blueprint(saved).difference(read_blueprint(edited)) == "config.json: rms_norm_eps is 0.5, not 1e-06"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.norm.weight", lambda _: None, "tensor model.norm.weight is missing"),
        ("extra", lambda norm: norm, "tensor extra is not part of the served architecture"),
        ("model.norm.weight", lambda norm: norm[:32].clone(), "tensor model.norm.weight has shape [32], not [64]"),
        ("model.norm.weight", lambda norm: norm.bfloat16(), "tensor model.norm.weight is BF16, not F32"),
    ],
)
def test_tensors_that_differ_are_named(saved, edited, name, change, message):
    tensors = load_file(edited / "model.safetensors")
    tensors[name] = change(tensors["model.norm.weight"].clone())
    save_file({key: each for key, each in tensors.items() if each is not None}, edited / "model.safetensors")
    assert read_blueprint(saved).difference(read_blueprint(edited)) == message


def test_a_config_that_is_none_is_refused(edited):
    edit(edited / "config.json", vocab_size="many")
    assert "vocab_size" in refused(read_blueprint, edited).partition("config.json: ")[2]


def test_sizes_of_a_model_of_several_towers_are_those_of_its_text(saved, edited):
    config = json.loads((edited / "config.json").read_text())
    whole = {"model_type": "gemma3", "text_config": config | {"model_type": "gemma3_text", "sliding_window": 8}}
    (edited / "config.json").write_text(json.dumps(whole))
    blueprint = read_blueprint(edited)
    assert (blueprint.vocabulary, blueprint.longest) == (VOCABULARY, 2048)
