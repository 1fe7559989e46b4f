"""What a checkpoint states beside its weights is used, or named."""

import json
import math

import pytest

from evaluator.checkpoints.stated import differences, generation_notes, other_ends
from evaluator.checkpoints.tokenizer import load_tokenizer
from tests.support.models import save_tiny_model
from tests.support.sweeps import rows


@pytest.fixture
def checkpoint(tmp_path):
    return save_tiny_model(tmp_path / "model")


def change(checkpoint, name="config.json", **fields):
    file = checkpoint / name
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


SAMPLERS = """
temperature: 1.0, top_p: 1, do_sample: false, max_length: 20 |
do_sample: true, temperature: 0.6 | do_sample true, temperature 0.6: not used
suppress_tokens: [3] | suppress_tokens [3]: not used
"""


@pytest.mark.parametrize(("stated", "note"), rows(SAMPLERS))
def test_unused_samplers_are_named(checkpoint, stated, note):
    change(checkpoint, "generation_config.json", **stated)
    notes = [*generation_notes(checkpoint, load_tokenizer(checkpoint))]
    assert [each.startswith(f"generation_config.json: {note}") for each in notes] == (
        [True] if note else []
    )


@pytest.mark.parametrize(
    ("ends", "note"),
    [
        ([0, 5], ""),
        (5, "token 0, 5; transformers' generate would end them at 5"),
        (None, "token 0; transformers' generate would end them at none"),
    ],
)
def test_other_ends_than_transformers(checkpoint, ends, note):
    change(checkpoint, "generation_config.json", eos_token_id=ends)
    notes = [*generation_notes(checkpoint, load_tokenizer(checkpoint))]
    assert notes == ([f"answers end at {note}"] if note else [])


def test_foreign_windows_are_named(checkpoint):
    before = [*generation_notes(checkpoint, load_tokenizer(checkpoint))]
    change(checkpoint, model_type="llama", sliding_window=8)
    notes = {*generation_notes(checkpoint, load_tokenizer(checkpoint))} - {*before}
    assert notes == {
        "config.json: sliding_window 8: not used: architecture llama has none"
    }


# transformers' newer and older names for one thing make no difference
CHANGED = """
rms_norm_eps: 1.0e-5 | rms_norm_eps 1e-06 against 1e-05
hidden_act: gelu | hidden_act "silu" against "gelu"
rope_parameters: null, rope_theta: 10000.0 |
intermediate_size: 8, num_key_value_heads: 1, bos_token_id: 3 |
_name_or_path: x, initializer_range: 0.5, transformers_version: '' |
unsloth_version: '1', auto_map: {AutoConfig: a.B} |
"""


def told(line):
    """The lines of differences."""
    return [f"config.json: {line}"] if line else []


@pytest.mark.parametrize(("fields", "line"), rows(CHANGED))
def test_differing_settings_are_named(checkpoint, tmp_path, fields, line):
    other = save_tiny_model(tmp_path / "other")
    change(other, **fields)
    assert [*differences(checkpoint, other)] == told(line)


TOWER = {
    "vision_config": {"hidden_act": "gelu", "dtype": "bfloat16", "use_cache": True},
    "text_config": {"dtype": "bfloat16", "eps": math.nan, "num_hidden_layers": 4},
}
LAYERS = {"no_rope_layers": [1, 1, 1, 0], "max_window_layers": 4}
ROPE = {"rope_parameters": {"rope_type": "yarn", "type": "yarn"}}
NESTED = """
vision_config: {hidden_act: gelu, dtype: float16} |
text_config: {eps: .nan, num_hidden_layers: 4, architectures: 1} |
vision_config: {hidden_act: silu} | vision_config.hidden_act "gelu" against "silu"
text_config: {eps: .nan, num_hidden_layers: 3}, no_rope_layers: [1, 1, 0], max_window_layers: 3 |
max_window_layers: 3 | max_window_layers 4 against 3
rope_parameters: {rope_type: yarn} |
rope_parameters: {rope_type: linear} | rope_parameters.rope_type "yarn" against "linear"
"""


@pytest.mark.parametrize(("fields", "line"), rows(NESTED))
def test_nested_settings_by_field(tmp_path, fields, line):
    base, other = tmp_path / "base", tmp_path / "other"
    stated = {"model_type": "of its own", **TOWER, **LAYERS, **ROPE}
    for folder, more in ((base, {}), (other, fields)):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(stated | more))
    assert [*differences(base, other)] == told(line)


def test_other_ends_are_a_difference(checkpoint, tmp_path):
    other = save_tiny_model(tmp_path / "other")
    change(other, "generation_config.json", eos_token_id=[0, 7])
    base, changed = load_tokenizer(checkpoint), load_tokenizer(other)
    assert [*other_ends(base, changed)] == ["eos_token_id 0 against 0, 7"]
    assert [*other_ends(base, base)] == []
